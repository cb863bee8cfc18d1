"""Text for people: refusals, tables, and progress on stderr.

The core reports through `core/progress.py` and does not know this module. The functions that draw with rich import it
themselves, because most commands never draw and importing it takes time.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from nvllm.core.progress import Progress, Silent, Table, Task, Unit
from nvllm.core.refusal import Refusal, counted

if TYPE_CHECKING:
    import rich.progress
    import rich.table

SHOWN_AFTER = 2.0
"""Seconds of work after which a bar appears."""

LINE_EVERY = 5.0
"""Seconds between two lines about the same work without a terminal."""

_BOLD = "\x1b[1m"
_RED = "\x1b[31m"
_GREEN = "\x1b[32m"
_PLAIN = "\x1b[0m"


def wants_color(env: Mapping[str, str], *, tty: bool) -> bool:
    """Return whether to use colour: NO_COLOR in ENV overrides FORCE_COLOR, which overrides TTY."""
    if env.get("NO_COLOR"):
        return False
    if env.get("FORCE_COLOR"):
        return True
    return tty and env.get("TERM") != "dumb"


def printable(text: str) -> str:
    """Return TEXT with control characters escaped, so that quoted text cannot control the terminal."""
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


def size(amount: float) -> str:
    """Return AMOUNT bytes for people, in decimal units: ``1.2 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    raise AssertionError("the last unit fits every amount")


def amount(done: float, unit: Unit) -> str:
    """Return DONE units for people: ``1.2 GB`` or ``12 files``."""
    return size(done) if unit == "B" else f"{done:.0f} {unit}"


def refusal_text(refusals: Sequence[Refusal], *, color: bool) -> str:
    """Return REFUSALS as text for stderr, an entry for each cause. Values are not wrapped, so they can be copied."""
    bold, red, green, plain = (_BOLD, _RED, _GREEN, _PLAIN) if color else ("", "", "", "")
    blocks = []
    for refusal in counted(refusals):
        lines = [f"{red}{bold}{refusal.code}{plain} {bold}{refusal.title}{plain}"]
        for label, value in (
            ("where", refusal.where),
            ("expected", refusal.expected),
            ("found", refusal.found),
            ("cure", refusal.cure),
        ):
            text = printable(value).replace("\n", "\n" + " " * 12)
            lines.append(f"  {label:<8}  " + (f"{green}{text}{plain}" if label == "cure" else text))
        blocks.append("\n".join(lines))
    ending = [f"{len(blocks)} refusals"] if len(blocks) > 1 else []
    return "\n\n".join([*blocks, *ending]) + "\n"


def print_refusals(refusals: Sequence[Refusal], *, color: bool) -> None:
    """Print REFUSALS on stderr."""
    sys.stderr.write(refusal_text(refusals, color=color))
    sys.stderr.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, color: bool) -> None:
    """Print ROWS under COLUMNS on stdout: drawn by rich on a terminal, as aligned text in a pipe.

    rich cuts and wraps lines at the width that it detects, which would break scripts that read a pipe. On a terminal
    that is too narrow for the longest word of each column, each row is a block with a line for each column.
    """
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console(no_color=not color, highlight=False)
        widths = _widths([columns, *rows], console.width - _GAP * len(columns))
        if widths is not None:
            console.print(_drawn(columns, rows, widths))
            return
        for row in rows:
            console.print(_block(columns, row), "")
        return
    lines = [list(columns), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


_GAP = 2
"""Spaces behind each column."""


def _widths(rows: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Return the width of each column of ROWS in ROOM characters, or None if that breaks a word of any."""
    columns = [[printable(cell) for cell in column] for column in zip(*rows, strict=True)]
    widths = [max((len(word) for cell in column for word in cell.split()), default=0) for column in columns]
    longest = [max(map(len, column)) for column in columns]
    left = room - sum(widths)
    if left < 0:
        return None
    # Those that need least get it first: a long text is easier to read on several lines than a list of short ones.
    for index in sorted(range(len(columns)), key=lambda column: longest[column] - widths[column]):
        more = min(left, longest[index] - widths[index])
        widths[index] += more
        left -= more
    return widths


def _block(columns: Sequence[str], row: Sequence[str]) -> rich.table.Table:
    """Return ROW as lines of a column's name and its cell."""
    import rich.table
    from rich.text import Text

    table = rich.table.Table(box=None, pad_edge=False, show_header=False, padding=(0, _GAP, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for column, cell in zip(columns, row, strict=True):
        table.add_row(Text(column), Text(printable(cell)))
    return table


def _drawn(columns: Sequence[str], rows: Iterable[Sequence[str]], widths: Sequence[int] = ()) -> rich.table.Table:
    """Return ROWS under COLUMNS, of WIDTHS if any are given, as a table of rich. A row may lack its last cells."""
    import rich.table
    from rich.text import Text

    table = rich.table.Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(Text(column), overflow="fold", width=widths[index] if widths else None)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def progress(env: Mapping[str, str], *, quiet: bool, color: bool) -> Progress:
    """Return the progress for stderr: silent if QUIET, bars on a terminal, plain lines elsewhere."""
    if quiet:
        return Silent()
    if sys.stderr.isatty() and env.get("TERM") != "dumb":
        return Drawn(color=color)
    return Lines(sys.stderr, time.monotonic)


class _LineTask:
    """A task that is reported in lines, at most one in LINE_EVERY seconds. Any thread may advance it."""

    def __init__(self, lines: Lines, label: str, total: int | None, unit: Unit) -> None:
        self._lines = lines
        self._label = label
        self._total = total
        self._unit = unit
        self._lock = threading.Lock()
        self._done = 0
        self._started = self._said = lines.clock()

    def advance(self, amount: int) -> None:
        with self._lock:
            self._done += amount
            now = self._lines.clock()
            if now - self._said < LINE_EVERY:
                return
            self._said = now
            text = self._text(now)
        self._lines.note(f"{self._label}: {text}")

    def _text(self, now: float) -> str:
        rate = self._done / (now - self._started)
        per_second = f"{rate / 1e6:.1f} MB/s" if self._unit == "B" else f"{rate:.1f} {self._unit}/s"
        if not self._total:
            return f"{amount(self._done, self._unit)}, {per_second}"
        return f"{self._done * 100 // self._total} % of {amount(self._total, self._unit)}, {per_second}"

    def end(self, word: str) -> None:
        """Report WORD (done, stopped), the amount, and the time that it took."""
        with self._lock:
            moved = f"{amount(self._done, self._unit)} " if self._done else ""
            seconds = self._lines.clock() - self._started
        self._lines.note(f"{self._label}: {word}, {moved}in {seconds:.1f} s")


class Lines:
    """Progress as plain lines, for logs and pipes."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._stream = stream
        self.clock = clock

    def note(self, text: str) -> None:
        # One write for each line, so that the lines of several threads do not mix.
        self._stream.write(printable(text) + "\n")
        self._stream.flush()

    @contextmanager
    def task(self, label: str, total: int | None, unit: Unit) -> Iterator[Task]:
        self.note(label)
        task = _LineTask(self, label, total, unit)
        word = "stopped"
        try:
            yield task
            word = "done"
        finally:
            task.end(word)

    @contextmanager
    def table(self, columns: Sequence[str]) -> Iterator[Table]:
        yield _LineTable(self, columns)


class _LineTable:
    """A table that is reported in lines: one for each change of a row, with the names of the columns."""

    def __init__(self, lines: Lines, columns: Sequence[str]) -> None:
        self._lines = lines
        self._columns = columns

    def row(self, name: str, *cells: str) -> None:
        state, *rest = cells
        named = [f"{column} {cell}" for column, cell in zip(self._columns[2:], rest, strict=False) if cell]
        self._lines.note(f"{name}: {', '.join([state, *named])}")


class _DrawnTable:
    """A table that is redrawn with the bars, below the notes and above the tasks."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._rows: dict[str, tuple[str, ...]] = {}

    def row(self, name: str, *cells: str) -> None:
        self._rows = {**self._rows, name: cells}  # replaced as a whole, because another thread draws it

    def drawn(self, last: int | None = None) -> rich.table.Table:
        """Return the table, or only its LAST rows, which are the ones that change."""
        rows = [(name, *cells) for name, cells in self._rows.items()]
        return _drawn(self._columns, rows if last is None else rows[-last:])


class _DrawnTask:
    def __init__(self, bars: rich.progress.Progress, task: rich.progress.TaskID) -> None:
        self._bars = bars
        self._task = task

    def advance(self, amount: int) -> None:
        self._bars.advance(self._task, amount)  # rich takes its own lock


class Drawn:
    """Progress as bars on a terminal. Work that ends within SHOWN_AFTER seconds never appears."""

    def __init__(self, *, color: bool) -> None:
        self._color = color
        self._lock = threading.Lock()
        self._open = 0
        self._bars: rich.progress.Progress | None = None
        self._tables: list[_DrawnTable] = []

    def _begin(self) -> rich.progress.Progress:
        """Return the bars, and start to draw them with the first open task."""
        with self._lock:
            if self._bars is None:
                self._bars = _bars(self._tables, color=self._color)
            self._open += 1
            if self._open == 1:
                self._bars.start()
            return self._bars

    def _end(self, bars: rich.progress.Progress) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                bars.stop()

    def note(self, text: str) -> None:
        with self._lock:
            bars = self._bars if self._open else None
        if bars is None:
            print(printable(text), file=sys.stderr, flush=True)
        else:
            bars.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def task(self, label: str, total: int | None, unit: Unit) -> Iterator[Task]:
        bars = self._begin()
        started = time.monotonic()
        number = bars.add_task(printable(label), total=total, unit=unit)
        try:
            yield _DrawnTask(bars, number)
            moved = bars.tasks[bars.task_ids.index(number)].completed
        finally:
            bars.remove_task(number)
            self._end(bars)
        seconds = time.monotonic() - started
        if seconds >= SHOWN_AFTER:
            self.note(f"{label}: done, {amount(moved, unit) + ' ' if moved else ''}in {seconds:.1f} s")

    @contextmanager
    def table(self, columns: Sequence[str]) -> Iterator[Table]:
        table = _DrawnTable(columns)
        bars = self._begin()
        self._tables.append(table)
        try:
            yield table
        finally:
            self._tables.remove(table)
            bars.refresh()  # the bars are erased at the end; the printed table stays
            bars.console.print(table.drawn())
            self._end(bars)


def _bars(tables: Sequence[_DrawnTable], *, color: bool) -> rich.progress.Progress:
    """Return rich's bars below TABLES, with nvllm's columns, for tasks older than SHOWN_AFTER."""
    import rich.progress
    from rich.console import Console, RenderableType
    from rich.progress import BarColumn, ProgressColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class AmountColumn(ProgressColumn):
        """The amount done, the total, and the speed."""

        def render(self, task: rich.progress.Task) -> Text:
            unit: Unit = task.fields["unit"]
            whole = f" of {amount(task.total, unit)}" if task.total else ""
            speed = f", {amount(task.speed, unit)}/s" if task.speed else ""
            return Text(f"{amount(task.completed, unit)}{whole}{speed}")

    console = Console(stderr=True, no_color=not color)

    class LateBars(rich.progress.Progress):
        def get_renderables(self) -> Iterator[RenderableType]:
            room = max(1, console.height // 2)  # rich would cut off what does not fit
            yield from (table.drawn(room) for table in tables)
            lasting = [task for task in self.tasks if (task.elapsed or 0) >= SHOWN_AFTER]
            if lasting:
                yield self.make_tasks_table(lasting)

    return LateBars(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        AmountColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
