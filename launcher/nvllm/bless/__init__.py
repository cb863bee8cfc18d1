"""Blessing a compile cache: one cold compile, trials in fresh containers that load it read-only, and one rename.

In: an examined launch plan and the number of trials. Out: a manifest in force with the evidence that it names, or
a refusal and nothing changed.
"""

from typing import TYPE_CHECKING

from nvllm.core import exports

__all__ = ["Bless"]

if TYPE_CHECKING:
    from nvllm.bless.blessing import Bless
else:
    __getattr__ = exports.lazy(__name__, {"blessing": ["Bless"]})
