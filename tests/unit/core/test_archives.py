"""Archives that are torn, that lie, and that unpack without end: each is one refusal, within a second and a bound."""

from __future__ import annotations

import gzip
import io
import lzma
import signal
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvllm.core import archives
from nvllm.core.archives import ArchiveName
from nvllm.core.refusal import Refused

NAME = ArchiveName("some.tar", "a whole archive of the tests", "make it again")


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    """End a test that reads without end."""
    signal.alarm(20)
    yield
    signal.alarm(0)


def plain(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def one(name: str, data: bytes = b"x") -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), data


def pax(key: str, value: str) -> bytes:
    """Return a tar of one member with a pax header that says that KEY is VALUE."""
    info = tarfile.TarInfo("a/b")
    info.pax_headers = {key: value}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info)
    return out.getvalue()


def read(path: Path, most: int = archives.SOURCE) -> dict[str, bytes]:
    found = {}
    with archives.tar(path, NAME, most) as tar:
        for member in archives.members(tar, most):
            stream = tar.extractfile(member)
            found[member.name] = stream.read() if stream is not None else b""
    return found


def refused(action: Callable[[], object]) -> str:
    with pytest.raises(Refused) as caught:
        action()
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where, refusal.expected, refusal.cure) == (
        "NV306",
        "some.tar",
        "a whole archive of the tests",
        "make it again",
    )
    return refusal.found


@pytest.mark.parametrize("packed", [bytes, gzip.compress, lzma.compress])
def test_an_archive_is_read(tmp_path: Path, packed: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "archive"
    path.write_bytes(packed(plain(one("a/b", b"1"), one("a/c", b"22"))))
    assert read(path) == {"a/b": b"1", "a/c": b"22"}


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty file"),
    "other": (b"<html>not found</html>" * 100, ""),
    "torn": (gzip.compress(plain(one("a", b"x" * 100_000)))[:-20], "end-of-stream marker"),
    "flipped": (gzip.compress(plain(one("a", b"x" * 100_000)))[:40] + b"\xff" * 40, ""),
    "size of 30 digits": (pax("size", "9" * 30), "more than"),
    "sparse": (pax("GNU.sparse.map", "0,1") + b"", ""),
    "deep": (plain(one("/".join("a" * 200))), "more than 100 directories deep"),
    "a member that is too large": (gzip.compress(plain(one("a", bytes(4 << 20)))), "a: more than 1048576 bytes"),
    "members that are too large": (plain(*(one(str(n), bytes(1 << 18)) for n in range(5))), "more bytes than"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_whole_archive_is_one_refusal(tmp_path: Path, kind: str) -> None:
    data, words = BAD[kind]
    path = tmp_path / "archive"
    path.write_bytes(data)
    assert words in refused(lambda: read(path, 1 << 20))


@pytest.mark.parametrize("digits", ["-1", "9" * 5000])
def test_a_size_that_is_no_number_is_none(tmp_path: Path, digits: str) -> None:
    path = tmp_path / "archive"
    path.write_bytes(pax("size", digits))
    assert set(read(path).values()) <= {b""}  # the tarfile of Python 3.11.2 takes -1 for the end


def test_a_member_longer_than_the_archive(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a")
    info.size = 1 << 33
    path = tmp_path / "archive"
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"x" * 1024)

    def names() -> list[str]:
        with archives.tar(path, NAME, 1 << 40) as tar:
            return [member.name for member in archives.members(tar, 1 << 40)]

    assert refused(names)


def test_too_many_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_MEMBERS", 3)
    path = tmp_path / "archive"
    path.write_bytes(plain(*(one(str(n)) for n in range(4))))
    assert refused(lambda: read(path)) == "more than 3 members"


def zipped(path: Path, most: int = archives.WHEEL) -> dict[str, bytes]:
    with archives.zipped(path, NAME, most) as archive:
        return {info.filename: archives.member(archive, info) for info in archive.infolist()}


def packed(**files: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def lying(data: bytes, size: int) -> bytes:
    """Return DATA, a zip of one member, that declares SIZE bytes for it in both its headers."""
    central = data.index(b"PK\x01\x02")
    changed = bytearray(data)
    struct.pack_into("<I", changed, 22, size)
    struct.pack_into("<I", changed, central + 24, size)
    return bytes(changed)


def test_a_zip_archive_is_read(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    path.write_bytes(packed(a=b"1", b=b"22"))
    assert zipped(path) == {"a": b"1", "b": b"22"}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a zip file"),
        (packed(a=b"x" * 1000)[:-30], "not a zip file"),
        (packed(a=bytes(2 << 20)), "a: more than 1048576 bytes"),
        (packed(a=bytes(1 << 19), b=bytes(1 << 19), c=b"x"), "c: more than 1048576 bytes"),
        (lying(packed(a=bytes(2 << 20)), 100), "CRC"),
        (packed(**{"/".join("a" * 200): b""}), "directories deep"),
    ],
    ids=["empty", "torn", "a member too large", "members too large", "lying", "deep"],  # the bytes hold the time of day
)
def test_what_is_no_whole_zip_archive(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "archive"
    path.write_bytes(data)
    assert words in refused(lambda: zipped(path, 1 << 20))


def test_a_member_is_not_read_into_memory_beyond_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "READ_WHOLE", 10)
    path = tmp_path / "archive"
    path.write_bytes(packed(a=b"x" * 11))
    assert refused(lambda: zipped(path)) == "a: 11 bytes, and at most 10 are read"


def test_what_a_decompressor_yields_is_bounded() -> None:
    stream = io.BytesIO(gzip.compress(bytes(1 << 20)))
    with pytest.raises(EOFError, match="more than 1000 bytes"):
        archives.unpacked(gzip.GzipFile(fileobj=stream), 1000)
