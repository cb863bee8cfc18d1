"""Tables of tests: one test that walks its rows, and rows of which some are for the thorough or the long runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

Test = Callable[..., None]


def each_row(names: str | Sequence[str], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Have a test walk ROWS, whose columns have NAMES, as `pytest.mark.parametrize` takes them.

    It fails with every row that does not hold, instead of being collected once a row.
    All rows share the test's fixtures, so a row must not see what the one before it has left there.
    """
    several = not isinstance(names, str)
    columns = [names] if isinstance(names, str) else [*names]
    table_rows = [dict(zip(columns, row if several else (row,), strict=True)) for row in rows]
    assert table_rows

    def walking(test: Test) -> Test:
        def walk(**fixtures: Any) -> None:
            failures = []
            for number, row in enumerate(table_rows, 1):
                try:
                    test(**fixtures, **row)
                except (AssertionError, pytest.fail.Exception) as error:
                    failures.append(f"row {number}, {repr(row)[:300]}:\n{error}")
            assert not failures, "\n\n".join([f"{len(failures)} of {len(table_rows)} rows", *failures])

        signature = inspect.signature(test)
        left = [one for name, one in signature.parameters.items() if name not in columns]
        vars(walk).update(vars(test), __signature__=signature.replace(parameters=left))
        walk.__name__, walk.__qualname__ = test.__name__, test.__qualname__
        walk.__doc__, walk.__module__ = test.__doc__, test.__module__
        return walk

    return walking


def samples(unit: Iterable[Any], thorough: Iterable[Any]) -> list[Any]:
    """Return the rows of a table: those of UNIT for `make unit`, and those of THOROUGH, which are alike, not."""
    marked = [
        pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.thorough) for row in thorough
    ]
    return [*unit, *marked]


def longer(names: str | Sequence[str], thorough: Iterable[Any], long: Iterable[Any]) -> pytest.MarkDecorator:
    """Collect a simulation for each row: those of THOROUGH in `make test`, those of LONG in `make test-long`."""
    several = not isinstance(names, str)
    rows = [(row, pytest.mark.thorough) for row in thorough] + [(row, pytest.mark.long) for row in long]
    return pytest.mark.parametrize(
        names, [pytest.param(*(row if several else (row,)), marks=mark) for row, mark in rows]
    )
