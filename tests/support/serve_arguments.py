"""The arguments of profiles as vLLM's own parser sees them, and what that parser must refuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nvllm.core.paths import Project
from nvllm.core.spec import ImageSpec
from nvllm.lock import lockdoc
from nvllm.serve import planner
from nvllm.spec import specfile

ROOT = Path(__file__).parents[2]
WRONG: Mapping[str, Sequence[str]] = {
    "an unknown name": ["--max-model-length", "128"],
    "an unknown value": ["--dtype", "float9"],
    "an unknown part": ["--compilation-config.cudagraph_mod", "FULL"],
    "a negation of what is no switch": ["--no-max-model-len"],
}
"""What each parser must refuse, or it would be no proof that it takes the rest."""


def spec(image: str) -> ImageSpec:
    return specfile.load(ROOT / f"images/{image}.yaml", f"images/{image}.yaml")


def commands(image: str) -> dict[str, list[str]]:
    """What each profile of IMAGE gives vLLM, and what is wrong."""
    given = {name: planner.engine_arguments(profile) for name, profile in spec(image).profiles.items()}
    return {name: ["serve", "/models/any", *words] for name, words in {**given, **WRONG}.items()}


def check(image: str, found: Mapping[str, Any]) -> None:
    """Assert that the profiles of IMAGE, and nothing of WRONG, are accepted in what the probe FOUND."""
    refused = {name: said for name, said in found["wrong"].items() if said is not None}
    assert refused.keys() == WRONG.keys(), refused
    assert "unrecognized arguments: --max-model-length" in refused["an unknown name"]


def positive(names: Sequence[str]) -> set[str]:
    """NAMES without those that argparse makes of others, and its own."""
    return {name for name in names if not (name.startswith("no-") and name[3:] in names)} - {"help"}


def locked(image: str) -> set[str]:
    """The arguments in the lock of IMAGE, which were read from the source and not from a parser."""
    project = Project(ROOT)
    return set(lockdoc.read(project.lock(image), project.show(project.lock(image))).vllm.arguments)


def inverses(image: str, names: Sequence[str]) -> set[str]:
    """Those of NAMES that vLLM 0.33 makes of a switch in the lock of IMAGE: disable-x of enable-x, and back."""
    known, other = locked(image), {"enable": "disable", "disable": "enable"}
    parts = {name: name.partition("-") for name in {*names} - known}
    return {name for name, (verb, _, rest) in parts.items() if f"{other.get(verb)}-{rest}" in known}
