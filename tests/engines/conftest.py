"""The table of what each engine did, whatever failed."""

from __future__ import annotations

import pytest

from support.private_engines import COLUMNS, ROWS


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    cells = [(row.name, row.version, *(row.cells.get(column, "-") for column in COLUMNS)) for row in ROWS]
    lines = [("engine", "version", *COLUMNS), *cells]
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    for line in lines if cells else ():
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        terminalreporter.write_line(text.rstrip())
