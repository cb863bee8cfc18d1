"""Compile caches that were blessed: exact trees, stored once under their hash, and the manifests that bind them.

In: a cache that an engine wrote, and the figures of its trials. Out: a tree that equals its manifest byte for byte, or
a refusal; a private copy of the tree to mount.
"""

from typing import TYPE_CHECKING

from nvllm.core import exports

__all__ = ["Blessings", "Manifest", "TreeStore"]

if TYPE_CHECKING:
    from nvllm.cache.blessings import Blessings
    from nvllm.cache.manifest import Manifest
    from nvllm.cache.store import TreeStore
else:
    __getattr__ = exports.lazy(__name__, {"blessings": ["Blessings"], "manifest": ["Manifest"], "store": ["TreeStore"]})
