"""What `nvllm dev serve` and `dev test` make of a work tree before a container starts; the engine is made up.

It keeps what is loaded, as a real one does; tests/e2e/test_dev.py is the walk on the real one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nvllm.cli import dev_test
from nvllm.cli.main import main
from nvllm.core.progress import Progress
from nvllm.layers.oci import Image
from nvllm.runtime.proving import MARK
from nvllm.sources.saves import SavedState, Saves
from nvllm.trials import imagetests
from nvllm.trials.imagetests import ImageTests
from nvllm.trials.trial import Built
from support.buildable import IMAGE, Buildable
from support.series_samples import write_tree
from support.specs import GOOD

PROFILE = GOOD.partition("profiles:\n")[2].split(":")[0].strip()


class Loaded:
    """An engine that holds the images that were loaded, with their tags."""

    def __init__(self) -> None:
        self.images: list[tuple[Image, tuple[str, ...]]] = []

    def image(self, name: str) -> Any:
        for image, tags in self.images:
            if name in (*image.ids, *tags):
                return SimpleNamespace(id=image.id, diff_ids=image.diff_ids, tags=tags)
        return None

    def load(self, image: Image, tags: Sequence[str], progress: Progress) -> None:
        self.images.append((image, tuple(tags)))

    def tag(self, image: str, tag: str) -> None:
        pass

    def containers(self) -> list[Any]:
        return []


def test_the_tests_of_both_roots_run_in_one_image_of_the_tree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, tree, docker = Buildable(tmp_path), tmp_path / "tree", Loaded()
    assert made.nvllm(capsys, "dev", "start", IMAGE, str(tree))[0] == 0
    write_tree(tree, {"vllm/core.py": b"EDITED = 1\n", "tests/test_theirs.py": b""})
    write_tree(made.project.root, {"tests/test_mine.py": b""})
    ran: list[tuple[Built, tuple[str, ...], tuple[str, ...]]] = []

    def run(self: ImageTests, built: Built, nodes: Mapping[str, Path], sentinels: Collection[str]) -> str:
        ran.append((built, self.options, tuple(nodes)))
        outcomes = [*((name, "passed", "call") for name in imagetests.names(nodes).values()), ("", "passed", "session")]
        return "\n".join(
            MARK + json.dumps(dict(zip(("node", "outcome", "when"), row, strict=True))) for row in outcomes
        )

    monkeypatch.setattr(dev_test, "engine", SimpleNamespace(require=lambda: docker))
    monkeypatch.setattr(dev_test, "survey", SimpleNamespace(host_facts=lambda *_: SimpleNamespace(gpus=())))
    monkeypatch.setattr(ImageTests, "run", run)
    asked = ("dev", "test", str(tree), "tests/test_mine.py::test_it", "tests/test_theirs.py")
    for _ in range(2):  # the second time nothing is made
        capsys.readouterr()
        status, document = made.nvllm(capsys, *asked)
        assert status == 0, document
        assert document["result"]["files"] == ["vllm/core.py"]
        assert [one["passed"] for one in document["result"]["tests"]] == [1, 1]
    ((image, tags),) = docker.images
    assert image.development == document["result"]["difference"]
    assert all(tag.startswith("nvllm-dev:demo") for tag in tags)
    assert {built.image for built, _, _ in ran} == {image.id}
    assert [(options, nodes) for _, options, nodes in ran[:2]] == [
        ((), ("tests/test_mine.py::test_it",)),
        (("--noconftest",), ("tests/test_theirs.py",)),
    ]


def test_a_refusal_between_two_saves_has_colour_only_where_it_is_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, tree = Buildable(tmp_path), tmp_path / "tree"
    assert made.nvllm(capsys, "dev", "start", IMAGE, str(tree))[0] == 0

    def interrupted(self: Saves, before: SavedState) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Saves, "wait", interrupted)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("NVLLM_HOME", str(made.home))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{made.home}/no-engine")
    asked = ("dev", "serve", str(tree), "--profile", PROFILE, "--watch")
    for words, colored in [((), True), (("--no-color",), False)]:
        assert main([word for word in made.arguments(*asked, *words) if word != "--json"]) == 130
        written = capsys.readouterr().err
        assert "NV510" in written
        assert "waiting for a save" in written
        assert ("\x1b[31m" in written) == colored, words


def test_a_test_that_is_nowhere_is_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, tree = Buildable(tmp_path), tmp_path / "tree"
    assert made.nvllm(capsys, "dev", "start", IMAGE, str(tree))[0] == 0
    status, document = made.nvllm(capsys, "dev", "test", str(tree), "tests/test_none.py")
    assert (status, document["refusals"][0]["code"]) == (2, "NV108")
