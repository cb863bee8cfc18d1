"""Trees of rejected compiles that stay for study: rejected.json beside the logs of the bless that compiled them.

Only a bless that was told so leaves one. No serve reads it. `nvllm gc` keeps tree and logs until the time in it.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nvllm.cache.manifest import DAY
from nvllm.core import clock, documents, durable, reading
from nvllm.core.catalogue import Blame
from nvllm.core.fields import Form, Rule, Sha256, Word
from nvllm.core.refusal import Refused

SCHEMA = "nvllm.rejected-tree/1"
OF_THE_COMPILE: Collection[Blame | None] = frozenset({"compile", "engine", "cache"})
"""The blame of a compile that does not pass. Any other is the host's fault, and says nothing of the tree."""

_NAME = "rejected.json"


@dataclass(frozen=True, slots=True)
class RejectedTree:
    """A TREE that a trial rejected for REASONS, which stays until UNTIL."""

    schema: Annotated[str, Rule(choices=(SCHEMA,))]
    tree: Sha256
    until: Word
    """UTC."""
    reasons: tuple[str, ...]


FORM = Form("rejected-tree", SCHEMA, "A rejected tree that stays for study: rejected.json of a bless", RejectedTree)


def keep(bless: Path, tree_hash: str, days: int, refused: Refused, now: float) -> RejectedTree | None:
    """Record in the directory of a BLESS that its tree stays for so many DAYS after NOW, and return that.

    None if what REFUSED it is no fault of the tree. Raises Refused NV911 if it cannot be written.
    """
    if not all(refusal.blame in OF_THE_COMPILE for refusal in refused.refusals):
        return None
    # Cut: a refusal may quote the last lines of a log.
    reasons = tuple(f"{refusal.code} {refusal.where}: {refusal.found}"[:500] for refusal in refused.refusals)
    record = RejectedTree(SCHEMA, tree_hash, clock.stamp(now + days * DAY), reasons)
    durable.replace(bless / _NAME, documents.encode(FORM, record), 0o600)
    return record


def kept(blesses: Path, now: float) -> Iterator[tuple[Path, RejectedTree]]:
    """Yield the directory of each bless below BLESSES whose tree stays at NOW, with its record; no damaged one."""
    for path in sorted(blesses.glob(f"*/*/{_NAME}")):
        try:
            content = reading.content(path, reading.STATE)
            record = documents.parse(
                FORM, content, lambda _: (), code="NV907", label=str(path), cure=shlex.join(["rm", str(path)])
            )
            ends = clock.seconds(record.until)
        except (OSError, ValueError, Refused):
            continue
        if now < ends:
            yield path.parent, record
