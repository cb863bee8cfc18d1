"""Beyond one machine: images and blessings travel by digest through an OCI registry.

In: a finished image or a blessing, and the name of a repository. Out: digests, on the way there; on the way back, an
image in the engine with its build record, or a blessing in force. What comes back is trusted for its bytes alone.
"""

from typing import TYPE_CHECKING

from nvllm.core import exports

__all__ = ["Repository", "pull_image", "push_image"]

if TYPE_CHECKING:
    from nvllm.fleet.images import pull_image, push_image
    from nvllm.fleet.registry import Repository
else:
    __getattr__ = exports.lazy(__name__, {"images": ["pull_image", "push_image"], "registry": ["Repository"]})
