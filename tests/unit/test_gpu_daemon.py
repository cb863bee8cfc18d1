"""The stand-in for a container engine, asked by nvllm's own client: what a container gets, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu import container, daemon
from nvllm.core.plan import RUN_DIRECTORY, LaunchPlan, Mount, PlannedCommand, Scratch
from nvllm.core.refusal import Refused
from nvllm.core.spec import Waiver
from nvllm.engine import engine
from nvllm.engine.engine import Engine
from nvllm.host.facts import ContainerState
from support.namespaces import allowed
from support.plansamples import PLAN

IDENTITY = "opt/nvllm/identity.json"
LABELS = {"nvllm.instance": PLAN.instance}

pytestmark = pytest.mark.skipif(not allowed(), reason="only root makes containers of its own")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory of the stand-in with an image that has an identity and the Python of this host."""
    (tmp_path / "image").mkdir()
    (tmp_path / "image/identity.json").write_text("{}")
    root = {"/opt/nvllm": str(tmp_path / "image")}
    if Path(sys.base_prefix).parts[1] in container.OWN:
        root[sys.base_prefix] = sys.base_prefix
    said = {"Id": PLAN.image_id, "RootFS": {"Layers": []}, "RepoTags": ["nvllm:x"], "Os": "linux", "Architecture": "x"}
    (tmp_path / "image.json").write_text(json.dumps({"said": said, "root": root}))
    return tmp_path


@pytest.fixture
def stand_in(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    argv = [sys.executable, "-m", "gpu.daemon", str(directory)]
    process = subprocess.Popen(argv, cwd=Path(daemon.__file__).parents[1])
    try:
        until = time.monotonic() + 30
        while not (directory / "engine.sock").exists() and time.monotonic() < until:
            time.sleep(0.05)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{directory}/engine.sock")
        monkeypatch.setenv("DOCKER_CONFIG", str(directory))
        found = engine.connect()
        assert isinstance(found, Engine), found
        yield found
    finally:
        process.terminate()
        process.wait(30)


def shell(script: str, directory: Path) -> LaunchPlan:
    """Return a plan whose command is SCRIPT, with a file in a read-only mount, and scratch."""
    mounted = directory / "run"
    mounted.mkdir(exist_ok=True)
    mounted.chmod(0o755)
    (mounted / "launch.json").write_text("{}")
    (mounted / "launch.json").chmod(0o644)
    return replace(
        PLAN,
        command=PlannedCommand((), ("/bin/sh", "-c", script)),
        environment={"PATH": "/usr/bin:/bin", "OF": "the plan"},
        mounts=(Mount(str(mounted), RUN_DIRECTORY), Mount(str(mounted / "launch.json"), "/models/tiny/config.json")),
        scratch=(Scratch("/tmp", 1 << 20),),
        user="4242:4343",
        port=8000,
        gpu=None,
    )


def said(stand_in: Engine, plan: LaunchPlan) -> list[str]:
    """Run PLAN to its end and return the lines that it printed, without the times before them."""
    made = stand_in.start(plan, LABELS)
    lines = b"".join(stand_in.logs(made, follow=True)).decode().splitlines()
    stand_in.remove(made)
    return [line.partition(" ")[2] for line in lines]


def test_a_container_has_what_the_plan_says_and_no_rights(stand_in: Engine, directory: Path) -> None:
    script = "exec 2>&1; id -u; id -g; echo $OF $HOME; grep -E '^(CapBnd|CapEff|NoNewPrivs)' /proc/self/status; "
    script += "cat /proc/1/comm; touch /x /run/nvllm/x /models/tiny/config.json /tmp/x; ls /run/nvllm /tmp /models/tiny"
    lines = said(stand_in, shell(script, directory))
    assert lines[:2] == ["4242", "4343"]
    assert "the plan" in lines
    assert {"CapBnd:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"} <= set(lines)
    assert lines[lines.index("NoNewPrivs:\t1") + 1] == "sh"  # its first process, and nobody else's is there
    assert sum("Read-only file system" in line or "Permission denied" in line for line in lines) == 3, lines
    assert {"launch.json", "x", "config.json"} <= set(lines)


def test_a_container_is_seen_used_and_stopped(stand_in: Engine, directory: Path) -> None:
    plan = shell("trap 'exit 7' TERM; : >/tmp/made.so; echo up; while :; do sleep 0.05; done", directory)
    made = stand_in.start(plan, LABELS)
    (fact,) = stand_in.containers()
    assert (fact.name, fact.id, fact.running, fact.by_nvllm) == (plan.instance, made, True, True)
    assert next(stand_in.logs(made, follow=True)).endswith(b" up\n")
    python = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    assert stand_in.scratch_files(made, python) == ["/tmp/made.so"]
    assert stand_in.scratch_files(made, "/no/such/python") is None
    assert stand_in.usage(made).peak_memory is None
    assert stand_in.state(made) == ContainerState(None, out_of_memory=False)
    stand_in.stop(made, 10)
    assert stand_in.state(made) is None
    assert stand_in.containers() == ()


def test_a_command_in_a_container_has_its_variables_and_its_directory(stand_in: Engine, directory: Path) -> None:
    made = stand_in.start(shell("sleep 60", directory), LABELS)
    assert stand_in.run_in(made, ["/bin/sh", "-c", "echo $OF; /bin/pwd;"])[1].split("\n")[:2] == ["the plan", "/"]
    assert stand_in.run_in(made, ["/bin/false"])[0] == 1


def test_how_a_container_ended_is_known_and_its_name_is_free_again(stand_in: Engine, directory: Path) -> None:
    for status in (3, 4):
        made = stand_in.start(shell(f"exit {status}", directory), LABELS)
        list(stand_in.logs(made, follow=True))
        assert stand_in.state(made) == ContainerState(status, out_of_memory=False)
    made = stand_in.start(shell("sleep 60", directory), LABELS)
    stand_in.kill(made)
    assert stand_in.state(made) == ContainerState(137, out_of_memory=False)


def test_the_image_and_its_files_are_known(stand_in: Engine) -> None:
    found = stand_in.image("nvllm:x")
    assert found is not None
    assert found.id == PLAN.image_id
    assert stand_in.image("nvllm:other") is None
    assert stand_in.read_file(found.id, f"/{IDENTITY}") == b"{}"
    assert stand_in.read_file(found.id, "/opt/nvllm/other") is None
    assert stand_in.facts().product == "Docker"


def test_what_it_does_not_do_is_refused(stand_in: Engine, directory: Path) -> None:
    plan = shell("true", directory)
    for wrong, word in (
        (replace(plan, waivers=(Waiver("host-ipc", "a test"),)), "IpcMode private alone"),
        (replace(plan, command=PlannedCommand((), ("/no/such/program",))), ""),
    ):
        if word:
            with pytest.raises(Refused) as caught:
                stand_in.start(wrong, LABELS)
            assert word in caught.value.refusals[0].found
        else:
            assert "no container: " in said(stand_in, wrong)[0]
    with pytest.raises(daemon.WrongRequestError, match="Privileged"):
        daemon.refuse_unknown({"Privileged": True, "ShmSize": 1})
