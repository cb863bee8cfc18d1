"""`nvllm patch prove --on` with workers of their own, a real engine and a real registry.

A program `ssh` of the tests stands for OpenSSH, which `test_ssh.py` has. Both machines are this one: each has a home,
and the project without its tests. The image is a small one, which the tests look into without starting it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nvllm.host.facts import TASK_LABEL
from support.buildable import IMAGE, Buildable
from support.engine_world import Done, run
from support.real_registry import RealRegistry
from support.ssh_stand_in import Hosts

if TYPE_CHECKING:
    from docker import DockerClient

pytestmark = pytest.mark.fleet

TESTS = """\
import io
import os
import tarfile

import docker
import pytest

pytestmark = pytest.mark.nvllm_host


def text(name):
    client, labels = docker.from_env(), {"LABEL": os.environ["NVLLM_TASK"]}
    container = client.api.create_container(os.environ["NVLLM_IMAGE"], ["-"], labels=labels)["Id"]
    stream, _ = client.api.get_archive(container, f"/opt/venv/lib/pythonVERSION/site-packages/vllm/{name}")
    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
        return archive.extractfile(archive.getmembers()[0]).read().decode()


@pytest.mark.parametrize("name, line", [("core.py", "'d'"), ("long.py", "TOP")])
def test_the_image_has(name, line):
    assert line in text(name)
"""
NODES = {"key": "[core.py-'d']", "top": "[long.py-TOP]"}


def prove(made: Buildable, hosts: Hosts, registry: RealRegistry, *words: str) -> Done:
    on = ",".join(f"ssh://{path.name}/~/project" for path in sorted((hosts.directory / "hosts").iterdir()))
    argv = [sys.executable, "-m", "nvllm", "--project", str(made.project.root), "patch", "prove", IMAGE, *NODES]
    env = {**os.environ, "NVLLM_HOME": str(made.home), "PATH": f"{hosts.bin}:{os.environ['PATH']}"}
    return run([*argv, "--on", on, "--registry", registry.name, "--json", *words], env)


def test_patches_are_proved_by_workers_without_their_tests(
    tmp_path: Path, real: RealRegistry, docker_client: DockerClient
) -> None:
    made, hosts = Buildable(tmp_path, ("key", "top")), Hosts(tmp_path / "ssh")
    root = made.project.root
    series = root / "patches/v0.28.0/series.yaml"
    nodes = iter(NODES.values())
    node = "tests/test_it.py::test_the_image_has"
    text = re.sub("proved-by: .*", lambda _: f'proved-by: ["{node}{next(nodes)}"]', series.read_text())
    series.write_text(text)
    hosts.install()
    for name in ("one", "two"):
        home = hosts.add(name, f'exec {sys.executable} -W ignore -m nvllm "$@"')
        shutil.copytree(root, home / "project")
    (root / "tests").mkdir()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    (root / "tests/test_it.py").write_text(TESTS.replace("LABEL", TASK_LABEL).replace("VERSION", version))

    done = prove(made, hosts, real)
    assert done.code == 0, done
    records = [test["record"] for patch in done.result["patches"] for test in patch["tests"]]
    assert [(record["patch"], record["verdict"]) for record in records] == [("key", "proved"), ("top", "proved")]
    assert len({record["machine"] for record in records}) == 1
    machines = {machine for patch in NODES for machine in re.findall(f"the tests of {patch} ran on (.*)", done.err)}
    assert machines
    assert machines <= {"one", "two"}
    written = json.loads((root / "patches/v0.28.0/proofs.json").read_bytes())["proofs"]
    assert [record["patch"] for record in written] == ["key", "top"]
    assert docker_client.api.containers(all=True, filters={"label": TASK_LABEL}) == []  # the workers removed them
    again = prove(made, hosts, real)
    assert not any(test["to_run"] for patch in again.result["patches"] for test in patch["tests"])
