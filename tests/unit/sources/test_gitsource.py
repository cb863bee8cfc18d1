"""The archive of a commit over loopback HTTP: brought, proved to be the commit, or refused."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from nvllm.core.canonical import sha256_file
from nvllm.core.lock import LockedFile
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refusal, Refused
from nvllm.core.spec import VllmPin
from nvllm.sources import gitsource
from nvllm.sources.store import Store
from support import gitrepo
from support.gitrepo import Made
from support.loopback import Page, Site, serving

SHOWN = "images/demo.yaml"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return gitrepo.make(tmp_path_factory.mktemp("git") / "repository")


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def bring(site: Site, store: Store, pin: VllmPin) -> LockedFile:
    with httpx2.Client() as client:
        return gitsource.bring(pin, SHOWN, store, client, {gitsource.MIRROR_VARIABLE: f"{site.url}/"}, Silent())


def refused(site: Site, store: Store, pin: VllmPin) -> list[Refusal]:
    with pytest.raises(Refused) as caught:
        bring(site, store, pin)
    assert store.list() == []
    assert list(store.root.iterdir()) == []  # nothing half is left behind
    return list(caught.value.refusals)


def test_a_commit_is_brought_and_locked_by_the_bytes_that_came(made: Made, site: Site, store: Store) -> None:
    site.pages[made.path] = Page(made.archive)
    file = bring(site, store, made.pin)
    assert (file.path, file.index, file.size) == (made.path.removeprefix("/"), "github", len(made.archive))
    assert sha256_file(store.path(file.sha256)) == file.sha256
    assert store.path(file.sha256).read_bytes() == made.archive


def test_the_tree_is_the_one_that_git_names(made: Made, tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(made.archive)
    assert gitsource.contents(archive) == gitsource.ArchiveIds(made.commit, made.tree)


def test_an_archive_of_other_files_is_found_out(made: Made, site: Site, store: Store, tmp_path: Path) -> None:
    """A host that serves what it likes can claim the commit. It cannot make other files come to its tree."""
    other = gitrepo.make(tmp_path / "other", {**gitrepo.FILES, "vllm/engine/core.py": "x = 2\n"})
    site.pages[made.path] = Page(claiming(other.archive, made.commit))
    (found,) = refused(site, store, made.pin)
    assert (found.code, found.where) == ("NV207", f"{made.path.removeprefix('/')}: files")
    assert found.expected == f"tree {made.tree} ({SHOWN}: .vllm.source.tree)"
    assert found.found == f"tree {other.tree}"


def test_an_archive_of_another_commit_with_the_same_files(made: Made, site: Site, store: Store) -> None:
    site.pages[made.path] = Page(claiming(made.archive, "b" * 40))
    (found,) = refused(site, store, made.pin)
    assert (found.where, found.found) == (f"{made.path.removeprefix('/')}: commit", f"commit {'b' * 40}")


def test_an_archive_that_names_no_commit(made: Made, site: Site, store: Store) -> None:
    site.pages[made.path] = Page(claiming(made.archive, None))
    (found,) = refused(site, store, made.pin)
    assert found.found == "no recorded commit"


def test_a_host_that_does_not_have_it(made: Made, site: Site, store: Store) -> None:
    (found,) = refused(site, store, made.pin)
    assert (found.code, found.found) == ("NV209", "status 404")
    assert "NVLLM_GITHUB_MIRROR=URL" in found.cure


def test_a_host_that_is_not_there(made: Made, store: Store) -> None:
    gone = Site("http://127.0.0.1:9")
    (found,) = refused(gone, store, made.pin)
    assert found.code == "NV209"
    assert found.found.startswith("ConnectError")


def cut(archive: bytes) -> bytes:
    return archive[: len(archive) // 2]


def doubled(archive: bytes) -> bytes:
    return rewritten(archive, lambda member: [member, member] if member.name.endswith("core.py") else [member])


def linked(archive: bytes) -> bytes:
    def hard(member: tarfile.TarInfo) -> list[tarfile.TarInfo]:
        if member.name.endswith("core.py"):
            member.type, member.linkname, member.size = tarfile.LNKTYPE, "elsewhere", 0
        return [member]

    return rewritten(archive, hard)


@pytest.mark.parametrize("spoil", [cut, doubled, linked])
def test_what_no_commit_can_hold(made: Made, site: Site, store: Store, spoil: Callable[[bytes], bytes]) -> None:
    site.pages[made.path] = Page(spoil(made.archive))
    (found,) = refused(site, store, made.pin)
    assert found.code == "NV306"


def test_where_it_is_asked_for() -> None:
    path = gitsource.path("owner/name", "c" * 40)
    assert gitsource.url(path, {}) == f"https://github.com/owner/name/archive/{'c' * 40}.tar.gz"
    assert gitsource.url(path, {gitsource.MIRROR_VARIABLE: "http://mirror/git"}).startswith("http://mirror/git/owner/")


def rewritten(
    archive: bytes, change: Callable[[tarfile.TarInfo], list[tarfile.TarInfo]], **headers: str | None
) -> bytes:
    """Return ARCHIVE with what CHANGE makes of each member, and with HEADERS for the whole of it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(archive)) as old:
        opened = [(member, old.extractfile(member)) for member in old]
        members = [(member, stream.read() if stream else b"") for member, stream in opened]
        kept = {**old.pax_headers, **headers}
        said = {name: value for name, value in kept.items() if value is not None}
        with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.PAX_FORMAT, pax_headers=said) as new:
            for member, data in members:
                for one in change(member):
                    new.addfile(one, io.BytesIO(data) if one.isreg() else None)
    return out.getvalue()


def claiming(archive: bytes, commit: str | None) -> bytes:
    """Return ARCHIVE as one that says it is of COMMIT."""
    return rewritten(archive, lambda member: [member], comment=commit)
