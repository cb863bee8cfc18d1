"""An image of the project is locked without the command line, as a program would do it."""

from __future__ import annotations

import io
import re
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.canonical import sha256_file
from nvllm.core.lock import REPOSITORY, Lock, LockedModel
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.core.spec import HubModel
from nvllm.image import identity
from nvllm.lock.drift import compare
from nvllm.lock.project import lock_image, proved_digits, read_inputs, read_lock, usable_lock
from nvllm.models.modeltree import tree_hash
from nvllm.sources.store import Store
from support import locks, own_files, plansamples
from support.specs import COMMIT

ROOT = Path(__file__).parents[3]


def test_a_lock_that_fits_its_spec_is_resolved_to_itself(tmp_path: Path) -> None:
    project, places = Project(ROOT), Places(tmp_path / "cache", tmp_path / "state")
    previous = read_lock(project, "cpu")
    new = lock_image(read_inputs(project, "cpu"), previous, places, offline=True, progress=Silent())
    assert compare(previous, new) == ()
    assert not tmp_path.joinpath("state").exists()


def test_what_must_be_resolved_again_is_refused_offline(tmp_path: Path) -> None:
    project, places = Project(ROOT), Places(tmp_path / "cache", tmp_path / "state")
    with pytest.raises(Refused) as caught:
        lock_image(
            read_inputs(project, "cpu"),
            usable_lock(project, "cpu", Silent()),
            places,
            ["wheels"],
            offline=True,
            progress=Silent(),
        )
    assert [(one.code, one.where) for one in caught.value.refusals] == [("NV209", "nvllm lock, wheels")]


def test_a_model_of_the_hub_is_locked_later(tmp_path: Path) -> None:
    project, places = Project(ROOT), Places(tmp_path / "cache", tmp_path / "state")
    inputs, model = read_inputs(project, "sm120"), "qwen35-27b-nvfp4"
    locked = read_lock(project, "sm120")
    without = replace(locked, models={name: one for name, one in locked.models.items() if name != model})

    def lock(previous: Lock, *later: str) -> Lock:
        return lock_image(inputs, previous, places, later=later, offline=True, progress=Silent())

    assert lock(without, model) == without
    with pytest.raises(Refused) as caught:
        lock(without)
    assert [one.where for one in caught.value.refusals] == ["nvllm lock, the model ig1/Qwen3.5-27B-NVFP4"]
    pinned = LockedModel("huggingface", tree_hash(()), (), "ig1/Qwen3.5-27B-NVFP4", None, None)
    spec_model = inputs.spec.models[model]
    assert isinstance(spec_model, HubModel)
    known = replace(without, models={**without.models, model: replace(pinned, revision=spec_model.revision)})
    assert lock(known, model) == known  # what is locked is not left out


@pytest.mark.parametrize("name", ["tiny-lfm2", "no-such"])
def test_only_a_model_of_the_hub_can_wait(tmp_path: Path, name: str) -> None:
    project, places = Project(ROOT), Places(tmp_path / "cache", tmp_path / "state")
    with pytest.raises(Refused) as caught:
        lock_image(read_inputs(project, "sm120"), None, places, later=[name], offline=True, progress=Silent())
    assert [(one.code, one.found) for one in caught.value.refusals] == [("NV107", name)]


def test_a_missing_lock_is_none_or_refused(tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert usable_lock(project, "cpu", Silent()) is None
    with pytest.raises(Refused) as caught:
        read_lock(project, "cpu")
    assert [one.code for one in caught.value.refusals] == ["NV201"]


def sdist(path: Path, version_file: bytes) -> str:
    """Write a source archive with VERSION_FILE at PATH and return its sha256."""
    with tarfile.open(path, "w:gz") as tar:
        info = tarfile.TarInfo("vllm-0.28.0/vllm/_version.py")
        info.size = len(version_file)
        tar.addfile(info, io.BytesIO(version_file))
    return sha256_file(path)


@pytest.mark.parametrize(
    ("version_file", "digits"),
    [
        (f"__commit_id__ = 'g{COMMIT[:9]}'\n", 9),
        (f"__commit_id__ = '{COMMIT}'\n", 40),
        (f"__commit_id__ = 'g{COMMIT[:8]}x'\n", 0),
        ("version = 1\n", 0),
    ],
)
def test_how_much_of_the_commit_the_source_proves(tmp_path: Path, version_file: str, digits: int) -> None:
    made = Store(tmp_path / "store")
    sha256 = sdist(tmp_path / "source.tar.gz", version_file.encode())
    lock = locks.GOOD
    lock = replace(lock, vllm=replace(lock.vllm, commit=COMMIT, source=replace(lock.vllm.source, sha256=sha256)))
    assert proved_digits(lock, made) is None  # the source is not here
    made.adopt(tmp_path / "source.tar.gz", sha256)
    assert proved_digits(lock, made) == digits


def test_a_source_that_is_compiled_is_proved_whole(tmp_path: Path) -> None:
    lock = locks.GOOD
    lock = replace(lock, vllm=replace(lock.vllm, source=replace(lock.vllm.source, index=REPOSITORY)))
    assert proved_digits(lock, Store(tmp_path)) == 40


def test_no_lock_is_made_for_a_patch_that_is_not_there(tmp_path: Path) -> None:
    found = plansamples.project(tmp_path)
    text = found.spec("demo").read_text()
    found.spec("demo").write_text(re.sub(r"(?m)^  enable: .*$", "  enable: [nothing]", text))
    with pytest.raises(Refused) as caught:
        read_inputs(found, "demo")
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where, refusal.found) == ("NV107", "images/demo.yaml: .patches.enable", "nothing")


def test_a_series_of_another_commit_is_refused(tmp_path: Path) -> None:
    found = plansamples.project(tmp_path)
    place = found.series("v1") / "series.yaml"
    place.write_text(place.read_text().replace(COMMIT, COMMIT[:9] + "0" * 31))
    with pytest.raises(Refused) as caught:
        read_inputs(found, "demo")
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV104", "patches/v1/series.yaml: .commit")
    _, stale = identity.load_build(found, "demo", None)
    assert stale == [refusal]


def test_a_model_is_pinned_again_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without network: the spec is as it was. A template of the project is read anew each time, as patches are."""
    own = own_files.make(tmp_path, monkeypatch)
    previous = read_lock(own.project, "demo")
    (own.model / "config.json").write_text("changed")
    (own.adapter / "adapter_config.json").write_text("changed")
    (own.project.root / own_files.TEMPLATE).write_text("changed")

    def drift(*again: str) -> list[str]:
        inputs = read_inputs(own.project, "demo")
        new = lock_image(inputs, previous, own.places, again=again, offline=True, progress=Silent())
        return [f"{one.kind} {one.name}" for one in compare(previous, new)]

    template = f"template-changed {own_files.TEMPLATE}"
    assert drift() == [template]
    assert drift("mine") == ["model-replaced mine", template]
    assert drift("mine", "pirate") == ["model-replaced mine", "model-replaced pirate", template]
    with pytest.raises(Refused) as caught:
        drift("nobody")
    assert [one.code for one in caught.value.refusals] == ["NV107"]
