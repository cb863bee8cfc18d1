"""Where a model lies on this host, and the command that brings one that is missing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from nvllm.core.paths import Places
from nvllm.core.spec import DirectoryModel, ImageSpec


def model_directory(spec: ImageSpec, name: str, places: Places) -> Path:
    """Return where the model NAME of SPEC lies on this host.

    A plain directory lies where the spec says; else below the first directory of NVLLM_MODELS (separated by ``:``) that
    has it; else where `nvllm model make` puts it. A model of the hub lies in the hub client's own cache.
    """
    model = spec.models[name]
    if not isinstance(model, DirectoryModel):
        return hub_cache(os.environ)
    return Path(model.path) if model.path is not None else plain_directory(name, places, os.environ)


def plain_directory(name: str, places: Places, env: Mapping[str, str]) -> Path:
    """Return where the plain directory of the model NAME lies, or is to be made."""
    named = [Path(directory) for directory in env.get("NVLLM_MODELS", "").split(":") if directory]
    return next((directory / name for directory in named if (directory / name).is_dir()), places.models / name)


def hub_cache(env: Mapping[str, str]) -> Path:
    """Return the cache of the hub's client by ENV, as the client itself finds it, without importing the client."""
    if env.get("HF_HUB_CACHE"):
        return Path(env["HF_HUB_CACHE"])
    cache = Path(env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or "/") / ".cache")
    return Path(env.get("HF_HOME") or cache / "huggingface") / "hub"


def model_cure(spec: ImageSpec, name: str) -> str:
    """Return the command that brings the model NAME of SPEC."""
    model = spec.models[name]
    if isinstance(model, DirectoryModel) and model.path is not None:
        return f"put the model's files into {model.path}, or correct its `path:` in images/{spec.name}.yaml"
    if isinstance(model, DirectoryModel) and model.recipe is None:
        return f"put the model's files into a directory {name}, and its parent into NVLLM_MODELS"
    return f"nvllm model {'make' if isinstance(model, DirectoryModel) else 'fetch'} {spec.name} {name}"


def changed_cure(spec: ImageSpec, name: str) -> str | None:
    """Return the command that pins the files of the model NAME of SPEC as they are; None for a model of nvllm's own.

    A model without a recipe is its owner's: nvllm cannot bring it back, and never asks to remove a file of it.
    """
    model = spec.models[name]
    own = isinstance(model, DirectoryModel) and model.recipe is None
    return f"nvllm lock {spec.name} --model {name}" if own else None
