"""`nvllm dev` on the real engine, as its user walks it: start, edit, serve, ask, finish."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient

from support.engine_world import IMAGE, World, Worlds, until
from support.series_samples import write_tree

pytestmark = [pytest.mark.engine, pytest.mark.long]

TOLD = "of-a-test"
TEST = b"""\
import vllm


def test_version():
    assert vllm.__version__.endswith("of-a-test"), vllm.__file__


def test_a_new_file_in_a_new_directory():
    from vllm.of_a_test.new import NEW

    assert NEW == 2
"""
WHO = ("-c", "user.name=dev", "-c", "user.email=dev@example.org")
PROOF = "Proved-by: tests/test_mine.py::test_version\n"


@pytest.fixture
def world(worlds: Worlds, docker_client: DockerClient) -> Iterator[World]:
    """A world with a test of its own. The images that are made for its work tree go again."""
    made = worlds.make()
    before = {tag for image in docker_client.images.list("nvllm-dev") for tag in image.tags}
    write_tree(made.project.root, {"tests/test_mine.py": TEST})
    yield made
    made.end()
    for tag in {tag for image in docker_client.images.list("nvllm-dev") for tag in image.tags} - before:
        docker_client.api.remove_image(tag)


def served(world: World, tree: Path, docker_client: DockerClient) -> tuple[dict[str, Any], str]:
    """Serve TREE, and return what was printed, and the engine's own version; the engine has ended then."""
    process = world.start("dev", "serve", str(tree), "--profile", world.profile(), "--json")
    try:
        until(lambda: bool(world.containers(docker_client)) or process.poll() is not None, "a container", 120)
        (instance,) = [str(one.name) for one in world.containers(docker_client)]
        path = world.places.runs / instance / "state.json"
        until(lambda: path.is_file() and json.loads(path.read_bytes())["stage"] in {"ready", "failed"}, "a start", 300)
        port = json.loads(path.read_bytes())["port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/version", timeout=60) as answer:
            version = str(json.load(answer)["version"])
        assert world.nvllm("status", "--json").result["instances"][-1]["dev"] is True
        container = world.containers(docker_client)[0]
        assert container.labels["nvllm.dev"] == "true"
        assert world.nvllm("stop", instance).code == 0
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    document = json.loads(out)["result"]
    assert container.labels["nvllm.development"] == document["difference"]
    assert isinstance(document, dict)
    return document, version


def test_from_an_edit_to_an_answer_and_back_to_a_patch(
    world: World, tmp_path: Path, docker_client: DockerClient
) -> None:
    tree, builds = tmp_path / "tree", {one.id for one in docker_client.images.list("nvllm")}
    assert world.nvllm("dev", "start", IMAGE, str(tree)).code == 0
    edited = tree / "vllm/version.py"
    edited.write_text(f"{edited.read_text()}\n__version__ += '+{TOLD}'\n")
    first, version = served(world, tree, docker_client)
    assert first["files"] == ["vllm/version.py"]
    assert first["dev"] is True
    assert version.endswith(f"+{TOLD}")
    assert first["prepared"] < 60, first  # seconds; docs/dev.md has what it took
    # No image and no tag of a build is new.
    assert {one.id for one in docker_client.images.list("nvllm")} == builds
    subprocess.run(
        ["git", "-C", str(tree), *WHO, "commit", "--quiet", "--all", "-m", f"Tell whose vLLM it is\n\n{PROOF}"],
        check=True,
    )
    done = world.nvllm("dev", "finish", str(tree), "--json")
    assert {one["id"] for one in done.result["patches"] if one["change"] == "new"} == {"tell-whose-vllm-it-is"}


def test_an_engine_follows_the_saves(world: World, tmp_path: Path, docker_client: DockerClient) -> None:
    tree, log = tmp_path / "tree", tmp_path / "output"
    assert world.nvllm("dev", "start", IMAGE, str(tree)).code == 0
    edited = tree / "vllm/version.py"
    text = edited.read_text()
    asked = ("dev", "serve", str(tree), "--profile", world.profile(), "--watch", "--json")
    with log.open("wb") as output:
        process = world.start(*asked, output=output.fileno())

    def serves(version: str) -> bool:
        """Return whether an engine answers at the printed address, and VERSION is the end of its own."""
        assert process.poll() is None, log.read_text()
        addresses = set(re.findall(r'"address": "(.*)"', log.read_text()))
        try:
            for address in addresses:
                with urllib.request.urlopen(f"{address}/version", timeout=5) as answer:
                    return len(addresses) == 1 and str(json.load(answer)["version"]).endswith(version)
        except OSError:
            pass
        return False

    try:
        until(lambda: serves(""), "the first engine", 300)
        edited.write_text(f"{text}\n__version__ += '+first'\n")
        until(lambda: serves("+first"), "an engine after an edit", 300)
        edited.write_text(f"{text}\nraise ValueError('of a test')\n")
        until(lambda: "waiting for a save" in log.read_text(), "the refusal of what cannot start", 300)
        edited.write_text(f"{text}\n__version__ += '+mended'\n")
        until(lambda: serves("+mended"), "an engine after the mend", 300)
        until(lambda: log.read_text().count('"prepared"') == 3, "three engines", 60)
        (container,) = world.containers(docker_client)
        assert world.nvllm("stop", str(container.name)).code == 0
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
    assert "ValueError: of a test" in log.read_text()


def test_a_test_sees_the_tree_and_no_build_is_new(world: World, tmp_path: Path, docker_client: DockerClient) -> None:
    tree, builds = tmp_path / "tree", {one.id for one in docker_client.images.list("nvllm")}
    assert world.nvllm("dev", "start", IMAGE, str(tree)).code == 0
    asked = ("dev", "test", str(tree), "tests/test_mine.py", "tests/test_outputs.py", "--json")
    done = world.nvllm(*asked)
    assert "result" in done.document, done
    assert (done.code, [one["passed"] for one in done.document["result"]["tests"]]) == (1, [0, 1]), done
    assert done.document["result"]["files"] == []  # the image has the commits as its patches
    edited = tree / "vllm/version.py"
    edited.write_text(f"{edited.read_text()}\n__version__ += '+{TOLD}'\n")
    write_tree(tree, {"vllm/of_a_test/__init__.py": b"", "vllm/of_a_test/new.py": b"NEW = 2\n"})
    result = world.nvllm(*asked).result
    assert [one["passed"] for one in result["tests"]] == [2, 1]
    assert result["files"] == ["vllm/of_a_test/__init__.py", "vllm/of_a_test/new.py", "vllm/version.py"]
    assert {one.id for one in docker_client.images.list("nvllm")} == builds
    assert world.containers(docker_client) == []
