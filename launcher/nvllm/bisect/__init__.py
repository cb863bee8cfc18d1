"""Finds the smallest set of patches that breaks, or repairs, what a probe tests.

In: a patch series, a good and a bad set, and a probe. Out: a journal, from which every decision can be repeated, and a
report. `search` and `posterior` choose the next trial, `driver` runs and records it, `trials` builds and serves a set.
"""

from typing import TYPE_CHECKING

from nvllm.core import exports

__all__ = ["Problem", "Settings", "drive", "propose"]

if TYPE_CHECKING:
    from nvllm.bisect.driver import drive
    from nvllm.bisect.problem import Problem, Settings
    from nvllm.bisect.search import propose
else:
    __getattr__ = exports.lazy(
        __name__, {"driver": ["drive"], "problem": ["Problem", "Settings"], "search": ["propose"]}
    )
