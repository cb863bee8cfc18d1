"""The evidence directory: what is written is read again, and a run goes on where it stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.evidence import comparison, summary
from nvllm.evidence.directory import EvidenceDirectory
from nvllm.serve.memoryseries import MemorySample
from support.evidence_samples import answer, legs, manifest, verdict


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    directory = EvidenceDirectory(tmp_path / "run")
    wanted = manifest((), ("a",), runs=1)
    assert directory.begin(wanted, force=False) == wanted
    assert directory.verdict("none", 1) is None
    directory.leg("none", 1).mkdir(parents=True)
    answers = (answer(1, 1), replace(answer(1, 2, correct=False), problem="HTTP 400", timed_out=True))
    said = verdict("none", 1, answers)
    directory.finish(said, answers)
    assert directory.verdict("none", 1) == said
    none, other = directory.arms()
    assert none.legs == ((said, answers),)
    assert (other.name, other.on, other.legs) == ("a", ("a",), ())


def test_a_run_goes_on_with_the_manifest_that_it_began_with(tmp_path: Path) -> None:
    directory = EvidenceDirectory(tmp_path / "run")
    wanted = directory.begin(manifest((), ("a",)), force=False)
    later = replace(wanted, created="2026-11-23T12:00:00Z", host=replace(wanted.host, kernel="6.2.0"))
    assert directory.begin(later, force=False) == wanted


def test_the_comparison_is_kept(tmp_path: Path) -> None:
    directory = EvidenceDirectory(tmp_path / "run")
    wanted = directory.begin(manifest((), ("a",)), force=False)
    found = comparison.compare([legs(arm, lambda *_: (True, 10, 1.0)) for arm in ((), ("a",))])
    directory.compared(found, "what holds", summary.markdown(wanted, found), "<html>")
    names = {one.name for one in directory.path.iterdir()}
    assert names == {"ANALYSIS.md", "comparison.json", "report.html", "runner_manifest.json", "summary.md"}


def test_a_run_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """Its manifest has no margins, no prompt and no stop; its answers are those of today."""
    directory = EvidenceDirectory(tmp_path / "run")
    directory.begin(manifest((), ("a",)), force=False)
    path = directory.path / "runner_manifest.json"
    document = json.loads(path.read_text())
    document.pop("margins", None)
    for name in ("prompt", "stop", "extraction"):
        document["probe"].pop(name, None)
    path.write_text(json.dumps(document))
    assert directory.manifest() == manifest((), ("a",))


def test_a_series_of_memory_is_read_without_the_part_of_a_line_that_a_kill_left(tmp_path: Path) -> None:
    directory = EvidenceDirectory(tmp_path / "run")
    directory.begin(manifest((), runs=2), force=False)
    leg = directory.leg("none", 1)
    leg.mkdir(parents=True)
    assert directory.series() == {}
    (leg / "memory.jsonl").write_text('{"at":1.5,"bytes":{"available":7}}\n{"at":2.5,"by')
    assert directory.series() == {"none, 1": (MemorySample(1.5, {"available": 7}),)}
    (leg / "memory.jsonl").write_text('{"at":-1,"bytes":{}}\n')
    with pytest.raises(Refused) as caught:
        directory.series()
    assert [one.code for one in caught.value.refusals] == ["NV853"]


def test_a_manifest_with_any_number_of_runs_is_read_at_once(tmp_path: Path) -> None:
    directory = EvidenceDirectory(tmp_path / "run")
    directory.begin(manifest((), ("a",), runs=2**53 - 1), force=False)
    said = verdict("none", 3, (answer(3, 1),))
    directory.leg("none", 3).mkdir(parents=True)
    directory.finish(said, (answer(3, 1),))
    (directory.path / "arms/none/run-x").mkdir()
    assert [[one.run for one, _ in arm.legs] for arm in directory.arms()] == [[3], []]


@pytest.mark.parametrize("name", ["../elsewhere", "/etc", ".", "..", "a/b", "x" * 256])
def test_the_name_of_an_arm_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    directory = EvidenceDirectory(tmp_path / "run")
    wanted = manifest((), ("a",))
    directory.begin(replace(wanted, arms=(replace(wanted.arms[0], name=name), *wanted.arms[1:])), force=False)
    with pytest.raises(Refused) as caught:
        directory.arms()
    assert [(one.code, one.found) for one in caught.value.refusals] == [("NV853", repr(name)[:200])]


@pytest.mark.parametrize("link", [False, True])
def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path, link: bool) -> None:
    place = tmp_path / "run"
    if link:
        place.symlink_to(tmp_path / "nowhere")
    else:
        place.write_text("mine")
    for force in (False, True):
        with pytest.raises(Refused) as caught:
            EvidenceDirectory(place).begin(manifest(()), force=force)
        (refusal,) = caught.value.refusals
        assert (refusal.code, refusal.found) == ("NV852", "something else than a directory")
    assert link or place.read_text() == "mine"
