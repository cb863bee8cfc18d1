"""NV604, key file unfit: a file with the API key that the engine cannot read, that others can, or that has no key."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.core.spec import Access
from nvllm.serve import access

KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    path.chmod(0o600)
    return path


def found(path: Path, user: int | None = None) -> list[str]:
    user = os.geteuid() if user is None else user
    refusals = access.refusals(Access(str(path)), f"{user}:1000", path.parent / "project")
    assert {one.code for one in refusals} <= {"NV604"}
    assert all(KEY not in str(one) for one in refusals)
    return [one.found for one in refusals]


def test_a_fit_file(key_file: Path) -> None:
    assert found(key_file) == []
    assert access.header(Access(str(key_file))) == {"Authorization": f"Bearer {KEY}"}
    assert access.header(Access()) == {}


def replaced(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def test_each_kind_of_unfit_file(key_file: Path, tmp_path: Path) -> None:
    spoiled: list[tuple[Callable[[Path], object], str]] = [
        (lambda path: path.chmod(0o640), "mode 0640"),
        (lambda path: path.chmod(0o604), "mode 0604"),
        (lambda path: path.chmod(0o200), "mode 0200"),
        (lambda path: path.write_text("short"), "5 characters"),
        (lambda path: path.write_text("x" * 513), "513 characters"),
        (lambda path: path.write_text(f"{KEY}\n{KEY}\n"), "a space, or a character that cannot be printed"),
        (lambda path: path.write_text(f"{KEY} {KEY}"), "a space, or a character that cannot be printed"),
        (lambda path: path.write_bytes(KEY.encode() + b"\xff"), "bytes that are not ASCII"),
        (lambda path: replaced(path, lambda _: None), "No such file or directory"),
        (lambda path: replaced(path, os.mkfifo), "something else, or a link"),
        (lambda path: replaced(path, lambda one: one.symlink_to(tmp_path / "elsewhere")), "something else, or a link"),
    ]
    seen = []
    for spoil, _ in spoiled:
        if key_file.is_symlink() or key_file.exists():
            key_file.unlink()
        key_file.write_text(KEY)
        key_file.chmod(0o600)
        spoil(key_file)
        seen.append(found(key_file))
    assert seen == [[expected] for _, expected in spoiled]


def test_a_file_of_another_user(key_file: Path) -> None:
    other = os.geteuid() + 1
    assert found(key_file, other) == [f"a file of user {os.geteuid()}"]
    (refusal,) = access.refusals(Access(str(key_file)), f"{other}:{other}", Path("/nowhere"))
    assert refusal.cure == f"sudo chown {other} {key_file}"


def test_a_file_of_the_project(key_file: Path) -> None:
    """Version control would keep it."""
    (refusal,) = access.refusals(Access(str(key_file)), f"{os.geteuid()}:1", key_file.parent)
    assert (refusal.code, refusal.found) == ("NV604", "a file that version control may keep")


def test_a_file_that_was_spoiled_after_the_start(key_file: Path) -> None:
    key_file.write_text("")
    with pytest.raises(Refused) as caught:
        access.header(Access(str(key_file)))
    assert [one.code for one in caught.value.refusals] == ["NV604"]
