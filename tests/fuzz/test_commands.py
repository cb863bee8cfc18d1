"""Command lines, environments and files put together at random: each ends soon, completely, and writes in its places.

`make fuzz` draws thousands of them, the unit tests a few. What was ever found lies in `corpus/commands`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import fuzzed_commands
from support.fuzzed_commands import Case, World

CORPUS = Path(__file__).parent / "corpus/commands"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"))
    yield made
    made.clean()


@given(seed=st.integers(0, 2**32 - 1))
def test_any_command_line_ends_as_it_should(world: World, seed: int) -> None:
    case = fuzzed_commands.drawn(random.Random(seed))
    try:
        world.run(case)
    except BaseException:
        world.clean()  # for the next one
        raise


@pytest.mark.parametrize("found", sorted(path.name for path in CORPUS.glob("*")))
def test_what_was_found_ends_as_it_should(world: World, found: str) -> None:
    world.run(Case.load(CORPUS / found))


def test_a_case_that_breaks_a_rule_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks see a crash, a file in a wrong place and an answer that is no JSON."""
    (world.root / "stray").mkdir()
    world.run(Case(("patch", "list"), {}, 0, b""))

    def stray(_: list[str]) -> int:
        (world.root / "another").mkdir()
        return 0

    monkeypatch.setattr(fuzzed_commands, "main", stray)
    with pytest.raises(AssertionError):
        world.run(Case(("patch", "list"), {}, 0, b""))
    monkeypatch.setattr(fuzzed_commands, "main", lambda _: 4)
    with pytest.raises(AssertionError):
        world.run(Case(("patch", "list"), {}, 0, b""))
    monkeypatch.setattr(fuzzed_commands, "main", lambda _: 0)
    with pytest.raises(ValueError):
        world.run(Case(("patch", "list", "--json"), {}, 0, b""))
    world.clean()
