"""Security updates that a lock lacks, for `nvllm lock --check` and `doctor`.

They are reported and never refused: the versions in an image are the choice of whoever locks it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from nvllm.core.canonical import Json
from nvllm.core.lock import Lock, LockedDebianBase, command
from nvllm.core.refusal import Refused
from nvllm.sources import debian
from nvllm.sources.debian import Update
from nvllm.sources.indexes import Sources


@dataclass(frozen=True, slots=True)
class Reminder:
    """The packages that are NEWER in the security suite. UNKNOWN says why they could not be looked up, or is None."""

    newer: tuple[Update, ...]
    unknown: str | None
    cure: str

    @property
    def data(self) -> Json:
        return {"newer": [asdict(update) for update in self.newer], "unknown": self.unknown}

    @property
    def words(self) -> Iterator[str]:
        if self.unknown is not None:
            yield f"security updates: unknown: {self.unknown}"
        elif not self.newer:
            yield "security updates: none missing"
        else:
            packages = "1 package has" if len(self.newer) == 1 else f"{len(self.newer)} packages have"
            yield f"security updates: {packages} a newer version; to take it, {self.cure}"
            yield from (f"  {update.name} {update.locked} -> {update.newer}" for update in self.newer)


def remind(lock: Lock, env: Mapping[str, str], *, offline: bool) -> Reminder | None:
    """Return the security updates that LOCK lacks, None if its base is an image of a registry."""
    base = lock.base
    if not isinstance(base, LockedDebianBase):
        return None
    again = f"{command(lock.image, lock.platform)} --update debs"
    cure = again if base.security else f"write `security: true` below `base:` in images/{lock.image}.yaml, and {again}"
    if offline:
        return Reminder((), "--offline", cure)
    try:
        mirrors = Sources.of(lock, env).mirrors().of(f"{base.suite}-security")
        architecture = lock.platform.partition("/")[2]
        return Reminder(debian.updates(base.suite, base.packages, architecture, mirrors), None, cure)
    except Refused as refused:
        return Reminder((), "; ".join(f"{refusal.where}: {refusal.found}" for refusal in refused.refusals), cure)
