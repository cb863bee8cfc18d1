"""Patch series: reading them, choosing patch sets, applying them strictly, checking and writing patches.

In: `patches/<base>/series.yaml` with its patch files, and pristine sources. Out: the patched files, as values.
"""

from typing import TYPE_CHECKING

from nvllm.core import exports

__all__ = ["Patch", "Series", "choose", "load"]

if TYPE_CHECKING:
    from nvllm.patches.patchset import choose
    from nvllm.patches.series import Patch, Series
    from nvllm.patches.seriesfile import load
else:
    __getattr__ = exports.lazy(
        __name__, {"patchset": ["choose"], "series": ["Patch", "Series"], "seriesfile": ["load"]}
    )
