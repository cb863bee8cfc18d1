"""What memtester prints, in any pieces. The stand-in says what the real one says of faulty memory."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.host.memtester import LISTED, TESTS, Memtester, MemtesterFailed, MemtesterOutput
from support.gate_samples import BROKEN, OK, put_memtester

MIB = 2**20
SAID = (
    b"memtester version 4.6.0 (64-bit)\nwant 16MB (16777216 bytes)\n"
    b"got  16MB (16777216 bytes), trying mlock ...locked.\nLoop 1/1:\n"
    b"  Stuck Address       :           \b\b\bsetting   0\b\bok\n"
    b"  Solid Bits          : \b\bFAILURE: 0x1 != 0x0 at offset 0xabc.\nFAILURE: 0x3 != 0x2 at offset 0xdef.\n"
    b"  8-bit Writes        : ok\n\nDone.\n"
)


def heard(*chunks: bytes) -> MemtesterOutput:
    found = MemtesterOutput(lambda _: None)
    for chunk in chunks:
        found.heard(chunk)
    return found


@given(st.lists(st.integers(0, len(SAID)), max_size=8))
def test_the_pieces_do_not_matter(cuts: list[int]) -> None:
    at = [0, *sorted(cuts), len(SAID)]
    found = heard(*(SAID[a:b] for a, b in itertools.pairwise(at)))
    assert (found.version, found.locked, found.loops, found.tests, found.faults) == ("4.6.0", 16 * MIB, 1, 3, 2)
    assert [(one.test, one.address, one.found) for one in found.listed] == [
        ("Solid Bits", "0xabc", "0x1 != 0x0"),
        ("Solid Bits", "0xdef", "0x3 != 0x2"),
    ]


def test_a_band_full_of_faults_is_counted_and_not_all_listed() -> None:
    found = heard(SAID, b"FAILURE: 0x1 != 0x0 at offset 0x1.\n" * 10_000)
    assert (found.faults, len(found.listed)) == (10_002, LISTED)


def test_a_band_that_was_made_smaller_is_not_locked() -> None:
    reduced = b"got  16MB (16777216 bytes), trying mlock ...too many pages, reducing...\n"
    assert heard(reduced).locked == 0
    assert heard(reduced, b"got  8MB (8388608 bytes), trying mlock ...locked.\n").locked == 8 * MIB


def test_a_number_without_end_is_no_band() -> None:
    output = MemtesterOutput(lambda _: None)
    output.heard(b"got  1MB (" + b"9" * 5000 + b" bytes), trying mlock ...locked.\n")
    assert output.locked == 0


@pytest.mark.skipif(shutil.which("memtester") is None, reason="there is no memtester")
def test_the_real_one(tmp_path: Path) -> None:
    ended: list[int] = []
    program = shutil.which("memtester")
    assert program is not None
    tester = Memtester(program, tmp_path / "ledger")
    try:
        found = tester.test(MIB, 1, ended.append)
    except MemtesterFailed as error:  # a user who may lock no memory
        pytest.skip(str(error))
    assert (found.bytes, found.loops, found.tests, found.faults) == (MIB, 1, TESTS, 0)
    assert sum(ended) == TESTS
    assert tester.version != "unknown"
    assert list((tmp_path / "ledger").iterdir()) == []


def test_faults_by_test_and_address(tmp_path: Path) -> None:
    found = Memtester(str(put_memtester(tmp_path, *BROKEN, status=4)), tmp_path / "ledger").test(MIB, 1, lambda _: None)
    assert found.faults == 3
    assert [(one.test, one.address) for one in found.listed] == [
        ("Solid Bits", "0x0000000000abc008"),
        ("Solid Bits", "0x0000000000abc010"),
        ("Checkerboard", "0x0000000000abc008"),
    ]


@pytest.mark.parametrize(
    ("lines", "status", "said"),
    [
        ((OK,), 1, "status 1 after 1 of 1 loops, with 0 faults printed; it said: Stuck Address"),
        ((OK,), 4, "status 4"),
        (BROKEN, 0, "status 0 after 1 of 1 loops, with 3 faults printed"),
        ((OK, "Loop 2/2:"), 0, "after 2 of 1 loops"),
    ],
)
def test_what_it_ends_with_must_fit_what_it_says(
    tmp_path: Path, lines: tuple[str, ...], status: int, said: str
) -> None:
    tester = Memtester(str(put_memtester(tmp_path, *lines, status=status)), tmp_path / "ledger")
    with pytest.raises(MemtesterFailed) as caught:
        tester.test(MIB, 1, lambda _: None)
    assert said in str(caught.value)


def test_one_that_is_killed_has_tested_nothing(tmp_path: Path) -> None:
    program = put_memtester(tmp_path, OK, "FAILURE: 0x1 != 0x0 at offset 0x1.")
    program.write_text(program.read_text().replace("exit 0", "kill -KILL $$"))
    with pytest.raises(MemtesterFailed) as caught:
        Memtester(str(program), tmp_path / "ledger").test(MIB, 1, lambda _: None)
    assert "status -9" in str(caught.value)
