"""Evidence that a person can read: ablations, benches and evaluations of a profile, each in fresh containers.

In: an image, a profile, and a probe. Out: a directory with what was run, on what, every answer, and what follows.
`arms` and `questions` say what is run, `runner` runs it, `harness` says whether a leg counts, `comparison` compares.
"""

from typing import TYPE_CHECKING

from nvllm.core import exports

__all__ = ["EvidenceDirectory", "Runner"]

if TYPE_CHECKING:
    from nvllm.evidence.directory import EvidenceDirectory
    from nvllm.evidence.runner import Runner
else:
    __getattr__ = exports.lazy(__name__, {"directory": ["EvidenceDirectory"], "runner": ["Runner"]})
