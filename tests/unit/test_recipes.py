"""Recipes, and what of their script needs no torch; the bytes of a made model are the end-to-end test's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nvllm import recipes
from nvllm.refusal import Refused
from nvllm.runtime import tiny_models


def test_every_recipe_runs_the_script_for_a_model_that_it_knows() -> None:
    for name, recipe in recipes.RECIPES.items():
        assert recipe.name == name
        assert recipe.script_args == ("/opt/nvllm/lib/tiny_models.py", name, "/out")
        assert recipe.description
    assert recipes.RECIPES.keys() == tiny_models.ARCHITECTURES.keys()
    assert recipes.recipe("tiny-lfm2") is recipes.RECIPES["tiny-lfm2"]


def test_an_unknown_recipe_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Refused) as caught:
        recipes.recipe("tiny-opt")
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where, refusal.found) == ("NV107", "recipe tiny-opt", "no such recipe")
    assert refusal.expected == "one of tiny-falconh1, tiny-lfm2, tiny-llama"
    assert refusal.cure == "nvllm model make tiny-falconh1"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "usage: tiny_models.py NAME DIRECTORY"),
        (["tiny-lfm2"], "usage: tiny_models.py NAME DIRECTORY"),
        (["tiny-opt", "FULL"], "tiny-opt: no such model; there are tiny-falconh1, tiny-lfm2, tiny-llama"),
        (["tiny-lfm2", "FULL/missing"], "FULL/missing: not a directory"),
        (["tiny-lfm2", "FULL"], "FULL: not empty"),
    ],
)
def test_wrong_arguments_touch_nothing(tmp_path: Path, arguments: list[str], said: str) -> None:
    """In a process of its own, without the package: inside the image the script is alone."""
    (tmp_path / "file").write_text("kept")
    full = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-I", recipes.source(), *(argument.replace("FULL", full) for argument in arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == said.replace("FULL", full) + "\n"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_settling_sorts_adds_and_opens_the_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"b": 1, "a": {"d": 1, "c": 2}}')
    (tmp_path / "tokenizer_config.json").write_text('{"z": 1, "y": 2}')
    (tmp_path / "tokenizer.json").write_text('{"z": 1, "y": 2}')
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    for path in tmp_path.iterdir():
        path.chmod(0o600)
    tiny_models.settle(tmp_path, {"aa": 3})
    expected = {"a": {"c": 2, "d": 1}, "aa": 3, "b": 1}
    assert (tmp_path / "config.json").read_text() == json.dumps(expected, indent=2) + "\n"
    assert json.loads((tmp_path / "tokenizer_config.json").read_text()) == {"y": 2, "z": 1}
    assert (tmp_path / "tokenizer.json").read_text() == '{"z": 1, "y": 2}'
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}
