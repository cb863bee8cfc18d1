"""Bundles of the store: the same bytes, whole files only, and nothing that is not a file of a store."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvllm.core.lock import LockedFile
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.sources import bundle
from nvllm.sources.bundle import Imported
from nvllm.sources.store import Store

CONTENTS = (b"one", b"", b"x" * 1000)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def filled(root: Path, contents: Sequence[bytes] = CONTENTS) -> tuple[Store, list[LockedFile]]:
    """Return a store below ROOT with CONTENTS, and what a lock says of them."""
    store = Store(root)
    for data in set(contents):
        store.partial(sha(data)).write_bytes(data)
        store.adopt(store.partial(sha(data)), sha(data))
    return store, [LockedFile(f"file{n}", sha(data), len(data), "pypi") for n, data in enumerate(contents)]


def written(tmp_path: Path) -> Path:
    store, files = filled(tmp_path / "there")
    bundle.write(files, store, tmp_path / "b.tar", "cure", Silent())
    return tmp_path / "b.tar"


def refused(place: Path, store: Store) -> tuple[str, str]:
    """Return code and found of the one refusal of importing PLACE; no unfinished file stays in STORE."""
    with pytest.raises(Refused) as caught:
        bundle.read(place, store, Silent())
    (one,) = caught.value.refusals
    assert (
        not store.root.is_dir() or not (store.root / "partial").is_dir() or not any((store.root / "partial").iterdir())
    )
    return one.code, one.found


@settings(max_examples=15)
@given(contents=st.lists(st.binary(max_size=2000), max_size=5))
def test_what_is_exported_is_imported_and_exported_the_same(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]
) -> None:
    tmp_path = tmp_path_factory.mktemp("bundle")
    store, files = filled(tmp_path / "there", contents)
    size = bundle.write(files, store, tmp_path / "b.tar", "cure", Silent())
    assert size == (tmp_path / "b.tar").stat().st_size
    here = Store(tmp_path / "here")
    unique = {*contents}
    found = bundle.read(tmp_path / "b.tar", here, Silent())
    assert found == Imported(len(unique), sum(map(len, unique)), len(unique))
    assert here.list() == store.list() == sorted(map(sha, unique))
    assert bundle.read(tmp_path / "b.tar", here, Silent()).new == 0
    bundle.write(files[::-1], here, tmp_path / "again.tar", "cure", Silent())
    assert (tmp_path / "again.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_what_the_store_lacks_is_not_exported(tmp_path: Path) -> None:
    store, files = filled(tmp_path / "there")
    other = LockedFile("other", sha(b"other"), 5, "pypi")
    with pytest.raises(Refused) as caught:
        bundle.write([*files, other], store, tmp_path / "b.tar", "nvllm fetch demo", Silent())
    (one,) = caught.value.refusals
    assert (one.code, one.expected, one.cure) == ("NV204", f"other (sha256 {other.sha256})", "nvllm fetch demo")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]


def test_a_damaged_file_is_not_exported(tmp_path: Path) -> None:
    store, files = filled(tmp_path / "there")
    store.path(sha(b"one")).chmod(0o644)
    store.path(sha(b"one")).write_bytes(b"two")
    with pytest.raises(Refused) as caught:
        bundle.write(files, store, tmp_path / "b.tar", "cure", Silent())
    assert [one.code for one in caught.value.refusals] == ["NV205"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    store, files = filled(tmp_path / "there")
    with pytest.raises(Refused) as caught:
        bundle.write(files, store, tmp_path / "missing/b.tar", "cure", Silent())
    assert [one.code for one in caught.value.refusals] == ["NV920"]


@pytest.mark.parametrize("size", range(0, 10240, 512))
def test_a_bundle_that_was_cut_is_refused(tmp_path: Path, size: int) -> None:
    place = written(tmp_path)
    assert place.stat().st_size == 10240
    place.write_bytes(place.read_bytes()[:size])
    store = Store(tmp_path / "here")
    assert refused(place, store)[0] == "NV306"
    assert {*store.list()} <= {*map(sha, CONTENTS)}


def test_what_stands_behind_the_end_is_refused(tmp_path: Path) -> None:
    place = written(tmp_path)
    place.write_bytes(place.read_bytes() + b"more")
    assert refused(place, Store(tmp_path / "here")) == ("NV306", "10244 bytes")


def test_changed_bytes_are_refused_and_none_of_them_kept(tmp_path: Path) -> None:
    place = written(tmp_path)
    place.write_bytes(place.read_bytes().replace(b"x" * 1000, b"x" * 999 + b"y"))
    store = Store(tmp_path / "here")
    assert refused(place, store) == ("NV205", f"sha256 {sha(b'x' * 999 + b'y')}")
    assert sha(b"x" * 1000) not in store.list()


def test_a_file_that_the_store_has_is_hashed_all_the_same(tmp_path: Path) -> None:
    place = written(tmp_path)
    store, _ = filled(tmp_path / "here")
    place.write_bytes(place.read_bytes().replace(b"x" * 1000, b"x" * 999 + b"y"))
    assert refused(place, store)[0] == "NV205"
    assert store.path(sha(b"x" * 1000)).read_bytes() == b"x" * 1000


def test_a_compressed_bundle_is_refused(tmp_path: Path) -> None:
    place = written(tmp_path)
    place.write_bytes(gzip.compress(place.read_bytes()))
    assert refused(place, Store(tmp_path / "here"))[0] == "NV306"


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "b.tar")
    assert refused(tmp_path / "b.tar", Store(tmp_path / "here"))[0] == "NV306"


GOOD = f"sha256/{sha(b'one')}"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../etc/passwd", tarfile.REGTYPE),
        ("/sha256/" + 64 * "a", tarfile.REGTYPE),
        ("sha256/" + 64 * "A", tarfile.REGTYPE),
        ("notes.txt", tarfile.REGTYPE),
        (GOOD, tarfile.SYMTYPE),
        (GOOD, tarfile.LNKTYPE),
        (GOOD, tarfile.DIRTYPE),
        (GOOD, tarfile.FIFOTYPE),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, name: str, kind: bytes) -> None:
    with tarfile.open(tmp_path / "b.tar", "w") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        member.size = 3 if kind == tarfile.REGTYPE else 0
        archive.addfile(member, io.BytesIO(b"one"))
    store = Store(tmp_path / "here")
    assert refused(tmp_path / "b.tar", store)[0] == "NV306"
    assert store.list() == []


def test_a_member_twice_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "b.tar", "w") as archive:
        for _ in range(2):
            member = tarfile.TarInfo(GOOD)
            member.size = 3
            archive.addfile(member, io.BytesIO(b"one"))
    assert refused(tmp_path / "b.tar", Store(tmp_path / "here"))[0] == "NV306"
