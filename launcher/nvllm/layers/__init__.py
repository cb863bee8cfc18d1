"""Layers: deterministic tar files, each a pure function of locked files.

In: Debian packages, wheels, patched sources. Out: a tar whose sha256 is the same on every host, kept in a
cache under the hash of its inputs.
"""

from typing import TYPE_CHECKING

from nvllm.core import exports

__all__ = ["Layer", "LayerCache"]

if TYPE_CHECKING:
    from nvllm.layers.cache import LayerCache
    from nvllm.layers.tar import Layer
else:
    __getattr__ = exports.lazy(__name__, {"cache": ["LayerCache"], "tar": ["Layer"]})
