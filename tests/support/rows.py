"""One test that walks a table: it fails with every row that does not hold, instead of being collected once a row."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

Test = Callable[..., None]


def each_row(names: str | Sequence[str], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Have a test walk ROWS, whose columns have NAMES, as `pytest.mark.parametrize` takes them.

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
