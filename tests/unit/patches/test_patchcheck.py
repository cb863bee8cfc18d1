"""What each patch of a series comes to on a source, and which answers are errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nvllm.patches import patchcheck, seriesfile
from nvllm.patches.patchcheck import Counterpart, PatchOutcome, Report
from nvllm.patches.series import Patch, Series, Upstream
from support.series_samples import (
    ONE,
    SHOWN,
    SOURCE,
    TWO,
    MappingTree,
    changed,
    entry,
    patch_text,
    series_directory,
    two_patches,
    write,
)

_UPSTREAM = """\
  - id: there
    status: upstream
    summary: There already
    upstream: {state: merged, reference: "o/r#1", since: 1.2.0}
    touches: [vllm/one.py]
    evidence:
      - {path: vllm/one.py, contains: ["one 7\\n"], lacks: [seven]}
"""


def _report(directory: Path, files: Mapping[str, bytes], enabled: Sequence[str] = (), version: str = "1.2.3") -> Report:
    series = seriesfile.load(directory, SHOWN)
    diffs = seriesfile.diffs(directory, series.patches, SHOWN)
    return patchcheck.report(series, diffs, enabled, MappingTree(files), version)


def _short(report: Report) -> list[tuple[str, str, bool]]:
    return [(outcome.id, outcome.outcome, outcome.error) for outcome in report.outcomes]


def _only(report: Report) -> PatchOutcome:
    (outcome,) = report.outcomes
    return outcome


def test_what_applies_applies(tmp_path: Path) -> None:
    report = _report(two_patches(tmp_path), SOURCE, ["first", "second"])
    assert _short(report) == [("first", "applies", False), ("second", "applies", False)]
    assert [outcome.enabled for outcome in report.outcomes] == [True, True]
    assert (report.ok, report.base, report.pinned, report.version) == (True, "v1", "1.2.3", "1.2.3")


def test_a_patch_is_tried_on_top_of_what_it_requires(tmp_path: Path) -> None:
    directory = series_directory(tmp_path)
    first = changed(one=ONE)
    second = {**first, "vllm/one.py": first["vllm/one.py"].replace(b"twenty", b"score")}
    write(
        directory,
        entry(directory, 1, "first", patch_text(SOURCE, first)),
        entry(directory, 2, "second", patch_text(first, second), "    requires: [first]\n"),
        entry(directory, 3, "third", patch_text(first, second)),
    )
    for enabled in ([], ["first"], ["first", "second"]):
        assert [outcome for _, outcome, _ in _short(_report(directory, SOURCE, enabled))] == [
            "applies",
            "applies",
            "conflicts",
        ]


def test_a_conflict_names_file_and_hunk_and_is_an_error_where_it_is_enabled(tmp_path: Path) -> None:
    directory = two_patches(tmp_path)
    files = changed(two=(b"two 19\n", b"two nineteen\n"))
    report = _report(directory, files, ["first", "second"])
    assert _short(report) == [("first", "applies", False), ("second", "conflicts", True)]
    assert not report.ok
    (conflict,) = report.outcomes[1].conflicts
    assert (conflict.file, conflict.hunk) == ("vllm/two.py", "@@ -17,7 +17,7 @@")
    assert report.outcomes[1].detail == "in vllm/two.py"
    assert _report(directory, files, ["first"]).ok


def test_what_can_be_taken_back_is_there_already(tmp_path: Path) -> None:
    directory = two_patches(tmp_path)
    files = changed(one=ONE)
    candidate = _report(directory, files, ["first", "second"], version="1.3.0")
    assert _short(candidate) == [("first", "already-upstream", False), ("second", "applies", False)]
    assert candidate.ok
    # In the pinned version it means that the set cannot be applied: the series must say so.
    assert _short(_report(directory, files, ["first"]))[0] == ("first", "already-upstream", True)


def test_a_change_that_upstream_made_in_another_form_is_found_by_its_evidence(tmp_path: Path) -> None:
    directory = series_directory(tmp_path)
    evidence = "    evidence: [{path: vllm/one.py, contains: [one XX]}]\n"
    write(directory, entry(directory, 1, "first", patch_text(SOURCE, changed(one=ONE)), evidence))
    report = _report(directory, changed(one=(b"one 20\n", b"one XX\n")), ["first"], version="1.3.0")
    assert (_only(report).outcome, report.ok) == ("already-upstream", True)
    assert _only(report).detail == "already upstream, in another form: its evidence holds"
    assert _only(_report(directory, SOURCE, ["first"])).outcome == "applies"


def test_a_claim_is_proved_by_its_evidence(tmp_path: Path) -> None:
    directory = write(series_directory(tmp_path), _UPSTREAM)
    report = _report(directory, SOURCE)
    assert (_only(report).outcome, _only(report).detail) == ("already-upstream", "already upstream since 1.2.0")
    assert report.ok


def test_a_claim_without_its_evidence_is_an_error(tmp_path: Path) -> None:
    directory = write(series_directory(tmp_path), _UPSTREAM)
    for files, words in (
        ({}, "vllm/one.py is not in this source"),
        ({"vllm/one.py": b"one 8\n"}, "vllm/one.py does not hold 'one 7\\n'"),
        ({"vllm/one.py": b"one 7\nseven"}, "vllm/one.py still holds 'seven'"),
    ):
        report = _report(directory, files)
        assert (_only(report).outcome, report.ok) == ("missing", False)
        assert _only(report).detail == f"claimed upstream since 1.2.0, but {words}"


def test_a_rejected_change_says_why(tmp_path: Path) -> None:
    listed = """\
  - id: padding
    status: rejected
    summary: Map 0 to -1
    upstream: {state: closed}
    reason: it writes outside the tensor
"""
    report = _report(write(series_directory(tmp_path), listed), SOURCE)
    assert (_only(report).outcome, _only(report).detail) == ("rejected", "it writes outside the tensor")
    assert report.ok


def test_hunks_below_tests_are_told_apart(tmp_path: Path) -> None:
    directory = series_directory(tmp_path)
    new = changed(one=ONE) | {"tests/test_one.py": b"def test():\n    assert 2\n"}
    write(directory, entry(directory, 1, "first", patch_text(SOURCE, new)))
    moved = {**SOURCE, "tests/test_one.py": b"def test_renamed():\n    assert 1\n"}
    report = _report(directory, moved, ["first"])
    assert (_only(report).outcome, report.ok, _only(report).conflicts) == ("applies", True, ())
    assert [conflict.file for conflict in _only(report).tests] == ["tests/test_one.py"]
    both = {**moved, "vllm/one.py": b""}
    report = _report(directory, both, ["first"])
    assert (_only(report).outcome, report.ok) == ("conflicts", False)
    assert [conflict.file for conflict in _only(report).conflicts] == ["vllm/one.py"]
    assert [conflict.file for conflict in _only(report).tests] == ["tests/test_one.py"]


def test_what_a_check_reads_is_known_beforehand(tmp_path: Path) -> None:
    directory = series_directory(tmp_path)
    listed = entry(directory, 1, "first", patch_text(SOURCE, changed(two=TWO)))
    series: Series = seriesfile.load(write(directory, listed, _UPSTREAM), SHOWN)
    assert patchcheck.paths_read(series) == {"vllm/one.py", "vllm/two.py"}


def test_two_series_side_by_side(tmp_path: Path) -> None:
    one = seriesfile.load(two_patches(tmp_path), SHOWN)
    changed_ = replace(one.patches[1], sha256="0" * 64)
    gone = Patch("only-there", "rejected", "It was", Upstream("closed"), reason="it is wrong")
    other = replace(one, base="v2", patches=(one.patches[0], changed_, gone))
    assert patchcheck.beside(one, other) == (
        Counterpart("first", "carried", "carried", True),
        Counterpart("second", "carried", "carried", False),
        Counterpart("only-there", None, "rejected", False),
    )
    assert [(each.here, each.there) for each in patchcheck.beside(other, one)][-1] == ("rejected", None)
    rejected = replace(one, patches=(gone,))
    assert patchcheck.beside(rejected, rejected) == (Counterpart("only-there", "rejected", "rejected", False),)
