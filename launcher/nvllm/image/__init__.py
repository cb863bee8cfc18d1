"""From a lock to an image in the engine: identity, configuration, record.

In: spec, lock and patch set. Out: the build hash, known before anything is built; then the image, or a context from
which `docker build` builds it.
"""

from typing import TYPE_CHECKING

from nvllm.core import exports

__all__ = ["Build", "ImageBuilder", "load_build"]

if TYPE_CHECKING:
    from nvllm.image.builder import ImageBuilder
    from nvllm.image.identity import Build, load_build
else:
    __getattr__ = exports.lazy(__name__, {"builder": ["ImageBuilder"], "identity": ["Build", "load_build"]})
