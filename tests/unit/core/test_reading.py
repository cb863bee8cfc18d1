"""Files of every kind under a name that should be a regular file: none blocks, none is read without end."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvllm.core import reading
from nvllm.core.refusal import Refused

MOST = 1000


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    """End a test that blocks."""
    signal.alarm(5)
    yield
    signal.alarm(0)


def sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(5 * 2**30)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "FIFO": (os.mkfifo, "a FIFO"),
    "directory": (Path.mkdir, "a directory"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "a character device"),
    "socket": (listening, "a socket, or a device"),
    "sparse file": (sparse, "5368709120 bytes, and at most 1000 are read"),
    "loop of links": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "nothing": (lambda path: None, "No such file or directory"),
}


@pytest.mark.parametrize("read", [reading.content, reading.unlinked])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_an_error_at_once(
    tmp_path: Path, kind: str, read: Callable[[Path, int], bytes]
) -> None:
    place = tmp_path / "input"
    make, words = KINDS[kind]
    make(place)
    with pytest.raises(OSError) as caught:
        read(place, MOST)
    if not (kind == "device" and read is reading.unlinked):  # that one is a link already
        assert caught.value.strerror == words


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_opened_is_a_regular_file_of_any_size(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "input"
    make, words = KINDS[kind]
    make(place)
    if kind == "sparse file":
        with reading.stream(place) as stream:
            assert stream.read(10) == bytes(10)
        return
    with pytest.raises(OSError) as caught:
        reading.stream(place)
    assert caught.value.strerror == words


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    for name, words in [("n" * 256, "File name too long"), ("a\0b", "a name with a NUL or half a surrogate pair")]:
        with pytest.raises(OSError) as caught:
            reading.content(tmp_path / name, MOST)
        assert caught.value.strerror == words


def test_a_regular_file_up_to_the_bound(tmp_path: Path) -> None:
    place = tmp_path / "input"
    place.write_bytes(b"x" * MOST)
    assert reading.content(place, MOST) == reading.unlinked(place, MOST) == b"x" * MOST
    with pytest.raises(OSError) as caught:
        reading.content(place, MOST - 1)
    assert caught.value.errno == errno.EFBIG
    place.write_text("café", encoding="utf-8")
    assert reading.text(place, MOST) == "café"


def test_a_file_without_a_size_is_read_up_to_the_bound() -> None:
    assert reading.content(Path("/proc/self/status"), 100_000).startswith(b"Name:")
    with pytest.raises(OSError) as caught:
        reading.content(Path("/proc/self/status"), 10)
    assert caught.value.strerror == "11 bytes, and at most 10 are read"


def test_a_link_is_followed_only_where_it_may_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    assert reading.content(tmp_path / "link", MOST) == b"x"
    with pytest.raises(OSError) as caught:
        reading.unlinked(tmp_path / "link", MOST)
    assert caught.value.errno == errno.ELOOP


def test_what_is_wanted_is_refused_by_the_name_that_messages_use(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        reading.required(tmp_path / "gone", MOST, "images/gone")
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where, refusal.found) == ("NV109", "images/gone", "No such file or directory")


def test_which_errors_are_about_a_file() -> None:
    refused = reading.unusable(OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300))
    assert refused is not None
    assert refused.refusals[0].where == "x" * 300
    assert reading.unusable(OSError(errno.EBADF, "Bad file descriptor", "x")) is None
    assert reading.unusable(OSError(errno.EACCES, "Permission denied")) is None
