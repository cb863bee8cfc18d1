"""A spec made from each that nvllm comes with: only what was asked for changes, and each part is explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nvllm.core import yamlnodes
from nvllm.spec import specfile, template
from nvllm.spec.template import Values
from support.rows import samples

ROOT = Path(__file__).parents[3]
SPECS = samples(["cpu", "gb10"], sorted({path.stem for path in (ROOT / "images").glob("*.yaml")} - {"cpu", "gb10"}))


def document(text: str) -> Any:
    return yamlnodes.parse(text, "").value


def values(old: Any, **changed: Any) -> Values:
    """Return what keeps everything of the document OLD, but for CHANGED."""
    vllm, python, patches = old["vllm"], old["python"], old["patches"]
    kept = {
        "name": old["name"],
        "description": old["description"],
        "version": vllm["version"],
        "commit": vllm["commit"],
        "differs": vllm["differs"],
        "brings": vllm.get("brings", []),
        "requirements": python["requirements"],
        "aliases": [alias["version"] for alias in python.get("aliases", [])],
        "series": patches["series"],
        "enable": patches["enable"],
        "sentinels": {name: one["sentinels"] for name, one in old["profiles"].items() if one.get("sentinels")},
    }
    return Values(**{**kept, **changed})


@pytest.mark.parametrize("image", SPECS)
def test_what_is_not_asked_for_stays(image: str) -> None:
    path = ROOT / f"images/{image}.yaml"
    old = document(path.read_text())
    made = template.write(path.read_text(), values(old), ["mine"])
    assert document(made) == old
    assert made.startswith("# mine\nschema: ")


@pytest.mark.parametrize("image", SPECS)
def test_everything_that_can_be_asked_for_changes(image: str) -> None:
    path = ROOT / f"images/{image}.yaml"
    old = document(path.read_text())
    name = old["vllm"]["distribution"]
    compiled = "source" in old["vllm"]
    asked = values(
        old,
        name="mine",
        description="mine: all of it",
        version="9.10",
        commit="a" * 40,
        differs=["vllm/x.py"],
        brings=[],
        requirements=["torch==9.9+cpu"] if compiled else [f"{name}==9.10", "torch==9.9+cpu"],
        aliases=["9.10+cpu" for _ in old["python"].get("aliases", [])],
        series="v9.10",
        enable=["one", "two"],
        sentinels={key: [] for key, one in old["profiles"].items() if one.get("sentinels")},
    )
    made = template.write(path.read_text(), asked, [])
    spec = specfile.parse(made, "images/mine.yaml")
    assert (spec.name, spec.description, spec.vllm.version) == ("mine", "mine: all of it", "9.10")
    assert (spec.patches.series, spec.patches.enable) == ("v9.10", ("one", "two"))
    assert spec.python.requirements == tuple(asked.requirements)
    assert {profile.sentinels for profile in spec.profiles.values()} <= {()}
    assert (spec.base, spec.runtime, spec.models) == (
        (before := specfile.load(path, f"images/{path.name}")).base,
        before.runtime,
        before.models,
    )


@pytest.mark.parametrize("image", SPECS)
def test_every_part_has_a_comment_that_explains_it(image: str) -> None:
    path = ROOT / f"images/{image}.yaml"
    parts = set(document(path.read_text())) - {"schema", "name", "description"}
    assert {(part,) for part in parts} <= set(template.COMMENTS)


def test_a_comment_about_the_other_version_goes() -> None:
    path = ROOT / "images/sm120.yaml"
    made = template.write(path.read_text(), values(document(path.read_text()), version="0.22.0", requirements=[]), [])
    assert "0.21.0; pip takes the later one" not in made
    assert "for GPUs of compute capability" in made
