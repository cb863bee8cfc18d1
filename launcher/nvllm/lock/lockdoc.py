"""The lock as a file: read strictly, written atomically, compared with its spec and series."""

from __future__ import annotations

import functools
import itertools
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from nvllm.core import documents, durable, reading
from nvllm.core.lock import FORM, Lock, LockedDebianBase, command
from nvllm.core.paths import AMD64, lock_name
from nvllm.core.refusal import Refusal, refuse
from nvllm.lock.drift import patch_text
from nvllm.models import modeltree
from nvllm.patches.series import Series


def encode(lock: Lock) -> bytes:
    """Return the canonical text of LOCK."""
    return documents.encode(FORM, lock)


def decode(data: bytes, label: str) -> Lock:
    """Return the lock in DATA, the content of the file ``<image>.lock.json`` that messages call LABEL.

    Raises Refused NV210 with everything that is wrong.
    """
    cure = f"git checkout -- {shlex.quote(label)} || {_command(label)}"
    rules = functools.partial(_wrong, image=_image(label), name=Path(label).name)
    return documents.decode(FORM, data, rules, code="NV210", label=label, cure=cure)


def _image(label: str) -> str:
    return Path(label).name.partition(".")[0]


def _command(label: str) -> str:
    """Return the command that writes the lock LABEL, with the platform in its name."""
    architecture = Path(label).name.removesuffix(".lock.json").partition(".")[2]
    return command(_image(label), f"linux/{architecture}" if architecture else AMD64)


def _wrong(lock: Lock, image: str, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, expected and found for the rules that a schema cannot express."""
    if lock.image != image:
        yield ".image", f"{image}, the name of the file", lock.image
    elif lock_name(lock.image, lock.platform) != name:
        yield ".platform", f"the platform of a file that is called {name}", lock.platform
    lists = {
        ".wheels": [wheel.name for wheel in lock.wheels],
        ".excluded": [wheel.name for wheel in lock.excluded],
        ".tools": [tool.file.filename for tool in lock.tools],
        ".vllm.arguments": list(lock.vllm.arguments),
        ".vllm.differs": [d.path for d in lock.vllm.differs],
        ".device_code": [f"{library.wheel} {library.path}" for library in lock.device_code],
    }
    if lock.vllm.native is not None:
        lists[".vllm.native.tools"] = [tool.name for tool in lock.vllm.native.tools]
    if isinstance(lock.base, LockedDebianBase):
        lists[".base.packages"] = [package.name for package in lock.base.packages]
    for path, names in lists.items():
        pair = next((pair for pair in itertools.pairwise(names) if pair[0] >= pair[1]), None)
        if pair is not None:
            yield path, "names in order, each once", f"{pair[1]} after {pair[0]}"
    if lock.vllm.distribution not in lists[".wheels"] and not lock.vllm.compiled:
        yield ".wheels", f"the wheel of {lock.vllm.distribution}", "none of that name"
    for name in sorted(set(lists[".excluded"]) & set(lists[".wheels"])):
        yield ".excluded", "wheels that are not among .wheels", name
    for name, model in sorted(lock.models.items()):
        # A directory model that was not on the host at lock time has a pinned tree and no files.
        if model.files and modeltree.tree_hash(model.files) != model.tree:
            yield f".models.{name}.tree", f"the tree hash of its files, {modeltree.tree_hash(model.files)}", model.tree
    ids = [patch.id for patch in lock.series.patches]
    for name in sorted({name for name in ids if ids.count(name) > 1}):
        yield ".series.patches", "each patch once", f"{name} more than once"


def read(path: Path, label: str) -> Lock:
    """Return the lock at PATH, which messages call LABEL.

    Raises Refused NV201 if there is none, NV109 if it is no file to read, NV210 if it is not exactly what `nvllm lock`
    writes.
    """
    try:
        data = reading.content(path, reading.LOCK)
    except FileNotFoundError as error:
        raise refuse("NV201", label, "a lock", "no file", _command(label)) from error
    except OSError as error:
        raise reading.refused(label, error) from error
    return decode(data, label)


def without_models(lock: Lock, names: Iterable[str], label: str) -> list[Refusal]:
    """Return NV202 for each model of NAMES that LOCK, which messages call LABEL, does not have."""
    cure = command(lock.image, lock.platform)
    missing = [name for name in names if name not in lock.models]
    return [Refusal("NV202", label, f"the model {name}", "no such model in the lock", cure) for name in missing]


def write(path: Path, lock: Lock) -> bool:
    """Write LOCK to PATH, atomically, and return whether that changed the file.

    Raises Refused NV920 if it cannot be written.
    """
    data = encode(lock)
    with durable.writing(path, "NV920"):
        if path.is_file() and reading.content(path, reading.LOCK) == data:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
    # Everybody may read it: it is a file under version control.
    durable.replace(path, data, 0o644, code="NV920")
    return True


def fresh(lock: Lock, inputs: str, series: Series) -> list[Refusal]:
    """Return NV202 and NV203 if LOCK was made from another spec or series than the present ones.

    INPUTS is the hash of the lock-relevant part of the spec, SERIES the patch series.
    """
    where = f"manifests/{lock_name(lock.image, lock.platform)}"
    cure = command(lock.image, lock.platform)
    refusals = []
    if lock.inputs != inputs:
        expected = f"a lock made from images/{lock.image}.yaml as it is now (inputs {inputs[:12]})"
        refusals.append(Refusal("NV202", f"{where}: .inputs", expected, f"inputs {lock.inputs[:12]}", cure))
    now = {patch.id: patch_text(patch) for patch in series.patches}
    locked = {patch.id: patch_text(patch) for patch in lock.series.patches}
    if lock.series.series != series.base:
        refusals.append(
            Refusal("NV203", f"{where}: .series.series", f"series {series.base}", f"series {lock.series.series}", cure)
        )
    absent = "no such patch"
    refusals += [
        Refusal("NV203", f"{where}: patch {name}", now.get(name, absent), locked.get(name, absent), cure)
        for name in sorted(now.keys() | locked.keys())
        if now.get(name) != locked.get(name)
    ]
    order = [patch.id for patch in series.patches if patch.id in locked]
    locked_order = [patch.id for patch in lock.series.patches if patch.id in now]
    if order != locked_order:
        refusals.append(
            Refusal("NV203", f"{where}: .series.patches", "order " + ", ".join(order), ", ".join(locked_order), cure)
        )
    return refusals
