"""The models of a profile on this host: each with the files to mount, or why it cannot be served."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvllm.core.lock import LockedModel
from nvllm.core.paths import Places
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, Refused
from nvllm.core.spec import DirectoryModel, ImageSpec, Model
from nvllm.models import location, modeltree
from nvllm.models.memo import HashCache

ADAPTER_FILE = "adapter_config.json"
"""The file that every LoRA adapter has, in the form of the library peft."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this host: its LOCKED form, and its FILES: the path in the model, and the regular file."""

    locked: LockedModel
    files: Sequence[tuple[str, Path]]


def verified(
    spec: ImageSpec, name: str, locked: LockedModel, places: Places, hashes: HashCache, progress: Progress
) -> tuple[LocalModel, list[Refusal]]:
    """Return the model NAME of SPEC with its files, and every difference from LOCKED.

    A file whose hash is in HASHES is not hashed again. A model that lacks a file has none to mount.
    """
    directory, cure = location.model_directory(spec, name, places), location.model_cure(spec, name)
    changed = location.changed_cure(spec, name)
    refusals = modeltree.verify(locked, directory, hashes, cure=cure, changed=changed, progress=progress)
    try:
        return LocalModel(locked, modeltree.located(locked, directory, cure=cure)), refusals
    except Refused as refused:
        # Both functions report a missing file; only one that went between the two is news.
        return LocalModel(locked, ()), refusals or list(refused.refusals)


def no_adapters(adapters: Iterable[str], models: Mapping[str, LockedModel], image: str, lock: str) -> list[Refusal]:
    """Return NV404 for each of ADAPTERS whose files in MODELS, those of the lock of IMAGE, are not a LoRA adapter's.

    Messages call the lock LOCK.
    """
    expected, problem = f"a LoRA adapter, with {ADAPTER_FILE}", f"no {ADAPTER_FILE}"
    return [
        Refusal("NV404", f"{lock}: .models.{name}", expected, problem, f"nvllm lock {image} --model {name}")
        for name in adapters
        if all(file.path != ADAPTER_FILE for file in models[name].files)
    ]


def unlocked(model: Model) -> LocalModel:
    """Return what is known of MODEL before a lock: a directory's tree, or a hub model's pinned revision."""
    if isinstance(model, DirectoryModel):
        return LocalModel(LockedModel("directory", model.tree or "", ()), ())
    return LocalModel(LockedModel("huggingface", "", (), model.repo, model.follow, model.revision), ())


def missing(spec: ImageSpec, names: Iterable[str], models: Mapping[str, LockedModel], places: Places) -> list[Refusal]:
    """Return NV401 for each of NAMES that is not on this host at all, by MODELS as far as they are locked.

    Reads no bytes.
    """
    known = {name: models.get(name) or unlocked(spec.models[name]).locked for name in names}
    return [refusal for name, model in known.items() for refusal in _absent(spec, name, model, places)]


def _absent(spec: ImageSpec, name: str, model: LockedModel, places: Places) -> Sequence[Refusal]:
    if model.kind == "huggingface" and model.revision is None:
        return ()  # its revision is not known before the lock
    try:
        modeltree.located(model, location.model_directory(spec, name, places), cure=location.model_cure(spec, name))
    except Refused as refused:
        return refused.refusals
    return ()
