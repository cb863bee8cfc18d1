"""A real registry, Debian's docker-registry, that a test can kill and start again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.real_registry import RealRegistry


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealRegistry]:
    registry = RealRegistry(tmp_path / "registry")
    registry.start()
    try:
        yield registry
    finally:
        registry.kill()
