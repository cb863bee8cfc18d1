"""The machine of an exported serve: every difference from the plan is found, before the gate runs."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nvllm.host import facts
from nvllm.runtime import machine

HERE = machine.processor()
EXPECTED: dict[str, Any] = {
    "machine": HERE["machine"],
    "kind": HERE["kind"],
    "flags": list(HERE["flags"]),
    "layout": {"count": HERE["count"], "cores": HERE["cores"], "nodes": HERE["nodes"]},
}


def test_the_processor_is_what_the_launcher_reads() -> None:
    assert facts.Cpu(**HERE) == facts.cpu(Path("/proc"))
    assert machine.processors(EXPECTED, HERE) == []


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("machine", "riscv64"),
        ("kind", "another one"),
        ("flags", ["avx_of_a_test"]),
        ("layout", {"count": 0, "cores": 0, "nodes": 0}),
    ],
)
def test_another_processor(name: str, other: object) -> None:
    (found,) = machine.processors({**EXPECTED, name: other}, HERE)
    assert found["where"] == f"processor: {name}"


def test_an_engine_on_gpus_may_have_another_number_of_processors() -> None:
    assert machine.processors({**EXPECTED, "layout": None}, {**HERE, "count": 1}) == []


GPU = {"name": "NVIDIA GB10", "capability": "12.1", "driver": "580.95.05"}


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        ("NVIDIA GB10, 12.1, 580.95.05\n", None),
        ("NVIDIA GB10, 12.1, 590.1\n", "NVIDIA GB10, 12.1, 590.1"),
        ("", ""),
    ],
)
def test_the_gpus_are_those_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, found: str | None
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{printed}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert [one["found"] for one in machine.gpus([GPU])] == ([] if found is None else [found])
    assert machine.gpus([]) == []


def test_no_nvidia_smi_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (found,) = machine.gpus([GPU])
    assert found["where"] == "nvidia-smi"


def test_memory_that_is_there_is_enough(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:       8 kB\n")
    assert machine.memory(8192, str(tmp_path)) == []
    assert [one["found"] for one in machine.memory(8193, str(tmp_path))] == ["8192 bytes"]


def test_large_files_are_hashed_and_small_ones_left_to_the_gate(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"weights")
    (tmp_path / "small").write_bytes(b"{}")
    listed = [
        {"path": "large", "size": 7, "sha256": hashlib.sha256(b"weights").hexdigest()},
        {"path": "small", "size": 2, "sha256": "0" * 64},
    ]
    models = [{"path": str(tmp_path), "files": listed}]
    assert machine.large_files(models, 6) == []
    (tmp_path / "large").write_bytes(b"Weights")
    (found,) = machine.large_files(models, 6)
    assert found["where"] == f"{tmp_path}/large"
    (tmp_path / "large").unlink()
    assert "FileNotFoundError" in machine.large_files(models, 6)[0]["found"]


def run(tmp_path: Path, cpu: object) -> subprocess.CompletedProcess[str]:
    """Run the program as a container does, with a command that prints its variables in the place of the gate."""
    launch = tmp_path / "launch.json"
    launch.write_text(json.dumps({"models": []}))
    (tmp_path / "machine.json").write_text(json.dumps({"cpu": cpu, "gpus": [], "memory_available": 0}))
    text = Path(machine.__file__).read_text().replace(machine.LAUNCH, str(launch))
    (tmp_path / "machine.py").write_text(text)
    command = [sys.executable, "-I", "-c", "import json, os; print(json.dumps(sorted(os.environ)))"]
    variables = {"PATH": os.defpath, "KUBERNETES_PORT": "tcp://10.0.0.1", "OTHER_PORT": "1", "TERM": "xterm"}
    argv = [sys.executable, "-I", str(tmp_path / "machine.py"), *command]
    return subprocess.run(argv, env=variables, capture_output=True, text=True, check=False)


def test_it_becomes_the_gate_without_the_variables_of_a_kubelet(tmp_path: Path) -> None:
    done = run(tmp_path, EXPECTED)
    said, variables = done.stdout.splitlines()
    assert said == 'nvllm.machine {"event": "passed"}'
    assert {"OTHER_PORT", "PATH"} <= set(json.loads(variables))
    assert not set(json.loads(variables)) & machine.INJECTED


def test_it_refuses_with_the_status_of_the_gate(tmp_path: Path) -> None:
    done = run(tmp_path, {**EXPECTED, "kind": "another one"})
    assert done.returncode == 78
    assert json.loads(done.stdout.removeprefix("nvllm.machine"))["event"] == "refused"


def test_expectations_that_are_damaged_are_refused(tmp_path: Path) -> None:
    assert run(tmp_path, None).returncode == 78
