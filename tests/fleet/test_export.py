"""Exports of the blessed profile of `cpu`: a real Pod, what Quadlet's generator makes of the unit, schemas and linters.

Podman 5 plays the objects for Kubernetes: it has image volumes, and mounts them executable. There is no kubelet.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import private_engines
from support.engine_world import IMAGE, Done, World, run, until
from support.private_engines import KINDS, PrivateEngine
from support.real_registry import Offered, RealRegistry

pytestmark = pytest.mark.fleet

PODMAN = next(kind for kind in KINDS if kind.name == "podman-5")
STARTS = 300
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
"""With the directories of root's programs, such as chroot."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Podman with a registry in its network, which has image and blessing of the profile of WORLD."""

    engine: PrivateEngine
    world: World
    profile: str
    registry: RealRegistry

    def export(self, platform: str, name: str, *options: str) -> Path:
        """Export the profile to PLATFORM, into the new directory NAME that Podman sees under the same path."""
        out = self.engine.home / name
        words = ("export", platform, IMAGE, "--profile", self.profile, "--out", str(out), "--json", *options)
        done = self.world.nvllm(*words, env={"NVLLM_MODELS": str(self.models)})
        assert done.code == 0, done
        return out

    def kubernetes(self, version: str) -> Path:
        name = f"kubernetes-{version}"
        options = ("--registry", self.registry.name, "--models", str(self.models), "--server-version", version)
        (found,) = self.export("kubernetes", name, *options).iterdir()
        return found

    @property
    def models(self) -> Path:
        return self.engine.home / "models"

    def chrooted(self, *command: str | Path) -> Done:
        root = private_engines.distribution("trixie")
        env = {"PATH": _PATH, "HOME": "/root", "TMPDIR": "/tmp", "PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
        return run(self.engine.spaces.argv("chroot", root, *command), env)

    def podman(self, *arguments: str | Path) -> Done:
        data = self.engine.home.parent / "data"
        options = ["--root", str(data), "--runroot", "/run/podman", "--storage-driver", "overlay"]
        return self.chrooted("podman", *options, *arguments)

    def said(self, container: str, program: str) -> list[dict[str, Any]]:
        """Return what PROGRAM, the gate or one that runs before it, printed in CONTAINER."""
        logged = self.podman("logs", container)
        lines = [line for line in (logged.out + logged.err).splitlines() if line.startswith(f"{program} ")]
        return [json.loads(line.removeprefix(program)) for line in lines]

    def generation(self, container: str, programs: Path) -> Done:
        """Run the startup probe in the network of CONTAINER. In a chroot, runc can execute nothing in a container."""
        pid = self.podman("inspect", "--format", "{{.State.Pid}}", container).out.strip()
        argv = self.engine.spaces.argv("nsenter", "--target", pid, "--net", sys.executable, "-I", programs)
        return run(argv, {"PATH": os.defpath})


@pytest.fixture(scope="module")
def fleet(offered: Offered) -> Iterator[Fleet]:
    with private_engines.engine(PODMAN) as engine:
        moved = RealRegistry(offered.directory, engine.spaces.argv)
        moved.start()
        try:
            found = Fleet(engine, offered.world, offered.profile, moved)
            shutil.copytree(offered.world.places.models, found.models)  # below a directory that Podman sees
            yield found
        finally:
            moved.kill()


# Kubernetes

VERSIONS = ("1.35", "1.36")
"""The last version that mounts images without the right to execute, and the first one with it."""


@dataclass(frozen=True, slots=True)
class Pod:
    """The objects in the file OBJECTS, as Podman plays them."""

    fleet: Fleet
    objects: Path

    @property
    def documents(self) -> Mapping[str, Any]:
        return {one["kind"]: one for one in yaml.safe_load_all(self.objects.read_text())}

    @property
    def container(self) -> str:
        return f"{self.documents['Deployment']['metadata']['name']}-pod-engine"

    @property
    def placing(self) -> str:
        return f"{self.documents['Deployment']['metadata']['name']}-pod-place"

    def up(self) -> Done:
        return self.fleet.podman("kube", "play", self.objects)

    def down(self) -> None:
        self.fleet.podman("kube", "down", "--force", self.objects)

    def generates(self) -> bool:
        programs = self.objects.parent / "programs"
        programs.mkdir(exist_ok=True)
        for name, text in self.documents["ConfigMap"]["data"].items():
            (programs / name).write_text(text)
        return self.fleet.generation(self.container, programs / "generation.py").code == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_the_pod_serves_and_refuses_what_was_tampered_with(fleet: Fleet, version: str) -> None:
    pod = Pod(fleet, fleet.kubernetes(version))
    try:
        played = pod.up()
        assert played.code == 0, played
        until(pod.generates, "the pod generates", STARTS)
        assert [one["event"] for one in fleet.said(pod.container, "nvllm.machine")] == ["passed"]
        assert [one["event"] for one in fleet.said(pod.container, "nvllm.gate")] == ["passed"]
        logged = fleet.podman("logs", pod.container)
        assert "Directly load AOT compilation from path" in logged.out + logged.err
    finally:
        pod.down()
    layers = fleet.engine.home.parent / "data/overlay"
    victim = next(path for path in layers.glob("*/diff/torch_compile_cache/**/model") if path.is_file())
    good = victim.read_bytes()
    victim.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    try:
        played = pod.up()
        if version == "1.35":  # the copy is refused, and the engine's container never starts
            assert played.code != 0
            assert fleet.said(pod.container, "nvllm.gate") == []
        else:
            until(lambda: bool(fleet.said(pod.container, "nvllm.gate")), "the gate speaks")
            said = fleet.said(pod.container, "nvllm.gate")[0]
            assert said["event"] == "refused"
            (found,) = said["findings"]
            assert found["where"].endswith("/model")
            assert found["expected"].startswith("sha256 ")
    finally:
        pod.down()
        victim.write_bytes(good)


def test_another_machine_is_refused_before_the_gate(fleet: Fleet) -> None:
    objects = fleet.kubernetes("1.36.0")
    objects.chmod(0o644)
    text = objects.read_text()
    assert '"flags":["' in text
    objects.write_text(text.replace('"flags":["', '"flags":["amx_of_a_test","'))
    pod = Pod(fleet, objects)
    try:
        assert pod.up().code == 0
        until(lambda: bool(fleet.said(pod.container, "nvllm.machine")), "the machine is compared")
        said = fleet.said(pod.container, "nvllm.machine")[0]
        assert [one["where"] for one in said["findings"]] == ["processor: flags"]
        assert fleet.said(pod.container, "nvllm.gate") == []
    finally:
        pod.down()


@pytest.mark.parametrize("version", ["1.31", "1.35", "1.37"])
def test_the_schemas_of_kubernetes_take_every_object(fleet: Fleet, version: str) -> None:
    validate = importlib.import_module("kubernetes_validate").validate
    for document in yaml.safe_load_all(fleet.kubernetes(f"{version}.1").read_text()):
        validate(document, version, strict=True)


# Quadlet


def test_what_quadlet_generates_serves(fleet: Fleet) -> None:
    out = fleet.export("quadlet", "quadlet", "--registry", fleet.registry.name)
    generated = fleet.chrooted("env", f"QUADLET_UNIT_DIRS={out}", "/usr/libexec/podman/quadlet", "-dryrun")
    assert generated.code == 0, generated
    assert "converting" not in generated.err, generated.err
    (start,) = [line for line in generated.out.splitlines() if line.startswith("ExecStart=")]
    command = shlex.split(start.removeprefix("ExecStart="))
    assert command[:2] == ["/usr/bin/podman", "run"]
    # systemd tells Podman of the unit and its control group; here is none.
    left_out = ("--cgroups=", "--sdnotify=", "--cidfile=", "--rm", "-d", "--replace")
    arguments = [word for word in command[2:] if not word.startswith(left_out)]
    name = arguments[arguments.index("--name") + 1]
    try:
        started = fleet.podman("run", "--detach", *arguments)
        assert started.code == 0, started
        probe = out / "programs/generation.py"
        until(lambda: fleet.generation(name, probe).code == 0, "the unit's container generates", STARTS)
        assert [one["event"] for one in fleet.said(name, "nvllm.gate")] == ["passed"]
    finally:
        fleet.podman("rm", "--force", "--time", "1", name)


# Compose and systemd


def test_the_project_of_compose_serves_and_refuses_what_was_tampered_with(fleet: Fleet) -> None:
    """Debian 13's docker-compose, and the engine of this host, whose registry has the same storage."""
    out = fleet.export("compose", "compose", "--registry", fleet.registry.name)
    program = private_engines.distribution("trixie") / "usr/libexec/docker/cli-plugins/docker-compose"

    def compose(*arguments: str) -> Done:
        return run([str(program), "--project-directory", str(out), *arguments], os.environ)

    read = compose("config", "--format", "json")
    written = yaml.safe_load((out / "compose.yaml").read_text())["services"]["engine"]
    found = json.loads(read.out)["services"]["engine"]
    for key in ("image", "entrypoint", "environment", "user", "read_only", "cap_drop", "security_opt", "tmpfs"):
        assert found[key] == written[key], key
    here = RealRegistry(fleet.registry.directory, port=fleet.registry.port)
    here.start()
    try:
        up = compose("up", "--detach", "--wait", "--wait-timeout", str(STARTS))
        assert up.code == 0, up
        assert compose("down", "--timeout", "2").code == 0
        victim = next(path for path in (out / "cache").rglob("model") if path.is_file())
        victim.chmod(0o644)
        victim.write_bytes(victim.read_bytes()[:-1] + b"!")
        victim.chmod(0o444)
        assert compose("up", "--detach", "--wait", "--wait-timeout", "60").code != 0
        assert '"event": "refused"' in compose("logs").out
    finally:
        compose("down", "--timeout", "2")
        run(["docker", "rmi", written["image"]], os.environ)
        here.kill()


def test_the_compose_of_debian_12_reads_the_project(fleet: Fleet) -> None:
    """It is 1.29, in Python, so it runs in a root of its own."""
    out = fleet.export("compose-read", "compose", "--registry", fleet.registry.name)
    root = private_engines.distribution("bookworm")
    shutil.copytree(out, root / "project", dirs_exist_ok=True)
    try:
        read = run(["chroot", str(root), "docker-compose", "--project-directory", "/project", "config"], os.environ)
    finally:
        shutil.rmtree(root / "project")
    assert read.code == 0, read
    written, understood = (
        yaml.safe_load(text)["services"]["engine"] for text in ((out / "compose.yaml").read_text(), read.out)
    )
    for key in ("image", "entrypoint", "environment", "user", "read_only", "cap_drop", "security_opt", "tmpfs"):
        assert understood[key] == written[key], key
    assert all(one["read_only"] for one in understood["volumes"])


def test_systemd_verifies_the_unit(fleet: Fleet) -> None:
    out = fleet.export("systemd", "systemd")
    (unit,) = out.iterdir()
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    complaints = [line for line in verified.stderr.splitlines() if unit.name in line]
    assert (verified.returncode, complaints) == (0, []), verified.stderr
