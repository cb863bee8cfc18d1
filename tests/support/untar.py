"""Unpacking tar archives by the filters of `tarfile`, where this Python has them: that of Debian 12, 3.11.2, has none.

What the tests unpack is pinned by its hash, or their own.
"""

from __future__ import annotations

import tarfile
from typing import Any, Literal


def filtered(name: Literal["data", "tar"]) -> dict[str, Any]:
    """Return the keyword arguments of `extract` and `extractall` for the filter NAME."""
    return {"filter": name} if hasattr(tarfile, "data_filter") else {}
