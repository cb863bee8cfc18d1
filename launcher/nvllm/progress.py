"""How long work tells that it moves. The core calls this interface; `report.py` draws it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, Protocol

Unit = Literal["B", "files"]


class Task(Protocol):
    """One piece of work under way."""

    def advance(self, amount: int) -> None:
        """AMOUNT more units are done."""


class Progress(Protocol):
    """Where work reports. Implementations write to stderr only."""

    def note(self, text: str) -> None:
        """Say one finished thing, as one line."""

    def task(self, label: str, total: int | None, unit: Unit) -> AbstractContextManager[Task]:
        """Open a task of TOTAL units (None: unknown); leaving the context ends it."""


class _SilentTask:
    def advance(self, amount: int) -> None:
        pass


class Silent:
    """Progress for callers who do not want any: tests, and library use."""

    def note(self, text: str) -> None:
        pass

    @contextmanager
    def task(self, label: str, total: int | None, unit: Unit) -> Iterator[Task]:
        yield _SilentTask()
