"""`nvllm ablate`, `bench`, `eval` and `sweep` through the command line, on a host and with an engine that are made up.

What is between the command line and the engine is real: examination, gates, locks, watchdog, evidence.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from nvllm.cli.main import main
from nvllm.core.paths import Places, Project
from nvllm.core.plan import CACHE, Workbench
from nvllm.engine import engine as engines
from nvllm.evidence import runner
from nvllm.evidence.records import Kind
from nvllm.host import survey
from nvllm.host.facts import ContainerFact, ContainerState, DiskFacts, EngineFacts, HostFacts
from nvllm.image import buildrecord, identity, presence
from nvllm.image.buildrecord import Record, RecordedLayer
from nvllm.patches import patchset
from nvllm.serve import fresh, memoryseries, startup, watchdog
from support import bless_world, blessings_world, question_samples
from support.evidence_world import IDLE, SwitchedEngine
from support.gate_samples import FACTS
from support.host_samples import ENGINE
from support.plansamples import FrontEnd, edit, places, project, put_model

_MODEL = f"{blessings_world.AOT}/rank_0_0/model"
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass
class CampaignEngine(SwitchedEngine):
    """An engine that carries the load of `vllm bench serve` out at once, and whose containers end when killed."""

    at_load: Callable[[], None] = bless_world.nothing
    """What happens while the load runs."""
    requests: int = 0
    """How many the last load had."""

    def start_workbench(self, bench: Workbench, labels: Mapping[str, str]) -> str:
        container = super().start_workbench(bench, labels)
        # No two compiles leave the same bytes.
        Path(bench.directory, _MODEL).write_text(f"compile {len(self.benches)}")
        if os.geteuid() == 0:  # the engine of a root operator runs as another user
            for path in Path(bench.directory).rglob("*"):
                os.chown(path, int(bench.plan.user.partition(":")[0]), -1)
        return container

    @property
    def loaded(self) -> int:
        """Which compile, from 1, the engine that was started last has loaded."""
        (source,) = [one.source for one in self.plans[-1].mounts if one.target == CACHE]
        return int(Path(source, _MODEL).read_text().split()[1])

    def facts(self) -> EngineFacts:
        return ENGINE

    def containers(self) -> tuple[ContainerFact, ...]:
        return ()

    def kill(self, container_id: str) -> None:
        super().kill(container_id)
        if self.running:
            self.status = ContainerState(137, out_of_memory=False)
            self.lines.put(None)

    @property
    def running(self) -> bool:
        return self.status is not None and self.status.exit_code is None

    def run_in(self, container_id: str, command: Sequence[str]) -> tuple[int, str]:
        self.at_load()
        if "-c" in command:  # what adds up a trace
            rows = [["gemm", 64, 1280.0 + len(self.plans)], ["norm", 32, 320.0]]
            return 0, json.dumps({"gpu": True, "kernels": rows, "sizes": [2], "steps": 20, "trace": ""})
        self.requests = int(command[command.index("--num-prompts") + 1])
        return (0, "") if self.running else (137, "killed")

    def read_in(self, container_id: str, path: str) -> str | None:
        shares = {f"p{share}_{one}_ms": 5.5 for share in (50, 95, 99) for one in ("ttft", "tpot", "itl", "e2el")}
        said = {"completed": self.requests, "total_output_tokens": 64, "duration": 1.5, "output_throughput": 42.5}
        return json.dumps({**said, "request_throughput": 2.5, **shares})


@dataclass
class Campaign:
    """A project with the profile `eager`, and a host that may run it."""

    project: Project
    places: Places
    engine: CampaignEngine
    front: FrontEnd
    output: Path
    questions: Path
    capsys: pytest.CaptureFixture[str]

    def run(self, kind: Kind, *more: str) -> tuple[int, dict[str, Any]]:
        """Run a campaign of KIND with two legs, and return the exit status and the document."""
        return self.nvllm([*self.line(kind), *more])

    def line(self, kind: Kind) -> list[str]:
        """Return the command line of a campaign of KIND."""
        data = ["--data", str(self.questions), "--timeout", "30", "--length", "16"]
        load = ["--requests", "4", "--concurrency", "1", "--prompt-len", "32", "--output-len", "16"]
        words = {
            "ablate": ["demo", "--profile", "eager", "--sentinels", "a", "--probe", "gsm8k", *data, "--runs", "1"],
            "bench": ["demo", "--profile", "eager", "--vs", "eager", *load, "--runs", "1"],
            "eval": ["gsm8k", "--image", "demo", "--profile", "eager", *data, "--runs", "2"],
            "sweep": ["demo", "--profiles", "eager", "--probe", "gsm8k", *data, *load, "--runs", "1"],
        }[kind]
        return [kind, *words, "--output", str(self.output)]

    def interrupted(self, kind: Kind) -> int:
        """Run what `run` does, which may be interrupted, and return the exit status."""
        return main(["--project", str(self.project.root), *self.line(kind)])

    def nvllm(self, words: Sequence[str]) -> tuple[int, dict[str, Any]]:
        """Run nvllm with WORDS, and return the exit status and the document."""
        self.capsys.readouterr()
        status = main(["--project", str(self.project.root), "--json", *words])
        document = json.loads(self.capsys.readouterr().out)
        assert isinstance(document, dict)
        return status, document

    def answers(self, right: Callable[[int, int], bool]) -> None:
        """Let the engine answer rightly if RIGHT is true of its number, from 1, and that of the question in it."""
        asked: dict[int, int] = {}

        def told(body: bytes) -> None:
            prompt, engine = json.loads(body)["prompt"], len(self.engine.plans)
            if "How many?" in prompt:
                number = asked[engine] = asked.get(engine, 0) + 1
                total = sum(int(word) for word in re.findall("[0-9]+", prompt))
                said = {"text": f"#### {total + (not right(engine, number))}"}
                self.front.body = json.dumps({"choices": [said], "usage": {"completion_tokens": 4}}).encode()
            else:
                self.front.body = bless_world.answer(bless_world.TOKENS)

        self.front.at_request = told

    def require(self, gate: str) -> None:
        """Let the profile require GATE, as YAML."""
        edit(self.project.spec("demo"), "    port: 8000\n", f"    port: 8000\n    gates: {gate}\n")

    @property
    def verdicts(self) -> list[Path]:
        return sorted(self.output.glob("arms/*/*/verdict.json"))


def campaign(
    tmp_path: Path, front: FrontEnd, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Campaign:
    """Return a campaign below TMP_PATH whose engine answers by FRONT."""
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    found, where, engine = project(tmp_path), places(tmp_path), CampaignEngine()
    edit(found.spec("demo"), "    sentinels: [zeroer, drain]\n", "")
    put_model(where)
    front.body, front.metrics = bless_world.answer(bless_world.TOKENS), IDLE
    made, _ = identity.load_build(found, "demo", None)
    digest = "sha256:" + "5" * 64
    buildrecord.write(
        where.builds, Record("demo", made.build_hash, digest, (RecordedLayer("base", digest, 5),), digest, "built")
    )

    def host(*_: object) -> HostFacts:
        disks = {str(where.runs): DiskFacts(100 << 30, 1)}
        return replace(FACTS, uid=os.geteuid(), gid=os.getegid(), disks=disks)

    monkeypatch.setattr(engines, "require", lambda: engine)
    monkeypatch.setattr(survey, "host_facts", host)
    monkeypatch.setattr(presence, "refusals", lambda *_: [])
    monkeypatch.setattr(patchset, "sentinels", lambda _: frozenset({"a", "b"}))
    monkeypatch.setattr(fresh, "free_port", lambda: front.port)
    monkeypatch.setattr(startup, "POLL", 0.005)
    monkeypatch.setattr(watchdog, "INTERVAL", 0.002)
    monkeypatch.setattr(memoryseries, "INTERVAL", 0.002)
    monkeypatch.setattr(runner, "REST", 0.1)
    return Campaign(
        found, where, engine, front, tmp_path / "run", question_samples.write(tmp_path / "q.jsonl", 4), capsys
    )
