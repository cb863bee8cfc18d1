"""Saves in a work tree: which are seen, and when."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from nvllm.sources.saves import Saves
from nvllm.sources.worktree import WorkTree

SECONDS = 20


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvllm.sources.saves.PAUSE", 0.02)


def saves_in(directory: Path) -> Saves:
    directory.mkdir()
    (directory / "kept.py").write_text("1\n")
    work = WorkTree(directory)
    work.create()
    return Saves(work, work.commit(["kept.py"], "base", 10**9))


def seen(saves: Saves) -> threading.Event:
    """Return an event that is set when `Saves.wait` returns."""
    before, event = saves.state(), threading.Event()

    def wait() -> None:
        saves.wait(before)
        event.set()

    threading.Thread(target=wait, daemon=True).start()
    return event


def test_every_kind_of_save_is_seen(tmp_path: Path) -> None:
    saves = saves_in(tmp_path / "tree")
    kept, new = saves.work.directory / "kept.py", saves.work.directory / "new.py"
    kinds = (
        ("an edit", lambda: kept.write_text("2\n")),
        ("the same bytes again", lambda: os.utime(kept, (2**31, 2**31))),
        ("back to the base", lambda: kept.write_text("1\n")),
        ("a new file", lambda: new.write_text("")),
        ("a file that is gone", kept.unlink),
    )
    missed = []
    for name, save in kinds:
        event = seen(saves)
        save()
        if not event.wait(SECONDS):
            missed.append(name)
    assert missed == []


def test_what_git_ignores_is_no_save_and_nothing_is_asked_after_the_end(tmp_path: Path) -> None:
    saves, stops = saves_in(tmp_path / "tree"), list[int]()
    (saves.work.git_directory / "info/exclude").write_text("*.pyc\n")
    before = saves.state()
    (saves.work.directory / "kept.pyc").write_text("")
    assert saves.state() == before
    with saves.watching(before, lambda: stops.append(1)):
        pass
    (saves.work.directory / "kept.py").write_text("2\n")
    assert (saves.saved, stops) == (False, [])
    asked = threading.Event()
    with saves.watching(before, asked.set):
        assert asked.wait(SECONDS)
    assert saves.saved
