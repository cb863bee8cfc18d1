"""The security updates that a lock does not have: what `nvllm lock --check` and `doctor` remind of.

A reminder is no refusal. A locked image is the same everywhere for as long as anybody has its files, and which
version of a package is in it is the choice of whoever locks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nvllm import debian
from nvllm import lock as lockfmt
from nvllm.canonical import Json
from nvllm.debian import Update
from nvllm.indexes import Sources
from nvllm.lock import Lock, LockedDebianBase
from nvllm.refusal import Refused


@dataclass(frozen=True, slots=True)
class Reminder:
    """What is NEWER in the security suite of a lock's base; UNKNOWN says why nobody could be asked, or is None."""

    newer: tuple[Update, ...]
    unknown: str | None
    cure: str

    @property
    def data(self) -> Json:
        rows: list[Json] = [{"name": one.name, "locked": one.locked, "newer": one.newer} for one in self.newer]
        return {"newer": rows, "unknown": self.unknown}

    @property
    def words(self) -> Iterator[str]:
        if self.unknown is not None:
            yield f"security updates: could not ask: {self.unknown}"
        elif not self.newer:
            yield "security updates: the lock lacks none"
        else:
            packages = "1 package has" if len(self.newer) == 1 else f"{len(self.newer)} packages have"
            yield f"security updates: {packages} a newer version; to take it, {self.cure}"
            yield from (f"  {one.name} {one.locked} -> {one.newer}" for one in self.newer)


def remind(lock: Lock, env: Mapping[str, str], *, offline: bool) -> Reminder | None:
    """Return what is newer than LOCK in the security suite of its base, None if that is an image of a registry."""
    base = lock.base
    if not isinstance(base, LockedDebianBase):
        return None
    again = f"{lockfmt.command(lock.image, lock.platform)} --update debs"
    cure = again if base.security else f"write `security: true` below `base:` in images/{lock.image}.yaml, and {again}"
    if offline:
        return Reminder((), "--offline", cure)
    try:
        mirrors = Sources.of(lock, env).mirrors().of(f"{base.suite}-security")
        architecture = lock.platform.partition("/")[2]
        return Reminder(debian.updates(base.suite, base.packages, architecture, mirrors), None, cure)
    except Refused as refused:
        return Reminder((), "; ".join(f"{one.where}: {one.found}" for one in refused.refusals), cure)
