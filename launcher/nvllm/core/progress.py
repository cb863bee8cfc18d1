"""How long work tells that it moves. The core calls this interface; `cli/report.py` draws it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, Protocol

Unit = Literal["B", "files"]


class Task(Protocol):
    """One piece of work under way."""

    def advance(self, amount: int) -> None:
        """AMOUNT more units are done."""


class Table(Protocol):
    """Rows that are filled in while the work goes on."""

    def row(self, name: str, *cells: str) -> None:
        """Let CELLS be what the row NAME says, in the place of what it said; a new name is a new row."""


class Progress(Protocol):
    """Where work reports. Implementations write to stderr only."""

    def note(self, text: str) -> None:
        """Say one finished thing, as one line."""

    def task(self, label: str, total: int | None, unit: Unit) -> AbstractContextManager[Task]:
        """Open a task of TOTAL units (None: unknown); leaving the context ends it."""

    def table(self, columns: Sequence[str]) -> AbstractContextManager[Table]:
        """Open a table of COLUMNS, of which the first holds the rows' names; it stays when the context is left."""


class _SilentTask:
    def advance(self, amount: int) -> None:
        pass


class _SilentTable:
    def row(self, name: str, *cells: str) -> None:
        pass


class Silent:
    """Progress for callers who do not want any: tests, and library use."""

    def note(self, text: str) -> None:
        pass

    @contextmanager
    def task(self, label: str, total: int | None, unit: Unit) -> Iterator[Task]:
        yield _SilentTask()

    @contextmanager
    def table(self, columns: Sequence[str]) -> Iterator[Table]:
        yield _SilentTable()
