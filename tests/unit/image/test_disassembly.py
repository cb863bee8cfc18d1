"""Bytecode as lines of its source."""

from __future__ import annotations

import importlib.util
import marshal
import sys

from nvllm.image.disassembly import disassembled

SOURCE = b"import os\n\ndef main(first):\n    return {first, 'b', 'c'} | {os.sep}\n"


def bytecode(source: bytes) -> bytes:
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(compile(source, "/a.py", "exec"))


def test_each_line_of_code_stands_over_its_instructions() -> None:
    found = disassembled(bytecode(SOURCE), SOURCE)
    assert isinstance(found, list)
    assert "  line 1: import os" in found
    assert any(line.startswith("main(first), flags ") for line in found)
    assert found.index("  line 4: return {first, 'b', 'c'} | {os.sep}") > found.index("  line 1: import os")
    assert not any("0x7" in line for line in found), "addresses differ from run to run"
    assert disassembled(bytecode(SOURCE), SOURCE) == found


def test_without_the_source_lines_have_numbers_alone() -> None:
    found = disassembled(bytecode(SOURCE), b"")
    assert "  line 4:" in found


def test_what_cannot_be_disassembled_is_said() -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert (
        disassembled(b"\0\0\0\0" + bytecode(SOURCE)[4:], b"")
        == f"bytecode of another Python than {version}, which runs nvllm"
    )
    said = disassembled(bytecode(SOURCE)[:40], b"")
    assert isinstance(said, str)
    assert said.startswith("not code that can be disassembled: ")
