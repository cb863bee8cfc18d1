"""What the host is, whether it will do, and the locks by which processes on it keep out of each other's way.

In: /proc, the engine's answers, a launch plan. Out: facts as values, and an outcome for each check.
"""

from typing import TYPE_CHECKING

from nvllm.core import exports

__all__ = ["HostFacts", "Outcome", "outcomes", "probe"]

if TYPE_CHECKING:
    from nvllm.host.checks import Outcome, outcomes
    from nvllm.host.facts import HostFacts, probe
else:
    __getattr__ = exports.lazy(__name__, {"checks": ["Outcome", "outcomes"], "facts": ["HostFacts", "probe"]})
