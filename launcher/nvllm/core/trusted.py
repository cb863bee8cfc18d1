"""Directories and files that nvllm believes, because nobody else can have written them.

That a file is absent is an answer too, such as "nothing is revoked". So a name counts as absent only where its parent
is a real directory that only trusted users can write. A link, a file in the place of a directory, another owner, or a
mode by which others can write is a refusal.
"""

from __future__ import annotations

import os
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path

from nvllm.core import reading
from nvllm.core.refusal import Refused, refuse

_DIRECTORY = "a real directory that no other user can write"
_FILE = "a regular file that no other user can write"


@dataclass(frozen=True, slots=True)
class Trusted:
    """What lies below ROOT, a directory. Root and this user may own it, and OWNER, a uid, if that is not None.

    WRITABLE are the bits of a mode that must not be set. Refusals have CODE. ROOT itself may be reached through a link,
    and its group may write to it.
    """

    root: Path
    code: str
    writable: int
    owner: int | None = None

    def directory(self, path: Path) -> bool:
        """Return whether the directory PATH, which is ROOT or lies below it, is there.

        Raises Refused if anything on the way from ROOT to it is no real directory, or is not to be trusted.
        """
        try:
            root = os.stat(self.root)
        except FileNotFoundError:
            above = next(each for each in (self.root, *self.root.parents) if os.path.lexists(each))
            if above != self.root and above.is_dir():
                return False
            raise self._replaced(above, _DIRECTORY, "a link to nothing") from None
        except OSError as error:
            raise self._closed(self.root, _DIRECTORY, error) from error
        self._judge(self.root, root, stat.S_IFDIR, self.writable & 0o002)
        inside = self.root
        for name in path.relative_to(self.root).parts:
            inside = inside / name
            info = self._status(inside, _DIRECTORY)
            if info is None:
                return False
            self._judge(inside, info, stat.S_IFDIR, self.writable)
        return True

    def private(self) -> None:
        """Raise Refused unless ROOT itself is a real directory of this user's that no other user can write."""
        info = self._status(self.root, _DIRECTORY)
        if info is None or info.st_uid != os.geteuid():
            problem = "nothing" if info is None else f"one of user {info.st_uid}"
            raise self._replaced(self.root, _DIRECTORY, problem)
        self._judge(self.root, info, stat.S_IFDIR, self.writable)

    def file(self, path: Path) -> bool:
        """Return whether the file PATH is there. Raises as `directory` does, and for a file to distrust."""
        info = self._status(path, _FILE) if self.directory(path.parent) else None
        if info is None:
            return False
        self._judge(path, info, stat.S_IFREG, self.writable)
        return True

    def content(self, path: Path, most: int) -> bytes | None:
        """Return the content of the file PATH, at most MOST bytes, or None if it is absent. Raises as `file` does."""
        if not self.file(path):
            return None
        try:
            return reading.unlinked(path, most)
        except OSError as error:
            raise self._closed(path, _FILE, error) from error

    def listed(self, directory: Path, pattern: str) -> list[Path]:
        """Return the entries of DIRECTORY whose names match PATTERN, sorted; none if it is absent. Raises Refused."""
        if not self.directory(directory):
            return []
        try:
            return reading.listed(directory, pattern)
        except OSError as error:
            raise self._closed(directory, _DIRECTORY, error) from error

    def _status(self, path: Path, expected: str) -> os.stat_result | None:
        try:
            return os.lstat(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._closed(path, expected, error) from error

    def _judge(self, path: Path, info: os.stat_result, kind: int, writable: int) -> None:
        """Raise Refused unless PATH with the status INFO is of KIND, of a trusted user, without the bits WRITABLE."""
        expected = _DIRECTORY if kind == stat.S_IFDIR else _FILE
        if stat.S_IFMT(info.st_mode) != kind:
            raise self._replaced(path, expected, reading.NOT_REGULAR.get(stat.S_IFMT(info.st_mode), "a file"))
        if info.st_uid not in {0, os.geteuid(), self.owner}:
            raise self._replaced(path, expected, f"one of user {info.st_uid}")
        if info.st_mode & writable:
            others = "o-w" if writable == 0o002 else "go-w"
            cure = shlex.join(["chmod", others, str(path)])
            raise refuse(self.code, str(path), expected, f"mode {stat.S_IMODE(info.st_mode):04o}", cure)

    def _replaced(self, path: Path, expected: str, problem: str) -> Refused:
        away = shlex.join(["mv", str(path), f"{path}.other"])
        cure = f"find out who put it there, and restore what was there; or, if nothing was: {away}"
        return refuse(self.code, str(path), expected, problem, cure)

    def _closed(self, path: Path, expected: str, error: OSError) -> Refused:
        """Return the refusal of PATH because of ERROR; of the directory on the way that this user cannot enter."""
        closed = next((above for above in reversed(path.parents) if not os.access(above, os.X_OK)), path)
        bits, expected = ("a+rx", _DIRECTORY) if closed.is_dir() else ("a+r", expected)
        cure = shlex.join(["chmod", bits, str(closed)])
        return refuse(self.code, str(closed), expected, error.strerror or str(error), cure)


def state(root: Path, code: str) -> Trusted:
    """Return the trust in what this host remembers below ROOT: it is this user's alone."""
    return Trusted(root, code, 0o022)


def project(root: Path, code: str) -> Trusted:
    """Return the trust in a project at ROOT: its owner's, and its group may write, as git does it with umask 002."""
    try:
        owner = os.stat(root).st_uid
    except OSError:  # `Trusted.directory` says what is wrong with it
        owner = None
    return Trusted(root, code, 0o002, owner)
