"""The patches that let a test pass without the patch that names it."""

from __future__ import annotations

from collections.abc import Sequence

from nvllm.trials import proving

OTHERS = tuple("abcdefgh")
CASES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("a", ("a",)),  # it passes with any of these patches, and all of them cover it
    ("e", ("e",)),
    ("h", ("h",)),
    ("bg", ("g", "b")),
    ("aeh", ("h", "e", "a")),
    ("", ()),
)


def test_every_patch_that_covers_a_test_is_named() -> None:
    for enough, expected in CASES:
        asked: list[tuple[str, ...]] = []

        def fails(names: Sequence[str], enough: str = enough, asked: list[tuple[str, ...]] = asked) -> bool:
            asked.append(tuple(names))
            return bool(enough) and not {*enough} - {*names}

        assert {*proving.covering(OTHERS, fails)} == {*expected}, enough
        assert len(asked) <= 1 + 4 * len(enough), enough  # by halving
    assert proving.covering((), lambda names: True) == ()
