"""Names that a room exports, imported when they are first used: a command pays only for the modules that it needs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence


def lazy(room: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Return the ``__getattr__`` (PEP 562) of the package ROOM that exports NAMES, listed by the module they are in."""
    modules = {name: module for module, listed in names.items() for name in listed}

    def find(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return vars(importlib.import_module(f"{room}.{modules[name]}"))[name]

    return find
