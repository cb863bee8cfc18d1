"""Checking that a model on this host is exactly the locked one, and the tree hash of a model.

A model is a set of files: relative path, size and sha256 of each. Its tree hash covers that set and nothing
else; empty directories, times and modes do not count. Two kinds of model are read, without any access to the hub:

* a plain directory, which must hold exactly the locked files, each a regular file with one name;
* a cache of the hub's client, where a snapshot is a directory of links::

      <cache>/models--org--name/snapshots/<40 hex>/config.json -> ../../blobs/<etag>
      <cache>/models--org--name/blobs/<etag>   the bytes; or, from client 2 on, a link to
      <cache>/blobs/<2 hex>/<64 hex>           the bytes, shared by the repositories of this cache

Only these links are followed, by their text. Every file is then opened once, from the root down, without following
links, and hashed from that descriptor. An engine gets the real files of `located`, mounted one by one, so it sees only
locked files.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from nvllm.core import canonical, reading
from nvllm.core.lock import LockedModel, ModelFile
from nvllm.core.progress import Progress, Silent
from nvllm.core.refusal import Refusal, Refused, refuse, refuse_any
from nvllm.models.memo import SAMPLED, SAMPLED_OF_FILE, HashCache

_REVISION = re.compile(r"[0-9a-f]{40}")
_SHARED_BLOB = re.compile(r"blobs/([0-9a-f]{2})/\1[0-9a-f]{62}")
_REGULAR = "a regular file with one name, which not every user may write"


class _UnusableFile(Exception):  # noqa: N818 - what was found, not an error of the program
    """Why a path cannot be a file of a model, and the cure; ``{}`` in it is replaced by the path."""

    def __init__(self, problem: str, cure: str = "put a copy of the file itself in the place of {}") -> None:
        super().__init__(problem)
        self.problem = problem
        self.cure = cure

    def refusal(self, path: Path) -> Refusal:
        name = os.fsencode(path).decode(errors="backslashreplace")  # printable whatever bytes the name has
        return Refusal("NV403", name, _REGULAR, self.problem, self.cure.replace("{}", shlex.quote(name)))


@dataclass(frozen=True, slots=True)
class _ChangedUnseen:
    """A file with the size and times of its last hash, and other bytes from FIRST to LAST."""

    first: int
    last: int


_State: TypeAlias = ModelFile | _UnusableFile | _ChangedUnseen


@dataclass(frozen=True, slots=True)
class _Scan:
    """The files of a model. Messages call its directory TOP. REAL maps its paths to the real files below ROOT."""

    root: Path
    top: Path
    real: Mapping[str, str]
    sizes: Mapping[str, int]
    refusals: tuple[Refusal, ...]


def tree_hash(files: Iterable[ModelFile]) -> str:
    """Return ``sha256:`` and the hash of the set FILES, in whatever order they come."""
    ordered = sorted(files, key=lambda file: file.path.encode())
    return "sha256:" + canonical.digest("nvllm.tree/1", [[file.path, file.size, file.sha256] for file in ordered])


def tree_of(
    directory: Path, *, cure: str = "put the model's files there", progress: Progress | None = None
) -> tuple[str, tuple[ModelFile, ...]]:
    """Return the tree hash of DIRECTORY and its files, sorted by the bytes of their paths.

    Raises Refused: NV401, with CURE, if there is no such directory or no file in it; NV403 for each link,
    special file, file with several names, file or directory that every user may write, and unreadable file.
    """
    scan = _scan_directory(directory, "a directory with a model", cure)
    states = _read_all(scan, scan.real, HashCache.none(), progress or Silent())
    files = [state for state in states.values() if isinstance(state, ModelFile)]
    unread = [state.refusal(scan.top / path) for path, state in states.items() if isinstance(state, _UnusableFile)]
    refuse_any([*scan.refusals, *unread])
    if not files:
        raise refuse("NV401", str(directory), "a directory with a model", "no file in it", cure)
    return tree_hash(files), tuple(sorted(files, key=lambda file: file.path.encode()))


def verify(
    locked: LockedModel,
    directory: Path,
    cache: HashCache,
    *,
    cure: str,
    changed: str | None = None,
    progress: Progress | None = None,
) -> list[Refusal]:
    """Return every difference between the model at DIRECTORY and LOCKED; an empty list if there is none.

    DIRECTORY is the model itself, or for a model of the hub the client's cache. CURE is the command that brings a
    plain directory (a model of the hub has its own), and CHANGED the one that pins what is in it, if it is the user's.
    CACHE saves reading a file twice; it is written.

    NV401: the model is not here. NV402: another revision is. NV403: a file is extra, missing, changed, or
    not a regular file of its own; each of these is one refusal.
    """
    try:
        scan = _scan(locked, directory, cure)
    except Refused as refused:
        return list(refused.refusals)
    again = changed or cure if locked.kind == "directory" else f"{_download(locked)} --force-download"
    away = changed or f"move it out of {shlex.quote(str(scan.top))}"
    expected = {file.path: file for file in locked.files}
    states = _read_all(scan, [path for path in scan.real if path in expected], cache, progress or Silent())
    cache.save()
    refusals = list(scan.refusals)
    unfit = {refusal.where for refusal in refusals}  # already refused, so not missing as well
    extra = scan.real.keys() - expected.keys()
    refusals += [Refusal("NV403", str(scan.top / path), "no such file", "an extra file", away) for path in extra]
    for path, file in expected.items():
        if path in states:
            refusals.extend(_difference(scan.top / path, file, states[path], again))
        elif str(scan.top / path) not in unfit:
            refusals.append(Refusal("NV403", str(scan.top / path), f"{file.size} bytes", "no such file", again))
    return sorted(refusals)


def located(locked: LockedModel, directory: Path, *, cure: str) -> tuple[tuple[str, Path], ...]:
    """Return for each locked file, in the lock's order, its path in the model and the real file to mount.

    It never names a file that is not locked. Raises Refused (NV401, NV402) where
    `verify` would refuse, and NV403 for each locked file without a regular file here. Reads no bytes.
    """
    scan = _scan(locked, directory, cure)
    again = cure if locked.kind == "directory" else _download(locked)
    unfit = {refusal.where: refusal for refusal in scan.refusals}
    missing = [str(scan.top / file.path) for file in locked.files if file.path not in scan.real]
    refuse_any(unfit.get(path, Refusal("NV403", path, _REGULAR, "no such file", again)) for path in missing)
    return tuple((file.path, scan.root / scan.real[file.path]) for file in locked.files)


def _download(locked: LockedModel) -> str:
    return f"hf download {locked.repo} --revision {locked.revision}"


def _difference(path: Path, expected: ModelFile, state: _State, cure: str) -> Iterator[Refusal]:
    if isinstance(state, _UnusableFile):
        yield state.refusal(path)
    elif isinstance(state, _ChangedUnseen):
        bytes_now = f"other bytes from {state.first} to {state.last}, with the size and times of the last hash"
        yield Refusal("NV403", str(path), f"sha256 {expected.sha256[:12]}", bytes_now, cure)
    elif state.size != expected.size:
        yield Refusal("NV403", str(path), f"{expected.size} bytes", f"{state.size} bytes", cure)
    elif state.sha256 != expected.sha256:
        yield Refusal("NV403", str(path), f"sha256 {expected.sha256[:12]}", f"sha256 {state.sha256[:12]}", cure)


def _scan(locked: LockedModel, directory: Path, cure: str) -> _Scan:
    if locked.kind == "directory":
        return _scan_directory(directory, f"the model with tree {locked.tree}", cure)
    return _scan_snapshot(locked, directory)


def _scan_directory(directory: Path, expected: str, cure: str) -> _Scan:
    if not directory.is_dir():
        problem = "not a directory" if directory.exists() else "no such directory"
        raise refuse("NV401", str(directory), expected, problem, cure)
    return _scan_below(directory, ".", lambda _root, link: link)


def _scan_snapshot(locked: LockedModel, cache: Path) -> _Scan:
    assert locked.repo is not None
    repository = f"models--{locked.repo.replace('/', '--')}"
    snapshot = f"{repository}/snapshots/{locked.revision}"
    if not (cache / snapshot).is_dir():
        raise Refused([_no_snapshot(locked, cache / repository)])
    return _scan_below(cache, snapshot, lambda root, link: _blob(root, link, f"{repository}/blobs"))


def _no_snapshot(locked: LockedModel, repository: Path) -> Refusal:
    """Return NV401 if the repository is not here, NV402 if only other revisions are."""
    expected = f"revision {locked.revision}"
    try:
        others = sorted(name for name in os.listdir(repository / "snapshots") if _REVISION.fullmatch(name))
    except OSError:
        others = []
    if not others:
        return Refusal("NV401", str(repository), expected, "no revision of it", _download(locked))
    try:
        main = reading.text(repository / "refs/main", reading.CONFIGURATION).strip()
    except (OSError, ValueError):  # it is for the message alone
        main = ""
    named = f"; refs/main is {main}" if _REVISION.fullmatch(main) else ""
    return Refusal("NV402", str(repository), expected, f"only {', '.join(others)}{named}", _download(locked))


def _scan_below(top: Path, start: str, follow: Callable[[Path, str], str]) -> _Scan:
    """Scan the directory START below TOP; FOLLOW says where below the root the bytes of a path lie."""
    root = top.resolve()
    real: dict[str, str] = {}
    sizes: dict[str, int] = {}
    refusals: list[Refusal] = []
    directories = {start, *(str(parent) for parent in PurePosixPath(start).parents)}

    def skipped(error: OSError) -> None:  # else os.walk passes over what it cannot list
        refusals.append(_unreadable(error).refusal(Path(error.filename)))

    for directory, below, names in os.walk(root / start, onerror=skipped):
        directories.add(os.path.relpath(directory, root))
        for name in (*names, *(name for name in below if os.path.islink(os.path.join(directory, name)))):
            link = os.path.relpath(os.path.join(directory, name), root)
            path = os.path.relpath(link, start)
            try:
                target = follow(root, link)
                sizes[path] = _fit(path, os.lstat(root / target)).st_size
                real[path] = target
                directories.update(str(parent) for parent in PurePosixPath(target).parents)
            except _UnusableFile as unfit:
                refusals.append(unfit.refusal(top / link))
            except FileNotFoundError:
                continue  # the file or its blob was just removed: it is missing
            except OSError as error:
                refusals.append(_unreadable(error).refusal(top / link))
    for directory in sorted(directories):
        mode = os.lstat(root / directory).st_mode
        # In such a directory, unless it is sticky, any user could replace a file after it was verified.
        if stat.S_ISDIR(mode) and mode & 0o002 and not mode & stat.S_ISVTX:
            problem = f"a directory that every user may write, mode {stat.S_IMODE(mode):04o}"
            refusals.append(_UnusableFile(problem, "chmod o-w {}").refusal(top / directory))
    return _Scan(root, top / start, real, sizes, tuple(refusals))


def _blob(root: Path, link: str, blobs: str) -> str:
    """Return where below ROOT the bytes of LINK, a file of a snapshot, lie. Raises _UnusableFile.

    A snapshot may hold files itself, where the client was told to make no links. Links are resolved as text.
    """
    if not os.path.islink(root / link):
        return link
    blob = _target(root, link)
    if os.path.dirname(blob) != blobs:
        raise _UnusableFile(
            f"a link to {os.readlink(root / link)}, which is no blob of the repository", "move it away: {}"
        )
    if not os.path.islink(root / blob):
        return blob
    shared = _target(root, blob)
    if not _SHARED_BLOB.fullmatch(shared):
        raise _UnusableFile(
            f"a link to a blob that is a link to {os.readlink(root / blob)}",
            f"move it away: {shlex.quote(str(root / blob))}",
        )
    return shared


def _target(root: Path, link: str) -> str:
    return os.path.relpath(os.path.normpath(os.path.join(root, os.path.dirname(link), os.readlink(root / link))), root)


def _fit(path: str, info: os.stat_result) -> os.stat_result:
    """Return INFO if the file that it describes can be a file of a model, as PATH. Raises _UnusableFile."""
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise _UnusableFile("a name that is not UTF-8", "rename it, or lock the model without it") from error
    if not stat.S_ISREG(info.st_mode):
        raise _UnusableFile(reading.NOT_REGULAR[stat.S_IFMT(info.st_mode)])
    if info.st_nlink > 1:
        raise _UnusableFile(f"a file with {info.st_nlink} names (hard links)")
    if info.st_mode & 0o002:
        raise _UnusableFile(f"a file that every user may write, mode {stat.S_IMODE(info.st_mode):04o}", "chmod o-w {}")
    return info


def _unreadable(error: OSError) -> _UnusableFile:
    if error.errno in {errno.ENOTDIR, errno.ELOOP}:
        return _UnusableFile("a path through a link", "put a real directory in the place of the link on the way to {}")
    return _UnusableFile(f"cannot be read: {error.strerror}", "chmod u+rX {}")


def _opened(root: Path, path: str) -> FileIO:
    """Open PATH below ROOT for reading, following no link on the way."""
    *directories, name = path.split("/")
    with ExitStack() as stack:
        # O_PATH: a directory that may be entered need not be one that may be listed.
        above = os.open(root, os.O_PATH | os.O_DIRECTORY)
        stack.callback(os.close, above)
        for directory in directories:
            above = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
            stack.callback(os.close, above)
        # Not blocking: opening a FIFO that has replaced the file must return, so that it is refused.
        return FileIO(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=above))


def _read(root: Path, target: str, path: str, cache: HashCache, sampled: int) -> _State:
    """Return the file at TARGET below ROOT as PATH of its model, or what is wrong with it.

    If CACHE knows its hash, only SAMPLED blocks are read. If one of these differs, the whole file is.
    """
    started = cache.clock()
    try:
        with _opened(root, target) as stream:
            _fit(path, os.fstat(stream.fileno()))
            os.fsync(stream.fileno())  # from here on every write moves the change time; see `memo.py`
            before = _fit(path, os.fstat(stream.fileno()))
            sha256 = cache.get(before)
            changed = None if sha256 is None else cache.sample(stream.fileno(), before, sampled)
            read = cache.hashed(stream, before) if sha256 is None or changed is not None else None
            after = os.fstat(stream.fileno())
    except _UnusableFile as unfit:
        return unfit
    except OSError as error:
        return _unreadable(error)
    if HashCache.key(after) != HashCache.key(before):
        return _UnusableFile("a file that changed while it was read", "end what writes {}, then run again")
    if read is None:
        return ModelFile(path, before.st_size, sha256 or "")
    file = ModelFile(path, before.st_size, read.sha256)
    if changed is None:
        cache.put(before, read, started)
        return file
    cache.forget(before)
    return file if read.sha256 == sha256 else _ChangedUnseen(*changed)


def _read_all(scan: _Scan, paths: Iterable[str], cache: HashCache, progress: Progress) -> dict[str, _State]:
    """Return the result of `_read` for each of PATHS. Threads help, because hashlib releases the interpreter's lock."""
    largest_first = sorted(paths, key=lambda path: (-scan.sizes[path], path))
    sampled = max(1, min(SAMPLED_OF_FILE, SAMPLED // max(1, len(largest_first))))
    states: dict[str, _State] = {}
    with (
        ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool,
        progress.task("reading the model", sum(scan.sizes[path] for path in largest_first), "B") as task,
    ):
        reading = {pool.submit(_read, scan.root, scan.real[path], path, cache, sampled): path for path in largest_first}
        try:
            for done in as_completed(reading):
                states[reading[done]] = done.result()
                task.advance(scan.sizes[reading[done]])
        finally:
            pool.shutdown(wait=True, cancel_futures=True)  # an interrupt waits only for the files that are being read
    return states
