"""Which machine a program or a library was compiled for, and the loader that starts a program."""

from __future__ import annotations

import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from nvllm.layers import elf


def header(machine: int, magic: bytes = b"\x7fELF", bits: int = 2, order: int = 1) -> bytes:
    return struct.pack("<4sBB12xH", magic, bits, order, machine)


@pytest.mark.parametrize(("number", "name"), [(62, "x86_64"), (183, "aarch64"), (3, None), (243, None), (0, None)])
def test_the_machine_of_a_header(number: int, name: str | None) -> None:
    assert elf.machine(header(number)) == name
    assert elf.machine(header(number) + bytes(100)) == name


@pytest.mark.parametrize(
    "data",
    [
        b"",
        header(62)[:-1],
        header(62, magic=b"\x7fELG"),
        header(62, bits=1),
        header(62, order=2),
        b"#!/bin/sh\nexec true\n",
    ],
)
def test_what_is_no_program_of_an_image(data: bytes) -> None:
    assert elf.machine(data) is None


def test_the_interpreter_of_this_test_is_one_of_this_machine() -> None:
    assert elf.machine(Path(sys.executable).resolve().read_bytes()[:64]) == platform.machine()


def test_a_program_is_started_by_the_loader_that_it_is_given(tmp_path: Path) -> None:
    """The path may be longer than the one that the program had."""
    program, loader = tmp_path / "program", tmp_path / "of another base" / "with a path that is longer" / "loader"
    program.write_bytes(elf.with_loader(Path("/bin/true").read_bytes(), str(loader)))
    program.chmod(0o755)
    with pytest.raises(FileNotFoundError):
        subprocess.run([program], check=True)
    loader.parent.mkdir(parents=True)
    loader.symlink_to(next(Path("/").glob("lib*/ld-linux-*.so.*")).resolve())
    subprocess.run([program], check=True)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"#!/bin/sh\n", "not a program"),
        (header(62), "not a program"),
        (header(62) + bytes(44), "without a loader"),
        (header(62) + bytes(36) + b"\1" + bytes(7), "cut off"),
        (Path("/bin/true").read_bytes()[:100], "cut off"),
    ],
)
def test_what_no_loader_starts(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        elf.with_loader(data, "/loader")
