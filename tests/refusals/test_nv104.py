"""NV104: a series does not fit its schema, its files, or itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from nvllm.core.refusal import Refusal, Refused
from nvllm.patches import seriesfile
from support.series_samples import (
    ONE,
    SHOWN,
    SOURCE,
    TWO,
    changed,
    entry,
    patch_text,
    series_directory,
    two_patches,
    write,
)


def _refusals(directory: Path) -> tuple[Refusal, ...]:
    with pytest.raises(Refused) as caught:
        seriesfile.load(directory, SHOWN)
    assert caught.value.exit_code == 2
    return tuple(caught.value.refusals)


def _edited(tmp_path: Path, old: str, new: str) -> tuple[Refusal, ...]:
    directory = two_patches(tmp_path)
    file = directory / "series.yaml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))
    return _refusals(directory)


@pytest.mark.parametrize(
    ("old", "new", "where", "expected", "found"),
    [
        ("    status: carried\n", "    status: mine\n", "9: .patches[0].status", "carried, upstream", "mine"),
        ("    summary:", "    sumary:", "12: .patches[0].sumary", "one of", 'unknown name "sumary"'),
        ("base: v1", "base: v2", "3: .base", "v1, the directory's name", "v2"),
        (
            "    requires: [first]",
            "    requires: [third]",
            ".patches[1].requires[0]",
            "earlier",
            "third, which is unknown",
        ),
        ("    requires: [first]", "    requires: [second]", ".patches[1].requires[0]", "earlier", "which is itself"),
        ("    requires: [first]", "    conflicts: [third]", ".patches[1].conflicts[0]", "another", "unknown"),
        ("    requires: [first]", "    conflicts: [second]", ".patches[1].conflicts[0]", "another", "itself"),
        ("- id: second", "- id: first", "17: .patches[1].id", "one id for each", "patch 1 of the series has too"),
        ("touches: [vllm/one.py]", "touches: [vllm/x.py]", "14: .patches[0].touches", "vllm/one.py", "vllm/x.py"),
        ("    proved-by: [tests/unit/test_x.py::test_x]\n", "", ".patches[0].proved-by", "at least one", "nothing"),
        ("    requires: [first]", "    reason: why", ".patches[1].reason", "only a rejected patch", "why"),
    ],
)
def test_an_entry_that_does_not_fit_is_refused(
    tmp_path: Path, old: str, new: str, where: str, expected: str, found: str
) -> None:
    refusals = [one for one in _edited(tmp_path, old, new) if where in one.where]
    assert refusals
    refusal = refusals[0]
    assert refusal.code == "NV104"
    assert refusal.where.startswith(f"{SHOWN}/series.yaml:")
    assert expected in refusal.expected
    assert found in refusal.found
    assert refusal.cure


def test_a_requirement_must_come_earlier(tmp_path: Path) -> None:
    directory = series_directory(tmp_path)
    write(
        directory,
        entry(directory, 1, "first", patch_text(SOURCE, changed(one=ONE)), "    requires: [second]\n"),
        entry(directory, 2, "second", patch_text(SOURCE, changed(two=TWO))),
    )
    (refusal,) = _refusals(directory)
    assert refusal.found == "second, which comes later"
    assert refusal.cure == "move second before first, or take it out"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    directory = two_patches(tmp_path)
    (directory / "0001-first.patch").unlink()
    (refusal,) = _refusals(directory)
    assert (refusal.where, refusal.found) == (f"{SHOWN}/0001-first.patch", "no such file")


def test_a_patch_file_that_no_entry_names_is_refused(tmp_path: Path) -> None:
    directory = two_patches(tmp_path)
    (directory / "0003-third.patch").write_bytes(b"")
    (refusal,) = _refusals(directory)
    assert refusal.where == f"{SHOWN}/0003-third.patch"
    assert refusal.found == "a patch file that it does not name"
    assert "remove it" in refusal.cure


def _outside(files: dict[str, bytes]) -> dict[str, bytes]:
    return {**files, "docs/index.md": b"x\n"}


def _leaving(text: bytes) -> bytes:
    return text.replace(b"vllm/one.py", b"../one.py")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (lambda: patch_text(SOURCE, _outside(SOURCE)), "docs/index.md"),
        (lambda: _leaving(patch_text(SOURCE, changed(one=ONE))), "'../one.py', which has an empty, `.` or `..` part"),
        (lambda: patch_text(SOURCE, changed(one=ONE)).replace(b"vllm/one.py", b".git/config"), "goes into .git"),
        (lambda: patch_text(SOURCE, changed(one=ONE)) + b"junk\n", "'junk'"),
    ],
)
def test_a_patch_that_does_more_than_patches_do_is_refused(
    tmp_path: Path, text: Callable[[], bytes], found: str
) -> None:
    directory = series_directory(tmp_path)
    good = patch_text(SOURCE, changed(one=ONE))
    listed = entry(directory, 1, "first", good)
    (directory / "0001-first.patch").write_bytes(text())
    named, found_digest = (hashlib.sha256(data).hexdigest() for data in (good, text()))
    write(directory, listed.replace(named, found_digest))
    refusals = [refusal for refusal in _refusals(directory) if found in refusal.found]
    assert refusals
    assert refusals[0].where.startswith(f"{SHOWN}/0001-first.patch")


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    directory = two_patches(tmp_path)
    file = directory / "series.yaml"
    file.write_text(file.read_text().replace("requires: [first]", "requires: [third]").replace("base: v1", "base: v2"))
    (directory / "0009-x.patch").write_bytes(b"")
    (directory / "0001-first.patch").write_bytes(b"changed")
    assert [refusal.code for refusal in _refusals(directory)] == ["NV104", "NV104", "NV104", "NV105"]
