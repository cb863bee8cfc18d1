"""`nvllm dev test` on the real engine: the files of a work tree, as they stand, over those of the image."""

from __future__ import annotations

from pathlib import Path

import pytest
from docker import DockerClient

from support.engine_world import IMAGE, World, Worlds
from support.series_samples import write_tree

pytestmark = pytest.mark.engine

TESTS = b"""\
import vllm
from vllm import version


def test_the_file_as_it_stands():
    assert version.OF_A_TEST == 1, vllm.__file__


def test_a_new_file_in_a_new_directory():
    from vllm.of_a_test.new import NEW

    assert NEW == 2
"""


@pytest.fixture
def world(worlds: Worlds) -> World:
    made = worlds.make()
    write_tree(made.project.root, {"proofs/test_tree.py": TESTS})
    return made


def test_a_test_sees_the_tree_and_the_image_stays_as_it_was(
    world: World, tmp_path: Path, docker_client: DockerClient
) -> None:
    tree, before = tmp_path / "tree", {image.id for image in docker_client.images.list("nvllm")}
    assert world.nvllm("dev", "start", IMAGE, str(tree)).code == 0
    asked = ("dev", "test", str(tree), "proofs/test_tree.py", "tests/test_outputs.py", "--json")
    done = world.nvllm(*asked)
    assert "result" in done.document, done
    assert (done.code, [one["passed"] for one in done.document["result"]["tests"]]) == (1, [0, 1])
    assert done.document["result"]["files"] == []  # the image has the commits as its patches
    version = tree / "vllm/version.py"
    version.write_text(version.read_text() + "\nOF_A_TEST = 1\n")
    write_tree(tree, {"vllm/of_a_test/__init__.py": b"", "vllm/of_a_test/new.py": b"NEW = 2\n"})
    done = world.nvllm(*asked)
    result = done.result
    assert [one["passed"] for one in result["tests"]] == [2, 1]
    assert result["files"] == ["vllm/of_a_test/__init__.py", "vllm/of_a_test/new.py", "vllm/version.py"]
    # Nothing was built, and nothing that could be taken for a build.
    assert {image.id for image in docker_client.images.list("nvllm")} == before
    assert [one.name for one in world.containers(docker_client)] == []
