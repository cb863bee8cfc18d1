"""The bless manifest: one text, strictly read, nothing of a host in it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvllm.cache import cachetree, manifest
from nvllm.cache.cachetree import TreeDirectory
from nvllm.cache.manifest import Coverage, KernelVariants, Manifest
from nvllm.core import canonical, fields
from nvllm.core.refusal import Refused
from support.blessings_world import TREE, bless, stored, trial
from support.plansamples import PLAN

GOOD = bless(TREE)
Edit = Callable[[dict[str, Any]], object]


def refused(data: bytes, name: str = GOOD.filename) -> dict[str, str]:
    """Return where and what is refused about DATA as the file NAME."""
    with pytest.raises(Refused) as caught:
        manifest.decode(data, f"manifests/blessed/{name}")
    assert {one.code for one in caught.value.refusals} == {"NV908"}
    return {
        one.where.removeprefix(f"manifests/blessed/{name}").removeprefix(": "): one.found
        for one in caught.value.refusals
    }


def edited(edit: Edit) -> bytes:
    document = json.loads(manifest.encode(GOOD))
    edit(document)
    return canonical.pretty(document).encode()


def test_it_comes_back_as_it_was_written(tmp_path: Path) -> None:
    _, tree = stored(tmp_path)
    made = bless(tree, expires="2027-01-01T00:00:00Z")
    place = tmp_path / made.filename
    place.write_bytes(manifest.encode(made))
    assert manifest.read(place, str(place)) == made
    assert place.name == f"demo-eager_{PLAN.serve_hash[:7]}.json"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"version": 1', b'"version": 1152921504606846976'),
        (b'"version": 1', b'"version": 1' + b"0" * 400),
        (b'"version": 1', b'"version": 1e999'),
        (b'"profile": "', b'"profile": "\\ud800'),
        (b'"factors": {', b'"factors": {"deep": ' + b"[" * 990 + b"]" * 990 + b","),
        (b'"factors": {', b'"factors": {"large": 1152921504606846976,'),
    ],
)
def test_what_no_hash_can_be_taken_of_is_a_damaged_manifest(old: bytes, new: bytes) -> None:
    data = manifest.encode(GOOD)
    assert data.count(old) >= 1
    assert refused(data.replace(old, new, 1)).keys() == {""}


def test_its_archived_name_is_one_too() -> None:
    assert manifest.decode(manifest.encode(GOOD), GOOD.archived) == GOOD


def test_it_holds_no_path_of_the_host_and_no_mount() -> None:
    text = manifest.encode(GOOD).decode()
    assert all(mount.source not in text for mount in PLAN.mounts)
    assert str(Path.home()) not in text.replace(PLAN.environment["HOME"], "")
    assert "mount" not in text
    schema = fields.json_schema(manifest.FORM)

    def closed(part: Any) -> bool:
        if isinstance(part, dict):
            free = part.get("type") == "object" and part.get("additionalProperties") is not False
            return (not free or "properties" not in part) and all(closed(one) for one in part.values())
        return not isinstance(part, list) or all(closed(one) for one in part)

    assert closed(schema)


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d.update(mode="rw"),
        lambda d: d.update(mount={"host_path": "/x", "container_path": "/y", "mode": "rw"}),
        lambda d: d.update(mounts=[]),
        lambda d: d["tree"].update(root="/home/somebody/cache"),
        lambda d: d["tree"]["files"][0].update(mount_id="x"),
    ],
)
def test_no_manifest_says_how_it_is_mounted(edit: Edit) -> None:
    (found,) = refused(edited(edit)).values()
    assert found.startswith("the unknown name")


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "a/.."])
def test_no_path_leaves_the_tree(path: str) -> None:
    assert ".tree.files[0].path" in refused(edited(lambda d: d["tree"]["files"][0].update(path=path)))


CHANGES: dict[str, tuple[Edit, str]] = {
    "another serve hash": (lambda d: d.update(serve_hash=GOOD.serve_hash[:7] + "0" * 57), ".serve_hash"),
    "another factor": (lambda d: d["factors"].update(dev=True), ".serve_hash"),
    "another build": (lambda d: d.update(build_hash="0" * 64), ".build_hash"),
    "another tree hash": (lambda d: d.update(tree_hash="0" * 64), ".tree_hash"),
    "another file hash": (lambda d: d["tree"]["files"][0].update(sha256="1" * 64), ".tree_hash"),
    "another label": (lambda d: d.update(label="other"), "."),
    "a writable file": (lambda d: d["tree"]["files"][0].update(mode="0644"), ".tree.files[0].mode"),
    "a day that is none": (lambda d: d.update(expires="2027-02-30T00:00:00Z"), ".expires"),
    "an end before the beginning": (lambda d: d.update(expires="2020-01-01T00:00:00Z"), ".expires"),
    "a trial that failed": (lambda d: d["trials"][2].update(saved=True), ".trials[2]"),
    "a trial of a boot twice": (lambda d: d["trials"][2].update(boot=d["trials"][1]["boot"]), ".claim"),
    "a trial less": (lambda d: d["trials"].pop(), ".claim"),
    "a claim that is too good": (lambda d: d["claim"].update(bound=0.9), ".claim"),
    "a claim that was not reached": (lambda d: d["claim"].update(asked=0.9), ".claim.asked"),
    "a bootstrap that saved nothing": (lambda d: d["cold"].update(saved=0), ".cold.saved"),
    "a bootstrap that counted nothing": (lambda d: d["cold"].pop("compiles"), ".cold.compiles"),
    "no version": (lambda d: d.pop("version"), ".version"),
    "version 0": (lambda d: d.update(version=0), ".version"),
    "another schema": (lambda d: d.update(schema="nvllm.manifest/9"), ".schema"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_does_not_hold_together_is_damaged(what: str) -> None:
    edit, where = CHANGES[what]
    assert where in refused(edited(edit))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{", b"[" * 100_000, b"\xff", manifest.encode(GOOD)[:-1], manifest.encode(GOOD) + b" ",
        manifest.encode(GOOD).replace(b'"unsafe": false', b'"unsafe": true, "unsafe": false'),
        manifest.encode(GOOD).replace(b'"seconds": 20.5', b'"seconds": NaN'),
        json.dumps(json.loads(manifest.encode(GOOD))).encode(),
    ],
    ids=range(10),
)  # fmt: skip
def test_another_text_is_damaged(data: bytes) -> None:
    assert refused(data)


def test_a_missing_file_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="NV908"):
        manifest.read(tmp_path / "none.json", "none.json")


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_what_is_no_file_is_damaged_and_nobody_waits_for_it(tmp_path: Path, kind: str) -> None:
    place = tmp_path / GOOD.filename
    if kind == "link":
        (tmp_path / "real").write_bytes(manifest.encode(GOOD))
        place.symlink_to("real")
    elif kind == "fifo":
        os.mkfifo(place)
    else:
        place.mkdir()
    with pytest.raises(Refused, match="NV908"):
        manifest.read(place, str(place))


@pytest.mark.parametrize(
    "changes",
    [
        {"coherent": False},
        {"independent": False},
        {"loaded": False},
        {"saved": True},
        {"unchanged": False},
        {"compiles": 1},
    ],
    ids=str,
)
def test_a_trial_needs_every_signal(changes: dict[str, object]) -> None:
    assert trial(1).good
    assert not trial(1, **changes).good


def test_few_trials_must_be_marked() -> None:
    few = bless(TREE, trials=3)
    assert few.unsafe
    assert manifest.decode(manifest.encode(few), few.filename) == few
    assert refused(manifest.encode(replace(few, unsafe=False))) == {".unsafe": "3 boots"}


def test_every_damage_is_said_at_once() -> None:
    def edit(document: dict[str, Any]) -> None:
        document["tree_hash"] = "0" * 64
        document["trials"][0]["loaded"] = False
        document["expires"] = "2020-01-01T00:00:00Z"

    assert {".tree_hash", ".trials[0]", ".expires", ".claim"} == refused(edited(edit)).keys()


def test_a_manifest_is_a_value() -> None:
    assert isinstance(GOOD, Manifest)
    assert bless(TREE) == GOOD


def test_coverage_is_written_only_where_there_is_some() -> None:
    assert b"coverage" not in manifest.encode(GOOD)
    covered = replace(GOOD, coverage=Coverage((3, 0, 0), 120, (KernelVariants("conv", 3),)))
    assert manifest.decode(manifest.encode(covered), covered.filename) == covered
    damaged = manifest.encode(covered).replace(b'"variants": 3', b'"variants": 0')
    with pytest.raises(Refused) as caught:
        manifest.decode(damaged, covered.filename)
    assert [one.where for one in caught.value.refusals] == [f"{covered.filename}: .coverage.kernels[0].variants"]


def test_a_tree_for_a_gpu_is_a_sealed_one_and_another_place_to_write_is_not() -> None:
    def said(path: str) -> list[str]:
        made = bless(cachetree.of(TREE.files, [*TREE.directories, TreeDirectory(path, "0755")]))
        return [expected for where, expected, _ in manifest.wrong(made, made.filename) if where == ".tree"]

    assert said("inductor_cache") == []
    assert said("triton") == ["modes of a sealed tree"]
