"""What no project refers to any more: found, listed, and then removed.

In: cache and state of this host, and the projects that have used them. Out: the pieces that can be removed.
"""

from typing import TYPE_CHECKING

from nvllm.core import exports

__all__ = ["Piece", "files", "images", "remove"]

if TYPE_CHECKING:
    from nvllm.gc.garbage import Piece, files, images, remove
else:
    __getattr__ = exports.lazy(__name__, {"garbage": ["Piece", "files", "images", "remove"]})
