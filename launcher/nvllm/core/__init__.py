"""What every room uses: refusals, canonical JSON, programs, durable writes, schemas, paths, and the frozen classes of
spec, lock and launch plan.

It imports no other room. One module runs programs (`proc`), one writes files (`durable`).
"""

from typing import TYPE_CHECKING

from nvllm.core import exports

__all__ = ["Places", "Project", "Refusal", "Refused", "Silent", "find_project", "packaged", "places"]

if TYPE_CHECKING:
    from nvllm.core.paths import Places, Project, find_project, packaged, places
    from nvllm.core.progress import Silent
    from nvllm.core.refusal import Refusal, Refused
else:
    __getattr__ = exports.lazy(
        __name__,
        {
            "paths": ["Places", "Project", "find_project", "packaged", "places"],
            "progress": ["Silent"],
            "refusal": ["Refusal", "Refused"],
        },
    )
