"""fs-verity: what is asked of the kernel, and how its answers are understood."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

import pytest

from nvllm.cache import staging

REQUESTS: list[tuple[int, bytes]] = []


def answer(monkeypatch: pytest.MonkeyPatch, number: int | None) -> None:
    """No file system with fs-verity is at hand, so the call answers as one does."""

    def ioctl(descriptor: int, request: int, argument: bytes) -> int:
        assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        REQUESTS.append((request, argument))
        if number is not None:
            raise OSError(number, os.strerror(number))
        return 0

    monkeypatch.setattr(fcntl, "ioctl", ioctl)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(b"x" * 5000)
    return tmp_path / "file"


def test_the_request_is_the_one_of_the_kernel(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """_IOW('f', 133, struct fsverity_enable_arg): 128 bytes, version 1, SHA-256, blocks of 4096, no salt."""
    answer(monkeypatch, None)
    assert staging.enable_verity(file)
    request, argument = REQUESTS[-1]
    assert request == (1 << 30) | (128 << 16) | (ord("f") << 8) | 133
    assert len(argument) == 128
    assert struct.unpack_from("=III", argument) == (1, 1, 4096)
    assert argument[12:] == bytes(116)


@pytest.mark.parametrize("number", [errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM])
def test_where_there_is_none_the_answer_is_no(file: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, number)
    assert not staging.enable_verity(file)


def test_a_full_disk_is_no_answer(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        staging.enable_verity(file)


def test_here_it_is_tried_for_real(file: Path) -> None:
    """Whatever this file system answers: the file holds the same bytes, and yes means that nobody can change them."""
    if staging.enable_verity(file):
        with pytest.raises(OSError):
            file.write_bytes(b"y")
    assert file.read_bytes() == b"x" * 5000
