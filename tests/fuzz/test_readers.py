"""Files and answers of other people, changed at random: each is read or refused, soon, and never breaks nvllm.

`make fuzz` draws CASES changes for each reader, `make test` a few. What was ever found lies in `corpus`, a
directory for each reader, and is read at every run: save what hypothesis prints there, under a name that says what it
is. `guided.py` looks for more with the same readers, led by what they execute.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import fuzzed, fuzzing
from support.fuzzing import READERS

CORPUS = Path(__file__).parent / "corpus"
FOUND = sorted(path.relative_to(CORPUS).as_posix() for path in CORPUS.glob("*/*") if path.parent.name in READERS)

EDITS = st.lists(
    st.tuples(
        st.sampled_from(fuzzing.KINDS),
        st.integers(0, 10**6),
        st.sampled_from(fuzzing.TOKENS) | st.binary(max_size=8),
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("name", READERS)
def test_the_seed_is_read(tmp_path: Path, name: str) -> None:
    directory = tmp_path / "a/b/c"  # what is above may belong to a project, whose directories nobody else may write
    directory.mkdir(parents=True)
    path = directory / READERS[name].filename
    path.write_bytes(fuzzed.seed(READERS[name]))
    READERS[name].reads(path)


@pytest.mark.thorough
@pytest.mark.parametrize("name", READERS)
@given(edits=EDITS)
def test_any_change_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, edits: list[tuple[str, int, bytes]]
) -> None:
    data = fuzzing.changed(fuzzed.seed(READERS[name]), edits)
    fuzzing.check(READERS[name], data, tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("found", FOUND)
def test_what_was_found_is_read_or_refused(tmp_path: Path, found: str) -> None:
    fuzzing.check(READERS[found.partition("/")[0]], (CORPUS / found).read_bytes(), tmp_path)


def test_make_fuzz_draws_a_hundred_thousand_cases() -> None:
    assert (len(READERS) + 1) * settings.get_profile("fuzz").max_examples >= 100_000  # and the command lines
