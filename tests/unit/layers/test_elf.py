"""Which machine a program or a library was compiled for."""

from __future__ import annotations

import platform
import struct
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
