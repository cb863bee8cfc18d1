"""A lock outlives its mirror: what a mirror took away is asked of a snapshot archive, last and only then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.lock import Lock, LockedDebianBase
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.sources import debian, fetch, mirrors
from nvllm.sources.indexes import Sources
from nvllm.sources.store import Store
from support import locks
from support.aptmirror import publish
from support.loopback import Site, serving


@pytest.fixture
def mirror(trusted: None, site: Site) -> Site:
    return site


@pytest.fixture
def archive() -> Iterator[Site]:
    with serving() as running:
        yield running


def locked(mirror: Site) -> Lock:
    """Return a lock of what MIRROR has now, and let it then supersede one package of two, and take the old one away."""
    offered = publish(mirror, "bookworm", {"stays": ("1.0-1", ""), "moves": ("1.0-1", "stays")})
    chosen = debian.resolve("bookworm", ["moves"], "amd64", {}, offered)
    publish(mirror, "bookworm", {"stays": ("1.0-1", ""), "moves": ("1.0-2", "stays")})
    (gone,) = [one for one in chosen.packages if one.name == "moves"]
    del mirror.pages[f"/debian/{gone.file.path}"]
    base = LockedDebianBase("debian", "bookworm", "3.11", chosen.packages, snapshot=chosen.snapshot)
    return replace(locks.GOOD, base=base)


def bring(lock: Lock, store: Store, env: dict[str, str]) -> None:
    assert isinstance(lock.base, LockedDebianBase)
    files = [one.file for one in lock.base.packages]
    fetch.fetch(files, store, Sources.of(lock, env), Silent(), offline=False)


def test_what_the_mirror_took_away_comes_from_the_archive_and_nothing_else_does(
    mirror: Site, archive: Site, tmp_path: Path
) -> None:
    lock = locked(mirror)
    assert isinstance(lock.base, LockedDebianBase)
    files = [one.file for one in lock.base.packages]
    moment = "20251102T000000Z"
    publish(archive, "bookworm", {"stays": ("1.0-1", ""), "moves": ("1.0-1", "stays")})
    for path, page in list(archive.pages.items()):
        archive.pages[path.replace("/debian/", f"/snapshots/archive/debian/{moment}/", 1)] = page
    named = {mirrors.MIRROR_VARIABLE: f"{mirror.url}/debian", mirrors.SNAPSHOT_VARIABLE: f"{archive.url}/snapshots"}
    bring(lock, Store(tmp_path), named)
    assert fetch.missing(files, Store(tmp_path)) == ()
    (moves,) = [one.file.path for one in lock.base.packages if one.name == "moves"]
    assert [path for path, _, _ in archive.served] == [f"/snapshots/archive/debian/{moment}/{moves}"]


def test_without_an_archive_the_refusal_says_what_there_is_to_do(mirror: Site, tmp_path: Path) -> None:
    lock = locked(mirror)
    with pytest.raises(Refused) as refused:
        bring(lock, Store(tmp_path), {mirrors.MIRROR_VARIABLE: f"{mirror.url}/debian"})
    (found,) = refused.value.refusals  # what stays came
    assert (found.code, found.where) == ("NV206", "index debian: moves_1.0-1_amd64.deb")
    assert found.found == f"{mirror.url}/debian/: status 404"
    assert "nvllm lock IMAGE --update debs" in found.cure
    assert mirrors.SNAPSHOT_VARIABLE in found.cure


def test_an_older_lock_cannot_ask_an_archive(mirror: Site, archive: Site, tmp_path: Path) -> None:
    lock = locked(mirror)
    assert isinstance(lock.base, LockedDebianBase)
    older = replace(lock, base=replace(lock.base, snapshot=None))
    named = {mirrors.MIRROR_VARIABLE: f"{mirror.url}/debian", mirrors.SNAPSHOT_VARIABLE: archive.url}
    with pytest.raises(Refused) as refused:
        bring(older, Store(tmp_path), named)
    assert refused.value.refusals[0].cure.endswith("nvllm lock IMAGE --update debs")
