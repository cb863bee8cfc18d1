"""The groups of files that stay together on one worker have every file that shares what they share."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.groups import GROUPS, IMAGES, PROBED, SERVED

TESTS = Path(__file__).parents[1]
FILES = {
    path.relative_to(TESTS).as_posix(): path.read_text()
    for directory in ("e2e", "series", "refusals")
    for path in (TESTS / directory).glob("test_*.py")
}


@pytest.mark.parametrize(
    ("signs", "files"),
    [
        (r"remove_image\(|images\.remove\(|api\.tag\(|images\.list\(|tagged\(|bisecting\(|built_with\(", IMAGES),
        (r"\bserved: Served\b", SERVED),
        (r"\bbehaviour: |\bstock: dict\[", PROBED),
    ],
)
def test_a_group_has_every_file_that_shares_what_it_shares(signs: str, files: tuple[str, ...]) -> None:
    real = {name for name, text in FILES.items() if re.search("pytest.mark.(engine|series)", text)}
    assert {name for name in real if re.search(signs, FILES[name])} == set(files)


def test_no_file_is_of_two_groups() -> None:
    assert not set(GROUPS["images"]) & set(GROUPS["probed"])
