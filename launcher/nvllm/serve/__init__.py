"""From a profile to an engine that answers, or to every reason at once why it must not start.

In: project, image and profile, and the host as it is. Out: a launch plan; from it a started, supervised engine and
its run directory. `examine` decides, `planner` makes the plan, `startup` starts, `supervisor` stays.
"""

from typing import TYPE_CHECKING

from nvllm.core import exports

__all__ = ["Preview", "Supervisor", "load_build", "preview", "stop"]

if TYPE_CHECKING:
    from nvllm.serve.examine import Preview, load_build, preview
    from nvllm.serve.supervisor import Supervisor, stop
else:
    __getattr__ = exports.lazy(
        __name__, {"examine": ["Preview", "load_build", "preview"], "supervisor": ["Supervisor", "stop"]}
    )
