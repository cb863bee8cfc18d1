"""NV513, no file locks: no hard lock can be taken at the state directory.

No file system without flock can be mounted by just any user, so a child process gives up the system call: from
then on the kernel itself answers ENOSYS, exactly as for a file system that has no flock.
"""

from __future__ import annotations

import ctypes
import errno
import multiprocessing
import platform
import struct
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from nvllm.core.refusal import Refusal, Refused
from nvllm.host import checks, locks
from support.host_samples import HOST, refusals

_FLOCK = {"x86_64": 73, "aarch64": 32}[platform.machine()]
_PORT = locks.Key("port", "8000")
_HOLDER = locks.Holder(1, "2026-11-20T10:00:00Z", "nvllm serve cpu")


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _give_up_flock(answer: int) -> None:
    """Make the kernel answer flock with the error ANSWER, for this process and for good (a seccomp filter)."""
    load_number, jump_if_equal, give = 0x20, 0x15, 0x06
    code = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (load_number, 0, 0, 0),
            (jump_if_equal, 0, 1, _FLOCK),
            (give, 0, 0, 0x00050000 | answer),  # SECCOMP_RET_ERRNO
            (give, 0, 0, 0x7FFF0000),  # SECCOMP_RET_ALLOW
        )
    )
    text = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.addressof(text))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, seccomp, filtered = 38, 22, 2
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    assert libc.prctl(seccomp, filtered, ctypes.byref(program)) == 0, ctypes.get_errno()


def _take(directory: Path) -> list[Refusal]:
    with pytest.raises(Refused) as caught:
        locks.acquire_all(directory, [_PORT], _HOLDER)
    return list(caught.value.refusals)


def _look(directory: Path) -> list[Refusal]:
    return list(refusals(checks.Subject(None, replace(HOST, locks=locks.probe(directory)))))


def _in_child(question: Callable[[Path], list[Refusal]], directory: Path, answer: int, result: Connection) -> None:
    _give_up_flock(answer)
    result.send(question(directory))


def _without_flock(question: Callable[[Path], list[Refusal]], directory: Path, answer: int) -> Refusal:
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_in_child, args=(question, directory, answer, theirs))
    child.start()
    assert ours.poll(30)
    (found,) = ours.recv()
    child.join(30)
    assert isinstance(found, Refusal)
    return found


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (errno.ENOSYS, "Function not implemented"),
        (errno.EOPNOTSUPP, "Operation not supported"),
        (errno.ENOLCK, "No locks available"),
    ],
)
def test_where_flock_does_not_work_nothing_is_locked(tmp_path: Path, answer: int, text: str) -> None:
    found = _without_flock(_take, tmp_path, answer)
    assert (found.code, found.where) == ("NV513", f"{tmp_path}/guard.lock")
    assert found.expected == "a directory in which this user alone can take locks"
    assert found.found == f"flock answers: {text}"
    assert found.cure == "set NVLLM_HOME to a directory of yours on a local file system"
    assert [path.name for path in tmp_path.iterdir()] == ["guard.lock"], "no soft lock took its place"


def test_doctor_sees_it_too(tmp_path: Path) -> None:
    found = _without_flock(_look, tmp_path, errno.ENOSYS)
    assert (found.code, found.where) == ("NV513", str(tmp_path))
    assert found.expected == "a directory in which flock works"
    assert found.found == "flock answers: Function not implemented"


def test_a_link_in_the_way(tmp_path: Path) -> None:
    (tmp_path / _PORT.filename).symlink_to("/etc/passwd")
    (found,) = _take(tmp_path)
    assert (found.code, found.where) == ("NV513", f"{tmp_path}/port-8000.lock")
    assert (found.found, found.cure) == ("a symbolic link", f"rm {tmp_path}/port-8000.lock")
