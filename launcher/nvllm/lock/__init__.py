"""Everything that moves, resolved once and pinned by sha256.

In: an image spec, its series, and what indexes, repositories and the hub answer. Out: `manifests/<image>.lock.json`,
read strictly, and the differences between two locks. The values of a lock are in `core.lock`.

    inputs = read_inputs(project, "cpu")
    lock = lock_image(inputs, read_lock(project, "cpu"), places, {"wheels"}, offline=False, progress=Silent())
    write(project.lock("cpu"), lock)
"""

from typing import TYPE_CHECKING

from nvllm.core import exports

__all__ = ["LockInputs", "compare", "lock_image", "read", "read_inputs", "read_lock", "usable_lock", "write"]

if TYPE_CHECKING:
    from nvllm.lock.document import read, write
    from nvllm.lock.drift import compare
    from nvllm.lock.project import LockInputs, lock_image, read_inputs, read_lock, usable_lock
else:
    __getattr__ = exports.lazy(
        __name__,
        {
            "document": ["read", "write"],
            "drift": ["compare"],
            "project": ["LockInputs", "lock_image", "read_inputs", "read_lock", "usable_lock"],
        },
    )
