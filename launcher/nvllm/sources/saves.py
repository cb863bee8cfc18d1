"""Watches a work tree for saves, and asks a running engine to stop at the first."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from nvllm.core.refusal import Refused
from nvllm.sources.worktree import WorkTree

PAUSE = 0.5
"""Seconds between two looks. git needs 0.1 s for the 4,000 files of vLLM; an editor that saves several files, or a
rebase, is waited for until two looks see the same."""

SavedState: TypeAlias = tuple[tuple[str, int, int], ...]
"""Path, size and time of each file that differs from the base, in order. A file that is gone has 0, 0."""


@dataclass
class Saves:
    """Saves in WORK, whose files are compared with those of its commit BASE."""

    work: WorkTree
    base: str
    saved: bool = field(default=False, init=False)
    """Whether the last `watching` has seen a save."""

    def state(self) -> SavedState:
        """Return what stands in the tree. Raises Refused NV610 if git cannot say it, as beside another git command."""
        states = []
        for path in self.work.changed(self.base):
            try:
                status = os.lstat(self.work.directory / path)
            except (FileNotFoundError, NotADirectoryError):
                states.append((path, 0, 0))
            else:
                states.append((path, status.st_size, status.st_mtime_ns))
        return tuple(states)

    @contextlib.contextmanager
    def watching(self, before: SavedState, stop: Callable[[], None]) -> Iterator[None]:
        """Call STOP, once, at the first save after the state BEFORE, while the context lasts."""
        self.saved, ended = False, threading.Event()

        def watch() -> None:
            self.saved = self._wait(before, ended)
            if self.saved:
                stop()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def wait(self, before: SavedState) -> None:
        """Return at the first save after the state BEFORE."""
        self._wait(before, threading.Event())

    def _wait(self, before: SavedState, ended: threading.Event) -> bool:
        last = before
        while not ended.wait(PAUSE):
            with contextlib.suppress(Refused):  # of git beside another git command: the next look tells
                now = self.state()
                if now == last != before:
                    return True
                last = now
        return False
