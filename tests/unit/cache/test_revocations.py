"""Revocations that came by git, and what this host remembers of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nvllm.cache import promotion
from nvllm.cache.blessings import Blessings
from nvllm.core.refusal import Refused
from support.blessings_world import NOW, TREE, as_another_user, bless, blessings, other_tree, query


def another_host(known: Blessings, tmp_path: Path) -> Blessings:
    """The same project, as a host that has seen nothing of it."""
    return Blessings(known.directory, tmp_path / "other/blessings")


def codes(known: Blessings) -> list[str]:
    try:
        known.lookup(query())
    except Refused as refused:
        return [one.code for one in refused.refusals]
    return []


def test_a_revocation_that_came_by_git_is_remembered_when_git_takes_it_away(tmp_path: Path) -> None:
    """F5: it was remembered only on the host where somebody had typed it."""
    first = blessings(tmp_path)
    promotion.promote(first, bless(TREE))
    first.revocations.add(TREE.hash, "wrong tokens", NOW)
    host = another_host(first, tmp_path)
    assert codes(host) == ["NV903"]
    shutil.rmtree(first.revocations.project)
    assert codes(host) == ["NV903"]
    assert host.revocations.reason(TREE.hash) == "wrong tokens"


def test_a_revocation_is_seen_while_another_blessing_is_looked_up(tmp_path: Path) -> None:
    first = blessings(tmp_path)
    promotion.promote(first, bless(TREE))
    first.revocations.add(other_tree(3).hash, "wrong tokens", NOW)
    host = another_host(first, tmp_path)
    assert codes(host) == []
    shutil.rmtree(first.revocations.project)
    assert host.revocations.reason(other_tree(3).hash) == "wrong tokens"


def test_a_damaged_revocation_is_remembered_as_one(tmp_path: Path) -> None:
    first = blessings(tmp_path)
    promotion.promote(first, bless(TREE))
    first.revocations.project.mkdir()
    (first.revocations.project / f"{TREE.hash}.json").write_text("{")
    assert codes(first) == ["NV903"]
    shutil.rmtree(first.revocations.project)
    assert codes(first) == ["NV903"]
    assert first.revocations.reason(TREE.hash) == "record damaged"


def test_a_version_that_was_refused_is_seen(tmp_path: Path) -> None:
    """Version 2 came by git and is revoked. Version 1, which takes its place again, was served."""
    first = blessings(tmp_path)
    place = promotion.promote(first, bless(TREE))
    before = place.read_bytes()
    promotion.promote(first, bless(other_tree(2), version=2), first.named("demo-eager"))
    first.revocations.add(other_tree(2).hash, "wrong tokens", NOW)
    host = another_host(first, tmp_path)
    assert codes(host) == ["NV903"]
    place.write_bytes(before)
    assert codes(host) == ["NV906"]


def test_a_version_without_the_demanded_signature_is_not_seen(tmp_path: Path) -> None:
    """Or anybody's manifest of version 1,000,000 would end all others."""
    known = blessings(tmp_path)
    place = promotion.promote(known, bless(TREE))
    signers = tmp_path / "signers"
    signers.write_text("")
    signers.chmod(0o644)
    forged = bless(other_tree(2), version=1_000_000)
    place.unlink()
    promotion.promote(another_host(known, tmp_path / "forger"), forged)
    with pytest.raises(Refused) as caught:
        known.lookup(query(signers=signers))
    assert [one.code for one in caught.value.refusals] == ["NV909"]
    seen = known.versions.newest(bless(TREE).serve_hash)
    assert seen is not None
    assert seen[0] == 1


LOOKED_UP = """
import sys
from pathlib import Path
from nvllm.core.refusal import Refused
from support.blessings_world import become_another_user, blessings, query

become_another_user()
try:
    blessings(Path(sys.argv[1])).lookup(query())
except Refused as refused:
    print(*(one.code for one in refused.refusals))
"""


def test_what_cannot_be_remembered_is_said() -> None:
    """A dry run is refused in any case; that the next one may forget why is a second refusal."""
    with as_another_user() as (directory, run):
        known = blessings(directory)
        promotion.promote(known, bless(TREE))
        known.revocations.add(TREE.hash, "wrong tokens", NOW)
        shutil.rmtree(known.revocations.memory)
        known.memory.chmod(0o500)
        assert run(LOOKED_UP, str(directory)) == "NV903 NV911\n"


@pytest.mark.parametrize("whose", ["project", "memory"])
def test_no_record_is_believed_only_of_a_real_directory(tmp_path: Path, whose: str) -> None:
    """F6: each of these once meant that nothing is revoked."""
    wrong = []
    for kind in ("a file", "a dangling link", "a link to an empty directory", "a loop"):
        known = blessings(tmp_path / kind)
        promotion.promote(known, bless(TREE))
        path = known.revocations.project if whose == "project" else known.revocations.memory
        match kind:
            case "a file":
                path.write_bytes(b"")
            case "a dangling link":
                path.symlink_to(tmp_path / "nowhere")
            case "a link to an empty directory":
                (tmp_path / kind / "empty").mkdir()
                path.symlink_to(tmp_path / kind / "empty")
            case _:
                path.symlink_to(path)
        if codes(known) != ["NV903"]:
            wrong.append((kind, codes(known)))
    assert wrong == []
