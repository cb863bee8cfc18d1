"""Files of other people, changed at random: each is read or refused, soon, and never breaks nvllm.

`make fuzz` draws 8,000 changes for each reader, the unit tests a few. What was ever found lies in `corpus`, a directory
for each reader, and is read at every run: save what hypothesis prints there, under a name that says what it is.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.refusal import Refused
from support import fuzzed
from support.fuzzed import READERS

CORPUS = Path(__file__).parent / "corpus"
FOUND = sorted(path.relative_to(CORPUS).as_posix() for path in CORPUS.glob("*/*"))

SECONDS = 5.0
"""The most processor time that one file may take, whatever else the machine does."""

TOKENS = [
    b"",
    b"\0",
    b"\n",
    b"\r\n",
    b"\xff",
    b"\xe2\x82",
    b"-",
    b"..",
    b"../",
    b"/",
    b"%",
    b"'",
    b'"',
    b"\\",
    b"{",
    b"[",
    b"]",
    b"}",
    b"[" * 200,
    b"{a: " * 80,
    b"&a ",
    b"*a",
    b"<<: *a",
    b"!!int ",
    b"!!python/object:x ",
    b"1:1:1",
    b"0x" + b"f" * 60,
    b"9" * 400,
    b"9" * 5000,
    b"1e999",
    b"NaN",
    b"Infinity",
    b"-0",
    b"1152921504606846976",
    b"\\ud800",
    b"null",
    b"true",
    b"2026-01-01",
    b"@@ -1 +1 @@\n",
    b"rename from a\n",
    b"old mode 100644\n",
    b"\xef\xbb\xbf",
    b"PK\x01\x02",
    b"PK\x05\x06",
    b"\xff" * 8,
    bytes(8),
    b"\x7fELF",
    b"#",
    b"|",
    b"~",
]

EDITS = st.lists(
    st.tuples(
        st.sampled_from(["replace", "insert", "cut", "repeat", "end"]),
        st.integers(0, 10**6),
        st.sampled_from(TOKENS) | st.binary(max_size=8),
    ),
    min_size=1,
    max_size=5,
)


def changed(data: bytes, edits: list[tuple[str, int, bytes]]) -> bytes:
    """Return DATA with EDITS: what to do, where (in millionths of the length), and with what."""
    for kind, place, token in edits:
        at = len(data) * place // 10**6
        if kind == "replace":
            data = data[:at] + token + data[at + len(token) :]
        elif kind == "insert":
            data = data[:at] + token + data[at:]
        elif kind == "cut":
            data = data[:at] + data[at + 1 + 7 * len(token) :]
        elif kind == "repeat":
            data = data[:at] + data[max(0, at - 40) : at] * (1 + len(token)) + data[at:]
        else:
            data = data[:at] + token
    return data[: 1 << 20]


def check(name: str, data: bytes, directory: Path) -> None:
    """Let the reader NAME read DATA, and check what comes of it."""
    path = directory / READERS[name].filename
    path.write_bytes(data)
    started = time.process_time()
    try:
        READERS[name].reads(path)
    except Refused as refused:
        for one in refused.refusals:
            assert all((one.code, one.where, one.expected, one.found, one.cure)), one
    assert time.process_time() - started < SECONDS


@pytest.mark.parametrize("name", READERS)
def test_the_seed_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / READERS[name].filename
    path.write_bytes(fuzzed.seed(name))
    READERS[name].reads(path)


@pytest.mark.parametrize("name", READERS)
@given(edits=EDITS)
def test_any_change_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, edits: list[tuple[str, int, bytes]]
) -> None:
    check(name, changed(fuzzed.seed(name), edits), tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("found", FOUND)
def test_what_was_found_is_read_or_refused(tmp_path: Path, found: str) -> None:
    name = found.partition("/")[0]
    check(name, (CORPUS / found).read_bytes(), tmp_path)
