"""The parts of benchmarks/gpu that need no GPU: what must be zero, medians and verdicts, and the committed figures."""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu import __main__ as benchmark
from benchmarks.gpu import excerpt, reference, table, tried
from benchmarks.gpu.delay import Delay
from benchmarks.gpu.shapes import COUNTS, SHAPES, TINY
from benchmarks.gpu.table import EVERY, FORK, MEMSET, OURS
from hypothesis import given
from hypothesis import strategies as st

from nvllm.patches import unified

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/gpu/results-h100.json"

ranges = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: (min(pair), max(pair)))


@given(st.lists(ranges, max_size=6), st.lists(st.integers(0, 5), max_size=8), st.integers(40, 50))
def test_what_must_be_zero_is_what_a_loop_over_bytes_clears(
    owned: list[reference.Range], ids: list[int], stride: int
) -> None:
    buffer = bytearray(b"\1" * (6 * stride))
    for block in ids:
        for start, stop in owned:
            for at in range(start, stop):
                buffer[block * stride + at] = 0
    found = reference.cleared(stride, owned, ids)
    assert {at for start, stop in found for at in range(start, stop)} == {
        at for at, byte in enumerate(buffer) if not byte
    }
    assert all(stop < start for (_, stop), (start, _) in pairwise(found))  # nothing counts twice


def test_the_lists_of_ids_have_the_ends_repetitions_and_many() -> None:
    lists = reference.id_lists(600, seed=1)
    assert lists == reference.id_lists(600, seed=1)
    assert all(0 <= block < 600 for ids in lists.values() for block in ids)
    assert {1, 512, 600} <= {len(set(ids)) for ids in lists.values()}
    assert any(len(set(ids)) < len(ids) for ids in lists.values())
    assert {frozenset([0]), frozenset([599])} <= {frozenset(ids) for ids in lists.values()}


def test_the_odd_layouts_are_whole_words_that_no_stride_cuts() -> None:
    for offset, stride, page in reference.ODD_LAYOUTS.values():
        assert offset % 4 == stride % 4 == page % 4 == 0
        assert page <= stride
    assert {offset % 16 for offset, _, _ in reference.ODD_LAYOUTS.values()} == {0, 4, 8, 12}


@pytest.mark.parametrize("shape", [*SHAPES, *TINY], ids=lambda shape: shape.name)
def test_the_states_of_a_layer_fit_into_a_page_with_padding_after_them(shape: Any) -> None:
    assert 0 < 2 * sum(math.prod(state) for state in shape.states) < shape.page  # 2 bytes of a bfloat16


def timings(**medians: float) -> dict[str, dict[int, dict[str, table.Figure]]]:
    """Timings in which every target is met, but for MEDIANS of ours, such as ``alone_1``."""
    plain = {OURS: 10.0, MEMSET: 10.0, FORK: 500.0, EVERY: 600.0}
    return {
        name: {
            count: {
                kind: table.Figure(medians.get(f"{kind}_{count}", plain[OURS]) if name == OURS else value, 1.0, 2.0, 9)
                for kind in table.FIGURES
            }
            for count in COUNTS
        }
        for name, value in plain.items()
    }


def missed(**medians: float) -> list[str]:
    return [each.target for each in table.verdicts(timings(**medians)) if not each.met]


def test_every_target_is_judged_and_just_met_is_met() -> None:
    found = table.verdicts(timings())
    assert len(found) == 1 + 2 + 3 * 2 + 1
    assert missed() == []
    assert missed(host_512=50.0) == []


@pytest.mark.parametrize(
    ("median", "value", "targets"),
    [
        ("alone_1", 10.1, ["one block 50 times faster than: fork"]),
        (
            "alone_1",
            45.1,
            [
                "one block in at most 45 us",
                "one block 50 times faster than: fork",
                "one block 50 times faster than: fork, every tensor",
            ],
        ),
        ("alone_16", 99.0, []),  # memset's speed counts from 64 blocks on
        ("alone_64", 10.1, ["64 blocks at memset's speed or above, alone"]),
        ("queued_512", 10.1, ["512 blocks at memset's speed or above, queued"]),
        ("host_16", 50.1, ["host time of a call at most 50 us"]),
    ],
)
def test_a_target_is_missed_by_itself(median: str, value: float, targets: list[str]) -> None:
    assert missed(**{median: value}) == targets


def test_a_figure_is_the_median_and_the_outer_tenths() -> None:
    found = table.figure([float(value) for value in range(101)])
    assert found == table.Figure(50.0, 10.0, 90.0, 101)
    assert table.figure_text(table.Figure(1234.5, 99.94, 100.4, 9)) == "1,234 (99.9-100)"


def test_a_table_is_aligned() -> None:
    assert table.markdown([["a", "bb"], ["ccc", "d"]]) == "| a   | bb |\n|-----|----|\n| ccc | d  |"


def test_a_definition_keeps_its_decorators_and_its_text() -> None:
    source = "import os\n\n\n@one\n@two(\n    3\n)\ndef f():\n    return 1  # why\n\n\nclass C:\n    x = 1\n\n\ny = 2\n"
    found = excerpt.excerpt(source, ["C", "f"])
    assert [type(node) for node in ast.parse(found).body] == [ast.ClassDef, ast.FunctionDef]
    assert "@one\n@two(\n    3\n)\ndef f():\n    return 1  # why\n" in found
    with pytest.raises(excerpt.LacksDefinitionError, match="g, y"):
        excerpt.excerpt(source, ["g", "f", "y"])


@pytest.fixture(scope="module")
def committed() -> Any:
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def test_the_committed_figures_are_of_the_kernel_as_it_is(committed: Any) -> None:
    """Whoever changes the kernel or a call of it measures it again: `python benchmarks/gpu`, as docs/gpu.md says."""
    name = "0002-page-zeroer.patch"
    patch = unified.parse((ROOT / "patches/v0.21.0" / name).read_bytes(), name)
    (added,) = [hunk for file in patch.files if file.path == "vllm/nvllm/page_zeroer.py" for hunk in file.hunks]
    called = excerpt.call(b"".join(added.new).decode())
    assert "tl.store" in called
    assert committed["sources"]["a call of page_zeroer.py"] == hashlib.sha256(called.encode()).hexdigest()


def test_the_page_shows_what_else_was_tried() -> None:
    found = json.loads((ROOT / "benchmarks/gpu/alternatives-h100.json").read_text(encoding="utf-8"))
    assert all(found["right"].values())
    assert tried.tables(found) in (ROOT / "docs/gpu/zeroer-tried-h100.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("card", ["h100", "h200"])
def test_the_page_shows_the_committed_figures(card: str) -> None:
    found = json.loads((ROOT / f"benchmarks/gpu/results-{card}.json").read_text(encoding="utf-8"))
    assert table.document(found) in (ROOT / f"docs/gpu/zeroer-{card}.md").read_text(encoding="utf-8")


def test_no_committed_byte_is_wrong_and_a_wrong_one_would_be_told(committed: Any) -> None:
    assert table.right(committed)

    def told(*path: str, value: Any) -> str:
        changed = copy.deepcopy(committed)
        *outer, last = path
        place = changed
        for key in outer:
            place = place[key]
        assert place[last] != value
        place[last] = value
        assert not table.right(changed)
        (line,) = table.wrong_cases(changed)
        assert f"WRONG: {line}" in table.document(changed)
        return line

    shape, stale = SHAPES[0].name, table.STATES
    assert told("correctness", "cases", f"{shape}: none", value=3) == f"{shape}: none: 3 wrong bytes"
    assert "another page" in told("correctness", "comparison", "another page", value=0)
    assert "patched" in told("recycling", shape, "patched", stale, "wrong", value=1)
    assert "stock" in told(
        "recycling", shape, "stock", stale, "wrong", value=0
    )  # a proof that nothing needs proves nothing
    assert "fork" in told("recycling", shape, "fork", "pages of attention that are not zero", "wrong", value=7)
    assert "first launch" in told(table.FIRST, "ok", value=False)


# nothing that was measured is lost


def test_what_a_script_printed_before_it_failed_is_kept() -> None:
    text = 'vLLM says something\n{"timings": {"a": 1}}\n{"timings": {"a": 1, "b": 2}}\n{"timings": {'
    assert benchmark.printed(text, "timing", 0) == {"timings": {"a": 1, "b": 2}}
    assert benchmark.printed(text, "timing", 1)["timings"] == {"a": 1, "b": 2}
    assert benchmark.printed(text, "timing", 1)["failed"] == "timing: exit status 1"
    assert benchmark.printed("no JSON at all", "timing", 0) == {"failed": "timing: exit status 0"}


def test_each_result_is_on_disk_before_the_next_is_measured(tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    keep = benchmark.keeper(tmp_path / "results.json", found)
    keep("recycling", {"shape": {}})
    assert json.loads((tmp_path / "results.json").read_text()) == {"recycling": {"shape": {}}}
    keep("correctness", {"failed": "correctness: exit status 1"})
    assert json.loads((tmp_path / "results.json").read_text()) == found


def test_one_tree_that_fails_leaves_the_other_one() -> None:
    assert benchmark.merged({"a": {"stock": 1}}, {"failed": "patched: exit status 1"}) == {
        "a": {"stock": 1},
        "failed": "patched: exit status 1",
    }


def test_a_script_that_failed_is_shown_and_nothing_else_is_lost() -> None:
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    whole = table.document(found)
    found["timings"]["failed"] = "benchmarks.gpu.timing on the patched tree: exit status 1"
    text = table.document(found)
    assert not table.right(found)
    assert text.replace(f"WRONG: {found['timings']['failed']}\n\n", "") == whole
    assert "WRONG: timings: never ran" in table.document({"recycling": found["recycling"]})


def test_a_call_that_was_never_queued_is_no_figure() -> None:
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    shape = next(iter(found["timings"].values()))
    del shape[OURS]["64"]["queued"]
    assert "not measured" in table.document(found)


@given(st.floats(1, 5_000), st.lists(st.floats(1, 50_000), min_size=1, max_size=5))
def test_the_gpu_is_kept_busy_for_longer_than_the_host_took(per_us: float, host: list[float]) -> None:
    delay = Delay(per_us)
    cycles = delay.cycles(FORK, host)
    assert cycles + 1 >= Delay.MARGIN * max(host) * per_us
    lengthened = 0
    while delay.lengthen(FORK):
        lengthened += 1
        assert delay.cycles(FORK, [1.0]) > cycles  # what it was at first is not asked again
    assert lengthened < 20
    assert delay.cycles(FORK, [1.0]) == int(Delay.LONGEST * per_us)
