"""Whether the user as whom the engine runs can read the files that it is given: models, adapters, chat template.

Each file is mounted by itself, so the directories above it on this host do not matter in the container.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable
from pathlib import Path

from nvllm.core.plan import ACCESS, ACCESS_PROGRAM, KEY_FILE, RUN_DIRECTORY, Mount
from nvllm.core.refusal import Refusal

_MADE_READABLE = frozenset({RUN_DIRECTORY, f"{ACCESS}/{ACCESS_PROGRAM}", KEY_FILE})
"""Targets of what nvllm gives to the engine's user itself, and of the key, which has a refusal of its own (NV604)."""

_ACCESS_LIST = "system.posix_acl_access"


def refusals(mounts: Iterable[Mount], user: str) -> list[Refusal]:
    """Return NV526 for each model, adapter and template in MOUNTS with files that USER, ``uid:gid``, cannot read."""
    uid, gid = (int(number) for number in user.split(":"))
    closed: dict[tuple[str, ...], list[tuple[Path, os.stat_result]]] = {}
    for mount in mounts:
        if mount.target in _MADE_READABLE:
            continue
        try:
            status = os.stat(mount.source)  # follows a link, as a mount does
        except OSError:  # that it is missing is another refusal
            continue
        if not _can_read(status, uid, gid) and not _has_access_list(mount.source):
            model = tuple(mount.target.split("/")[:3])  # of /models/NAME/FILE; a template has a directory of its own
            closed.setdefault(model, []).append((Path(mount.source), status))
    return [_refusal(files, uid) for files in closed.values()]


def _can_read(status: os.stat_result, uid: int, gid: int) -> bool:
    """Return what the kernel decides: the engine has no capability, and no group but GID."""
    if status.st_uid == uid:
        return bool(status.st_mode & stat.S_IRUSR)
    return bool(status.st_mode & (stat.S_IRGRP if status.st_gid == gid else stat.S_IROTH))


def _has_access_list(path: str) -> bool:
    """Return whether the file at PATH has an access list. It may let in whom the mode does not; the gate tries it."""
    try:
        return _ACCESS_LIST in os.listxattr(path)
    except OSError:
        return False


def _refusal(files: list[tuple[Path, os.stat_result]], uid: int) -> Refusal:
    paths = [path for path, _ in files]
    alone = len(files) == 1
    where = str(paths[0]) if alone else os.path.commonpath([path.parent for path in paths])
    first, status = files[0]
    mode = f"mode {stat.S_IMODE(status.st_mode):04o} of user {status.st_uid}"
    problem = mode if alone else f"{len(files)} files that it cannot; {first.name} has {mode}"
    # Who may not change the mode of a file asks root to.
    owned = os.geteuid() == 0 or all(status.st_uid == os.geteuid() for _, status in files)
    change = ["chmod", "a+r", where] if alone else ["chmod", "-R", "a+rX", where]
    expected = f"{'a file' if alone else 'files'} that user {uid}, as whom the engine runs, can read"
    return Refusal("NV526", where, expected, problem, shlex.join(change if owned else ["sudo", *change]))
