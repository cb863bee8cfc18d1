"""A trace of each arm: a leg of its own under vLLM's profiler, and what it adds up to."""

from __future__ import annotations

import base64
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from nvllm.core import workload
from nvllm.core.plan import CACHE
from nvllm.core.refusal import Refused
from nvllm.evidence import analysis, conclusion, page, summary, trace
from nvllm.evidence.load import METRICS, PERCENTILES, LoadProbe
from nvllm.evidence.records import KernelTable, TraceRules
from nvllm.evidence.trace import Taken
from support.evidence_samples import benched, manifest
from support.evidence_world import World, artifact_world, probe, world
from support.plansamples import SPEC, FrontEnd

LOAD = LoadProbe("vllm", 100, 2, 64, 128, 42)
SHARES = {f"p{share}_{name}_ms": 5.5 for share in PERCENTILES for name in METRICS}
LOADED = json.dumps(
    {
        "completed": 2,
        "total_output_tokens": 32,
        "duration": 1,
        "output_throughput": 32,
        "request_throughput": 2,
        **SHARES,
    }
)
"""What vLLM's load generator leaves of two requests."""


def said(*rows: tuple[str, int, float], gpu: bool = False, kept: bytes = b"gz") -> str:
    document = {"gpu": gpu, "kernels": rows, "steps": 31, "trace": base64.b64encode(kept).decode()}
    return json.dumps(document)


def table(arm: str, *rows: tuple[str, int, float], gpu: bool = False) -> KernelTable:
    return trace.read(said(*rows, gpu=gpu), Taken(arm, 1, 2, 32, 32)).table


@pytest.fixture
def made(tmp_path: Path, front: FrontEnd) -> World:
    made = world(tmp_path, front, probe())
    made.runner.manifest = replace(made.runner.manifest, arms=made.runner.manifest.arms[:1], ablated=(), kind="bench")
    return replace(made, runner=replace(made.runner, traced=LOAD))


def answers(made: World, *results: tuple[int, str]) -> list[list[str]]:
    """Let the containers of MADE answer with RESULTS, and return the commands that they are given."""
    given, ran = iter(results), list[list[str]]()

    def run_in(_container: str, argv: list[str]) -> tuple[int, str]:
        ran.append(argv)
        return next(given)

    vars(made.engine).update(run_in=run_in, read_in=lambda *_: LOADED)
    return ran


def test_each_arm_has_a_leg_under_the_profiler_that_gives_no_figure(made: World) -> None:
    ran = answers(made, (0, ""), (0, said(("aten::mm", 3, 9.0))))
    found = made.runner.run()
    measured, traced = made.engine.plans
    assert (measured.dev, traced.dev) == (False, True)
    assert not any("profiler" in word for word in measured.command.words)
    command = list(traced.command.words)
    assert command[command.index("--profiler-config.max_iterations") + 1] == "32"
    assert ran[0][-1] == "--profile"
    options = dict(zip(ran[0][3:-4:2], ran[0][4:-4:2], strict=True))
    assert (options["--num-prompts"], options["--random-output-len"]) == ("2", "16")
    (only,) = found.kernels
    assert (only.arm, only.on, only.kernels[0].name, only.microseconds) == ("none", "cpu", "aten::mm", 9.0)
    (traced_arm,) = found.traced
    assert (traced_arm.arm, traced_arm.runs, traced_arm.low) == ("none", (0.000281,), None)
    assert (made.directory.trace("none") / "trace.json.gz").read_bytes() == b"gz"
    assert made.runner.run() == found  # the trace is not taken again
    assert len(made.engine.plans) == 2


@pytest.mark.parametrize(
    "results",
    [
        ((1, "no server"),),
        ((0, ""), (1, "Traceback")),
        ((0, ""), (0, "no JSON")),
        ((0, ""), (0, "{}")),
        ((0, ""), (0, said())),
    ],
)
def test_no_trace_is_refused(made: World, results: tuple[tuple[int, str], ...]) -> None:
    answers(made, *results)
    with pytest.raises(Refused) as caught:
        made.runner.run()
    assert [one.code for one in caught.value.refusals] == ["NV858"]


def test_each_trace_has_an_engine_of_its_own_and_they_are_added_up(made: World) -> None:
    made.runner.manifest = replace(made.runner.manifest, traced=True, trace=TraceRules(3, 40))
    made.directory.begin(made.runner.manifest, force=True)
    results = [(0, said(("aten::mm", 3, took), ("aten::add", 1, 1.0))) for took in (9.0, 12.0, 15.0)]
    answers(made, *(one for result in results for one in ((0, ""), result)))
    found = made.runner.run()
    assert ["40" in one.command.words for one in made.engine.plans] == [False, True, True, True]
    assert [one.name for one in sorted(made.directory.path.glob("arms/none/*"))] == [
        "run-1",
        "trace",
        "trace-2",
        "trace-3",
    ]
    (only,) = found.kernels
    assert [(one.name, one.calls, one.microseconds) for one in only.kernels] == [
        ("aten::mm", 9, 36.0),
        ("aten::add", 3, 3.0),
    ]
    assert (only.run, only.tokens, only.requests, trace.mean(only.kernels[0])) == (3, 96, 6, 4.0)


@pytest.fixture
def compiled(tmp_path: Path, front: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(workload, "SETTINGS", workload.SETTINGS[:1])
    made = artifact_world(tmp_path, front)
    first = replace(made.runner.manifest.arms[0], name="eager")
    states = (first, replace(first, name="eager-2"))
    made.runner.manifest = replace(made.runner.manifest, arms=states, ablated=(), kind="bench", traced=True)
    made.directory.begin(made.runner.manifest, force=True)
    return replace(made, runner=replace(made.runner, traced=LOAD))


def test_a_traced_leg_loads_what_the_other_legs_of_its_arm_loaded(compiled: World) -> None:
    answers(compiled, *[(0, ""), (0, said(("aten::mm", 3, 9.0)))] * 2)
    found = compiled.runner.run()
    legs = [compiled.directory.verdict(arm, 1) for arm in ("eager", "eager-2")]
    assert len(compiled.engine.benches) == 1
    assert {table.tree for table in found.kernels} == {leg.tree for leg in legs if leg is not None} != {""}
    assert not any("loaded no artifact" in note for note in found.notes)
    assert f"Trace of eager, tree {found.kernels[0].tree[:12]}: " in summary.markdown(compiled.runner.manifest, found)
    shutil.rmtree(compiled.directory.trace("eager-2"))  # a run that goes on, of which only a trace is missing
    answers(compiled, (0, ""), (0, said(("aten::mm", 3, 9.0))))
    assert replace(compiled.runner).run() == found
    assert len(compiled.engine.benches) == 1


def test_a_traced_leg_that_compiled_is_invalid(compiled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(compiled, (0, ""), (0, said(("aten::mm", 3, 9.0))))
    take = trace.take

    def compiles(*arguments: Any) -> trace.Traced:
        compiled.engine.scratch = (f"{CACHE}/inductor_cache/aa/new.py",)
        return take(*arguments)

    monkeypatch.setattr(trace, "take", compiles)
    with pytest.raises(Refused) as caught:
        compiled.runner.run()
    ((code, where, text),) = [(one.code, one.where, one.found) for one in caught.value.refusals]
    assert (code, where) == ("NV854", "trace 1 of arm eager")
    assert text == f"{CACHE}/inductor_cache/aa/new.py"
    assert compiled.directory.kernels() == ()


def test_milliseconds_a_token_have_an_interval_over_traces() -> None:
    tables = [replace(table("A", ("gemm", 4, took)), run=run) for run, took in enumerate((60.0, 64.0, 68.0), 1)]
    (traced,) = trace.per_token(tables)
    assert (traced.runs, traced.mean) == ((0.001875, 0.002, 0.002125), 0.002)
    assert (traced.low, traced.high) == pytest.approx((0.001689, 0.002311), abs=1e-6)
    compared = conclusion.of(replace(manifest(()), kind="bench"), [benched("A", [{}] * 2)], tables)
    (row,) = summary.traced_table(compared).rows
    assert row == ("A", "3", "0.002", "0.002 to 0.002")


def test_nobody_knows_the_tokens_of_a_trace_that_has_all_its_steps() -> None:
    taken = Taken("A", 1, 2, 31, 32)
    full = trace.read(said(("gemm", 4, 60.0)), taken).table
    assert (full.tokens, [*trace.per_token([full])]) == (0, [])
    found = conclusion.of(replace(manifest(()), kind="bench"), [benched("A", [{}] * 2)], [full])
    assert any("--trace-steps" in note for note in found.notes)


def test_a_profile_under_the_profiler_is_for_development() -> None:
    (profile,) = [SPEC.profiles["eager"]]
    found = trace.profiled(profile, 32)
    assert (found.dev, found.blessed) == (True, profile.blessed)
    assert found.arguments.items() >= profile.arguments.items()


def test_common_kernels_are_compared() -> None:
    tables = (table("A", ("gemm", 4, 60.0), ("norm", 2, 40.0)), table("B", ("gemm", 4, 90.0), ("rope", 1, 10.0)))
    (common,) = trace.compared(tables)
    assert (common.name, common.first, common.other, common.calls) == ("gemm", "A", "B", (4, 4))
    assert common.shares == pytest.approx((0.6, 0.9))
    assert common.ratio == pytest.approx(1.5)
    assert trace.compared(tables[:1]) == ()


def test_a_long_table_keeps_the_longest_and_the_sum() -> None:
    found = table("A", *((f"k{number}", 1, 200.0 - number) for number in range(150)), gpu=True)
    assert (len(found.kernels), found.others, found.on) == (100, 50, "gpu")
    assert found.microseconds == sum(200.0 - number for number in range(150))


def test_a_trace_is_in_every_report_and_its_limits_are_said() -> None:
    wanted = replace(manifest(()), kind="bench", traced=True)
    legs = [benched(name, [{"output tokens/s": 1.0 + run} for run in range(3)]) for name in "AB"]
    tables = (table("A", ("gemm", 4, 60.0)), table("B", ("gemm", 4, 90.0)))
    found = conclusion.of(wanted, legs, tables)
    text = summary.markdown(wanted, found)
    assert "Trace of A: operators of the processor, without those that each calls, 0.060 ms in all" in text
    assert "| gemm | A, B | 4, 4 | 0.060, 0.090 | 100.0, 100.0 | x1.500 |" in text
    assert "not kernels of a GPU: there is none here" in analysis.markdown(wanted, found)
    drawn: Any = ET.fromstring(page.html(wanted, legs, found))
    cells = ["".join(one.itertext()).strip() for one in drawn.iter("td")]
    assert "0.060, 0.090" in cells
    assert dict(summary.facts(wanted))["trace"].startswith("a leg of each arm, 32 steps")
