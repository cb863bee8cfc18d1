"""Recipes: what they make is judged byte by byte, and by what a reader of each format would see."""

from __future__ import annotations

import hashlib
import json
import math
import os
import statistics
import struct
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.paths import Project
from nvllm.core.refusal import Refused
from nvllm.core.spec import DirectoryModel
from nvllm.models import modeltree, recipes
from nvllm.runtime import tiny_models
from nvllm.spec import specfile

ROOT = Path(__file__).parents[3]
SCRIPT = Path(tiny_models.__file__)

TREES = {
    "tiny-falconh1": "sha256:22c2f7b275809601966aa97cac9e83d357cffc5cbb3f19608229a40a7459e26b",
    "tiny-lfm2": "sha256:704ccb21be8284e1211debe15191a30bcb235972ba680c3b7ae262b83bcfb88e",
    "tiny-llama": "sha256:db7ee9e68a0f1e3476a55ed034e590332b9e74675119ea509fcc8d4edb714699",
}
"""What every machine makes, whatever its processor, its Python and its libraries."""

WEIGHTS = {"tiny-falconh1": 178_584, "tiny-lfm2": 144_256, "tiny-llama": 123_200}


def value(bits: int) -> float:
    """What a bfloat16 of BITS stands for: it is the upper half of a float32."""
    (found,) = struct.unpack(">f", bits.to_bytes(2, "big") + b"\0\0")
    return float(found)


def header(data: bytes) -> dict[str, Any]:
    length = int.from_bytes(data[:8], "little")
    found = json.loads(data[8 : 8 + length])
    assert isinstance(found, dict)
    return found


def test_every_recipe_is_of_a_model_that_the_script_knows() -> None:
    assert tiny_models.ARCHITECTURES.keys() == TREES.keys()
    assert recipes.contents("tiny-lfm2") is recipes.contents("tiny-lfm2")


def test_an_unknown_recipe_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Refused) as caught:
        recipes.contents("tiny-opt")
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where, refusal.found) == ("NV107", "recipe tiny-opt", "no such recipe")
    assert refusal.expected == "one of tiny-falconh1, tiny-lfm2, tiny-llama"
    assert refusal.cure == "write one of them: tiny-falconh1"


@pytest.mark.parametrize("name", TREES)
def test_a_recipe_makes_the_pinned_tree(name: str) -> None:
    assert modeltree.tree_hash(recipes.files(name)) == TREES[name]


def test_every_spec_pins_what_its_recipes_make() -> None:
    project = Project(ROOT)
    pinned = [
        (model.recipe, model.tree)
        for name in project.image_names()
        for model in specfile.load(project.spec(name), f"images/{name}.yaml").models.values()
        if isinstance(model, DirectoryModel) and model.recipe is not None
    ]
    assert {recipe for recipe, _ in pinned} == {"tiny-lfm2"}
    assert [tree for _, tree in pinned] == [TREES[recipe] for recipe, _ in pinned]


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONHASHSEED": "1", "LC_ALL": "C", "PYTHONUTF8": "0"},
        {"PYTHONHASHSEED": "2", "LC_ALL": "tr_TR.UTF-8", "TZ": "Asia/Kathmandu"},
    ],
)
def test_a_bare_python_makes_it_again(tmp_path: Path, name: str, environment: dict[str, str]) -> None:
    """In a process of its own that sees no package: neither torch nor nvllm; and files are for every user."""
    done = subprocess.run(
        [sys.executable, "-S", "-P", SCRIPT, name, tmp_path],
        env={"PATH": os.environ["PATH"], **environment},
        umask=0o077,
        check=False,
        capture_output=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    tree, _ = modeltree.tree_of(tmp_path)
    assert tree == TREES[name]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}


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
    (tmp_path / "file").write_text("kept")
    full = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-I", SCRIPT, *(argument.replace("FULL", full) for argument in arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == said.replace("FULL", full) + "\n"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@given(st.integers(-(2**40), 2**40), st.integers(0, 40))
def test_a_bfloat16_is_the_nearest_one(numerator: int, places: int) -> None:
    bits = tiny_models.bfloat16(numerator, places)
    exact = Fraction(numerator, 2**places)
    chosen = Fraction(value(bits))
    for other in (bits - 1, bits + 1):
        if 0 <= other & 0x7FFF < 0x7F80:
            distance = abs(Fraction(value(other)) - exact)
            assert abs(chosen - exact) < distance or (abs(chosen - exact) == distance and bits % 2 == 0)


@pytest.mark.parametrize(
    ("numerator", "places", "expected"),
    [(0, 8, 0.0), (256, 8, 1.0), (-1, 13, -(2.0**-13)), (257, 8, 1.0), (259, 8, 1.015625), (511, 0, 512.0)],
)
def test_bfloat16_by_hand(numerator: int, places: int, expected: float) -> None:
    assert value(tiny_models.bfloat16(numerator, places)) == expected


@pytest.mark.parametrize("name", TREES)
def test_the_weights_are_those_of_the_header(name: str) -> None:
    data = recipes.contents(name)["model.safetensors"]
    found = header(data)
    assert found.pop("__metadata__") == {"format": "pt"}
    start = 8 + int.from_bytes(data[:8], "little")
    assert start % 8 == 0
    end, drawn, count = 0, [], 0
    for tensor, said in sorted(found.items(), key=lambda one: one[1]["data_offsets"]):
        first, last = said["data_offsets"]
        assert (said["dtype"], first, last - first) == ("BF16", end, 2 * math.prod(said["shape"])), tensor
        end, count = last, count + math.prod(said["shape"])
        if len(said["shape"]) > 1:
            drawn += [value(bits) for (bits,) in struct.iter_unpack("<H", data[start + first : start + last])]
    assert (start + end, count) == (len(data), WEIGHTS[name])
    assert abs(statistics.fmean(drawn)) < 0.002
    assert 0.197 < statistics.pstdev(drawn) < 0.2


def test_no_two_tensors_are_alike_and_none_depends_on_the_others() -> None:
    shapes = tiny_models.lfm2().shapes
    drawn = {name: tiny_models.tensor(name, shape) for name, shape in shapes.items() if len(shape) > 1}
    assert len({hashlib.sha256(data).digest() for data in drawn.values()}) == len(drawn)
    wider = tiny_models.lfm2(width=4).shapes
    assert {name for name in shapes if shapes[name] != wider[name]} == {
        "model.layers.0.conv.conv.weight",
        "model.layers.2.conv.conv.weight",
    }


def test_no_version_of_a_library_is_in_a_file() -> None:
    for name in TREES:
        contents = recipes.contents(name)
        assert not any(b"version" in data for path, data in contents.items() if path != "tokenizer.json")
        assert json.loads(contents["tokenizer.json"])["version"] == "1.0"  # of the format
        assert json.loads(contents["tokenizer_config.json"])["tokenizer_class"] == "PreTrainedTokenizerFast"


def encoded(text: str) -> list[int]:
    """What a byte-level BPE makes of TEXT, a single word: of all neighbours the merge of the lowest rank first."""
    model = tiny_models.tokenizer()["model"]
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(model["merges"])}
    parts = list(text.replace(" ", "\u0120"))  # the letter for a space, as in GPT-2's alphabet
    while pairs := [pair for pair in pairwise(parts) if pair in ranks]:
        at = [*pairwise(parts)].index(min(pairs, key=lambda pair: ranks[pair]))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [model["vocab"][part] for part in parts]


def test_the_tokenizer_knows_its_words_and_every_byte() -> None:
    document = tiny_models.tokenizer()
    vocabulary = document["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    assert len(vocabulary) < tiny_models.VOCABULARY
    assert [vocabulary[one["content"]] for one in document["added_tokens"]] == [0, 1, 2]
    assert sum(len(token) == 1 for token in vocabulary) == 256
    assert all(len(encoded(word)) == 1 for word in tiny_models.WORDS)
    assert len(encoded("zebra")) == 5
