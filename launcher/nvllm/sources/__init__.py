"""Fetching files from indexes, archives, git hosts and the hub, and the content store that holds them.

In: locked files, and the names that `nvllm lock` resolves. Out: files in the store, whose sha256 was
verified before. Only `hub` imports huggingface_hub.
"""

from typing import TYPE_CHECKING

from nvllm.core import exports

__all__ = ["Sources", "Store"]

if TYPE_CHECKING:
    from nvllm.sources.indexes import Sources
    from nvllm.sources.store import Store
else:
    __getattr__ = exports.lazy(__name__, {"indexes": ["Sources"], "store": ["Store"]})
