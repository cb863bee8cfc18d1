"""`nvllm gate`: sizes, dry runs, what is absent, and one of a kind at a time."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nvllm.cli.main import main
from nvllm.host import facts, gate_records, locks, nvml, sensors
from nvllm.host.locks import Holder, Key
from nvllm.host.nvml import NvmlProblem
from support.gate_samples import OK, put_memtester
from support.plansamples import places


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state directory of the test's own, and a stand-in for memtester."""
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{put_memtester(tmp_path / 'bin', OK).parent}:/usr/bin:/bin")


def said(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, dict[str, object]]:
    ended = main(["--json", *line.split()])
    return ended, json.loads(capsys.readouterr().out)


def test_bands_are_tested_in_their_order_and_each_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended, document = said(capsys, "gate memory --bands 2M,1MiB,2M")
    assert ended == 0
    (filed,) = gate_records.filed(places(tmp_path).gates)
    assert filed.record is not None
    assert [one.bytes >> 20 for one in filed.record.bands] == [2, 1]
    result = document["result"]
    assert isinstance(result, dict)
    assert result["gates"][0]["file"] == filed.path


def test_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gate", "memory", "--bands", "1M"]) == 0
    shown = capsys.readouterr().out
    assert "memory  band 1M       passed  no fault" in shown
    assert "memory gate: passed, 20" in shown


@pytest.mark.parametrize("bands", ["64K", "0M", "1.5G", "", "4G,", "4g", "-4G", "99999999999G"])
def test_what_is_no_size(capsys: pytest.CaptureFixture[str], bands: str) -> None:
    ended, document = said(capsys, f"gate memory --bands={bands}")
    assert ended == 2
    refusals = document["refusals"]
    assert isinstance(refusals, list)
    assert "is no size such as 512M or 4G" in refusals[0]["found"]


def test_a_dry_run_tests_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended, document = said(capsys, "gate memory --bands 1M --dry-run")
    assert (ended, document["result"]) == (0, {"bands": [{"bytes": 2**20, "loops": 1}], "swap": 2**30})
    ended, document = said(capsys, "gate memory --bands 900000G --dry-run")
    assert ended == 3
    assert not places(tmp_path).gates.exists()


def test_a_band_that_does_not_fit_is_refused_before_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended, document = said(capsys, "gate memory --bands 1M,900000G")
    refusals = document["refusals"]
    assert isinstance(refusals, list)
    assert (ended, [one["code"] for one in refusals]) == (3, ["NV505"])
    assert gate_records.filed(places(tmp_path).gates) == ()


def test_without_memtester(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ended, document = said(capsys, "gate memory --bands 1M")
    refusals = document["refusals"]
    assert isinstance(refusals, list)
    assert (ended, refusals[0]["code"], refusals[0]["cure"]) == (3, "NV512", "apt-get install memtester")


def test_two_of_a_kind_would_measure_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    holder = Holder(os.getpid(), "2026-11-22T12:00:00Z", "nvllm gate memory")
    with locks.acquire_all(places(tmp_path).locks, [Key("gate", "memory")], holder):
        ended, document = said(capsys, "gate memory --bands 1M")
    refusals = document["refusals"]
    assert isinstance(refusals, list)
    assert (ended, refusals[0]["code"]) == (3, "NV508")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without GPU, driver and sensors."""
    monkeypatch.setattr(facts, "nvidia_gpus", lambda _: ((), None))
    monkeypatch.setattr(nvml, "read", lambda: NvmlProblem("no driver", "none"))
    monkeypatch.setattr(sensors, "temperatures", dict)


@pytest.mark.usefixtures("bare")
def test_what_is_absent_is_not_measured_and_not_passed(capsys: pytest.CaptureFixture[str]) -> None:
    ended, document = said(capsys, "gate thermal --seconds 0")
    refusals, result = document["refusals"], document["result"]
    assert isinstance(refusals, list)
    assert isinstance(result, dict)
    assert (ended, [one["code"] for one in refusals]) == (3, ["NV518"])
    assert (result["gates"][0]["outcome"], "not measured: no GPU" in refusals[0]["found"]) == ("not measured", True)


def test_what_a_pass_does_not_show_is_printed_with_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "read", lambda: NvmlProblem("no driver", "none"))
    monkeypatch.setattr(sensors, "temperatures", lambda: {"zone": 40.0})
    monkeypatch.setattr(facts, "nvidia_gpus", lambda _: ((), None))
    assert main(["gate", "thermal", "--seconds", "0"]) == 0
    assert "  This does not show that clocks hold under load:" in capsys.readouterr().out
    ended, document = said(capsys, "gate thermal --seconds 0 --host-temperature 30")
    result = document["result"]
    assert isinstance(result, dict)
    assert (ended, result["gates"][0]["not_shown"]) == (1, "")  # it did not pass


@pytest.mark.usefixtures("bare")
def test_all_of_them_and_what_is_absent_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = "--p50 60000 --p99 60000 --swap 9999999M"
    ended, document = said(capsys, f"gate all --bands 1M --seconds 0 --writes 10 {limits}")
    result = document["result"]
    assert isinstance(result, dict)
    assert (ended, [(one["gate"], one["outcome"]) for one in result["gates"]]) == (
        0,
        [("disk", "passed"), ("thermal", "not measured"), ("memory", "passed")],
    )
    assert len(gate_records.filed(places(tmp_path).gates)) == 3


@pytest.mark.usefixtures("bare")
def test_what_one_gate_lacks_does_not_hinder_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ended, document = said(capsys, "gate all --bands 1M --seconds 0 --writes 10 --p50 0.000001 --p99 60000")
    refusals = document["refusals"]
    assert isinstance(refusals, list)
    assert (ended, [one["code"] for one in refusals]) == (3, ["NV512", "NV517"])
    assert {one.gate for one in gate_records.filed(places(tmp_path).gates)} == {"disk", "thermal"}


def test_a_slow_disk_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "gate disk --writes 10 --p50 0.000001 --p99 60000")[0] == 1
