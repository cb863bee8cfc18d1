"""Models on this host, checked against the lock, and the recipes of models that nvllm makes itself.

In: a directory and the locked files. Out: its files, each hashed, the tree hash over them, or refusals.
"""

from typing import TYPE_CHECKING

from nvllm.core import exports

__all__ = ["tree_hash", "verify"]

if TYPE_CHECKING:
    from nvllm.models.tree import tree_hash, verify
else:
    __getattr__ = exports.lazy(__name__, {"tree": ["tree_hash", "verify"]})
