"""Image specs: what people write in `images/<name>.yaml`, loaded and checked.

In: YAML. Out: a frozen `core.spec.ImageSpec`, or every problem at once, each with its line.
"""

from typing import TYPE_CHECKING

from nvllm.core import exports

__all__ = ["load", "parse"]

if TYPE_CHECKING:
    from nvllm.spec.file import load, parse
else:
    __getattr__ = exports.lazy(__name__, {"file": ["load", "parse"]})
