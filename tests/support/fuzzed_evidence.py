"""What reads evidence: run directories, which people send each other, questions, and what engines and probes answer."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import cast
from unittest import mock

from nvllm.core import documents
from nvllm.evidence import analysis, conclusion, harness, lmeval, page, summary, trace
from nvllm.evidence.directory import EvidenceDirectory
from nvllm.evidence.load import LoadProbe
from nvllm.evidence.records import FORM_COMPARISON, FORM_KERNELS, KERNELS_SCHEMA, KernelTable, KernelTime
from nvllm.evidence.trace import Taken
from nvllm.serve import health
from nvllm.serve.startup import EngineStart
from nvllm.trials import probing, questions
from nvllm.trials.probing import Asked, QuestionProbe
from nvllm.trials.questions import Question
from support.evidence_samples import benched, legs, manifest, verdict
from support.fuzzed import Reader
from support.plansamples import PLAN

MANIFEST, VERDICT, ANSWERS = "runner_manifest.json", "arms/none/run-1/verdict.json", "arms/none/run-1/perq.jsonl"


def _run(directory: Path) -> EvidenceDirectory:
    """Write a finished ablation of one sentinel, two runs of three questions, into DIRECTORY."""
    made = EvidenceDirectory(directory)
    made.begin(manifest((), ("a",), runs=2, questions=3), force=False)
    for arm in ((), ("a",)):
        for said, answers in legs(arm, lambda *_: (True, 10, 1.0), runs=2, questions=3).legs:
            made.leg(said.arm, said.run).mkdir(parents=True)
            made.finish(said, answers)
    return made


def _seed(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        return (_run(Path(directory, "run")).path / name).read_bytes()


def _report(name: str, path: Path) -> None:
    """Report on a run whose file NAME has the content of PATH."""
    with tempfile.TemporaryDirectory() as directory:
        run = _run(Path(directory, "run"))
        (run.path / name).write_bytes(path.read_bytes())
        read, arms = run.manifest(), run.arms()
        found = conclusion.of(read, arms)
        summary.markdown(read, found)
        page.html(read, arms, found)


def _kept(asked: Asked) -> None:
    """Write what an engine was ASKED as a leg, and read it again."""
    with tempfile.TemporaryDirectory() as directory:
        run = EvidenceDirectory(Path(directory, "run"))
        run.begin(manifest((), runs=1), force=False)
        run.leg("none", 1).mkdir(parents=True)
        said = dataclasses.replace(verdict("none", 1, asked.answers), figures=asked.figures)
        run.finish(said, asked.answers)
        (arm,) = run.arms()
        assert arm.legs == ((said, asked.answers),)


_START = cast("EngineStart", mock.Mock(plan=PLAN))


def _completion(path: Path) -> None:
    """Ask an engine that answers with PATH."""
    probe = QuestionProbe("gsm8k", (Question(1, "1 + 1?", "2"),), 42, 64, 5.0, 1, None)
    body = path.read_bytes().decode(errors="replace")
    with mock.patch.object(health, "ask", return_value=(200, body)):
        _kept(probe.ask(_START, 1, lambda: None))


def _load(path: Path) -> None:
    _kept(LoadProbe("vllm", 20, 2, 64, 32, 42).read(path.read_bytes().decode(errors="replace"), 1))


def _result() -> bytes:
    shares = {f"p{share}_{metric}_ms": 5.5 for share in (50, 95, 99) for metric in ("ttft", "tpot", "itl", "e2el")}
    said = {"completed": 20, "total_output_tokens": 640, "duration": 9.5, "output_throughput": 67.4}
    return json.dumps({**said, "request_throughput": 2.1, **shares}).encode()


def _lines(path: Path) -> None:
    _kept(
        Asked(tuple(probing.reported(1, number, line) for number, line in enumerate(path.read_bytes().split(b"\n"), 1)))
    )


_LOG = b"""nvllm.sentinel name=a enabled=true
nvllm.sentinel name=a first_fire
nvllm.sentinel name=b enabled=false
"""


_KERNELS = KernelTable(
    schema=KERNELS_SCHEMA,
    arm="none",
    on="gpu",
    requests=2,
    steps=32,
    microseconds=1000.0,
    kernels=(KernelTime("gemm", 7, 600.5), KernelTime("softmax", 3, 0.0)),
    others=2,
    trace="",
)


def _kernels(path: Path) -> None:
    """Report on a bench of two profiles, the first of which has PATH as the kernels of its trace."""
    with tempfile.TemporaryDirectory() as directory:
        run = EvidenceDirectory(Path(directory, "run"))
        arms = [benched(one, [{"output tokens/s": 9.5}] * 2) for one in ("none", "a")]
        begun = dataclasses.replace(manifest((), ("a",), runs=2), kind="bench", ablated=(), traced=True)
        run.begin(begun, force=False)
        for arm in arms:
            run.trace(arm.name).mkdir(parents=True)
            for said, answers in arm.legs:
                run.leg(said.arm, said.run).mkdir(parents=True)
                run.finish(said, answers)
        run.keep_trace(dataclasses.replace(_KERNELS, arm="a"), b"")
        (run.trace("none") / "kernels.json").write_bytes(path.read_bytes())
        read, legs = run.manifest(), run.arms()
        found = conclusion.of(read, legs, run.kernels())
        summary.markdown(read, found)
        analysis.markdown(read, found)
        documents.encode(FORM_COMPARISON, found)
        page.html(read, legs, found)


def _trace(path: Path) -> None:
    """Read PATH as what `runtime.kernel_times` prints, write it as the trace of a leg, and read that again."""
    try:
        taken = trace.read(path.read_bytes().decode(errors="replace"), Taken("none", 1, 2, 32, 32))
    except (ValueError, KeyError, TypeError):  # what `trace.take` refuses
        return
    with tempfile.TemporaryDirectory() as directory:
        run = EvidenceDirectory(Path(directory, "run"))
        run.begin(manifest((), runs=1), force=False)
        run.trace("none").mkdir(parents=True)
        run.keep_trace(taken.table, taken.trace)
        assert run.kernels() == (taken.table,)


def _samples(path: Path) -> None:
    """Read PATH as the log of lm-eval's samples."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "samples_sums.jsonl").write_bytes(path.read_bytes())
        _kept(Asked(tuple(lmeval.answers(Path(directory), 1))))


_SAMPLE = {
    "doc_id": 0,
    "target": "7",
    "resps": [["3 and 4 are 7"]],
    "filtered_resps": ["7"],
    "metrics": ["exact_match"],
    "exact_match": 1.0,
}


def _reader(name: str) -> Reader:
    return Reader(Path(name).name, lambda: _seed(name), lambda path: _report(name, path))


READERS: Mapping[str, Reader] = {
    "evidence manifest": _reader(MANIFEST),
    "evidence verdict": _reader(VERDICT),
    "evidence answers": _reader(ANSWERS),
    "evidence kernels": Reader("kernels.json", lambda: documents.encode(FORM_KERNELS, _KERNELS), _kernels),
    "trace": Reader(
        "trace.json",
        lambda: json.dumps(
            {"gpu": True, "kernels": [["gemm", 7, 600.5]], "sizes": [3], "steps": 7, "trace": "YWJj"}
        ).encode(),
        _trace,
    ),
    "lm-eval samples": Reader("samples.jsonl", lambda: json.dumps(_SAMPLE).encode() + b"\n", _samples),
    "questions": Reader(
        "test.jsonl",
        lambda: (
            b'{"question": "1 + 1?", "answer": "1 + 1 = 2\\n#### 2"}\n{"question": "x", "answer": "#### 1,200.50"}\n'
        ),
        questions.load,
    ),
    "evidence completion": Reader(
        "completion.json",
        lambda: json.dumps({"choices": [{"text": "#### 2"}], "usage": {"completion_tokens": 5}}).encode(),
        _completion,
    ),
    "bench result": Reader("bench.json", _result, _load),
    "probe lines": Reader(
        "perq.jsonl",
        lambda: b'{"id": 1, "correct": true, "seconds": 0.5, "tokens": 7}\n{"id": 2, "correct": false, "text": "x"}',
        _lines,
    ),
    "sentinel log": Reader(
        "engine.log", lambda: _LOG, lambda path: harness.sentinels(path.read_bytes().decode("utf-8", "replace"))
    ),
}
