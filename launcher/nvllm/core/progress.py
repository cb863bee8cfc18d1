"""The progress interface: long operations report to it, and `cli/terminal.py` draws it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, Protocol

Unit = Literal["B", "files", "tests", "readings", "writes"]


class Task(Protocol):
    """One operation in progress."""

    def advance(self, amount: int) -> None:
        """AMOUNT more units are done."""


class Table(Protocol):
    """A table whose rows are updated during the operation."""

    def row(self, name: str, *cells: str) -> None:
        """Set the CELLS of the row NAME; a new name adds a row."""


class Progress(Protocol):
    """The receiver of reports. Implementations write to stderr only."""

    def note(self, text: str) -> None:
        """Show TEXT as one line."""

    def task(self, label: str, total: int | None, unit: Unit) -> AbstractContextManager[Task]:
        """Open a task of TOTAL units (None: unknown); leaving the context ends it."""

    def table(self, columns: Sequence[str]) -> AbstractContextManager[Table]:
        """Open a table of COLUMNS, of which the first holds the rows' names; it stays when the context is left."""


class Silent:
    """Progress that shows nothing, for tests and library use; it is its own task and its own table."""

    def note(self, text: str) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass

    def row(self, name: str, *cells: str) -> None:
        pass

    @contextmanager
    def task(self, label: str, total: int | None, unit: Unit) -> Iterator[Task]:
        yield self

    @contextmanager
    def table(self, columns: Sequence[str]) -> Iterator[Table]:
        yield self
