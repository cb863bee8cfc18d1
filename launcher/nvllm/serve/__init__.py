"""Serving a profile: an engine that answers, or every reason at once why it must not start.

In: project, image, profile and host. Out: a launch plan; from it a running, supervised engine and its run directory.
`service` says in which order: `examination` decides whether it may start, and asks `planner` for the plan; `startup`
starts it, `supervisor` watches it, `stopping` ends it.
"""

from typing import TYPE_CHECKING

from nvllm.core import exports

__all__ = ["Examination", "Depth", "Supervisor", "examine", "stop"]

if TYPE_CHECKING:
    from nvllm.serve.examination import Depth, Examination, examine
    from nvllm.serve.stopping import stop
    from nvllm.serve.supervisor import Supervisor
else:
    __getattr__ = exports.lazy(
        __name__,
        {"examination": ["Examination", "Depth", "examine"], "supervisor": ["Supervisor"], "stopping": ["stop"]},
    )
