"""The lock as a file: round trips, strictness, atomic writing, freshness."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.lock import Lock, LockedDebianBase, LockedFile, LockedRegistryBase, LockedWheel
from nvllm.core.refusal import Refused
from nvllm.lock import lockdoc
from support import locks

HEX = st.text("0123456789abcdef", min_size=64, max_size=64)
TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
FILE = st.builds(
    LockedFile,
    path=st.from_regex(r"[A-Za-z0-9+~_-]{1,8}(/[A-Za-z0-9+~_-]{1,8}){0,2}", fullmatch=True),
    sha256=HEX,
    size=st.integers(0, 2**40),
    index=st.sampled_from(["pypi", "pytorch-cpu", "debian"]),
)
WHEELS = st.lists(st.builds(LockedWheel, TEXT, TEXT, FILE), unique_by=lambda wheel: wheel.name, max_size=5)


def refused(data: bytes, shown: str = "manifests/demo.lock.json") -> list[str]:
    with pytest.raises(Refused) as caught:
        lockdoc.decode(data, shown)
    assert {refusal.code for refusal in caught.value.refusals} == {"NV210"}
    return [f"{refusal.where} | {refusal.expected} | {refusal.found}" for refusal in caught.value.refusals]


@given(wheels=WHEELS, epoch=st.integers(0, 2**32 - 1), inputs=HEX)
def test_what_is_written_is_what_is_read(wheels: list[LockedWheel], epoch: int, inputs: str) -> None:
    vllm = locks.wheel(locks.GOOD.vllm.distribution, "0.28.0")
    others = [wheel for wheel in wheels if wheel.name != vllm.name]
    ordered = tuple(sorted([*others, vllm], key=lambda wheel: wheel.name))
    lock = dataclasses.replace(locks.GOOD, wheels=ordered, epoch=epoch, inputs=inputs)
    text = lockdoc.encode(lock)
    assert lockdoc.decode(text, "demo.lock.json") == lock
    assert lockdoc.encode(lockdoc.decode(text, "demo.lock.json")) == text


def test_a_registry_base_is_read_as_one() -> None:
    lock = dataclasses.replace(
        locks.GOOD,
        base=LockedRegistryBase(
            "registry", "3.12", f"example.test/cuda@sha256:{'b' * 64}", "/usr/local/bin/python3.12"
        ),
    )
    assert lockdoc.decode(lockdoc.encode(lock), "demo.lock.json") == lock


def test_an_older_lock_that_says_no_snapshot_keeps_its_text() -> None:
    document = json.loads(lockdoc.encode(locks.GOOD))
    assert document["base"].keys() == {"kind", "suite", "python", "packages"}
    assert isinstance(locks.GOOD.base, LockedDebianBase)
    base = dataclasses.replace(locks.GOOD.base, snapshot="20260102T030405Z", security=True)
    newer = dataclasses.replace(locks.GOOD, base=base)
    assert lockdoc.decode(lockdoc.encode(newer), "demo.lock.json") == newer
    assert json.loads(lockdoc.encode(newer))["base"].keys() - document["base"].keys() == {"snapshot", "security"}


@pytest.mark.parametrize(("field", "value"), [("snapshot", "2026-01-02"), ("snapshot", None), ("security", False)])
def test_what_no_lock_says_of_its_packages_is_refused(field: str, value: object) -> None:
    document = json.loads(lockdoc.encode(locks.GOOD))
    document["base"][field] = value
    assert any(f": .base.{field} |" in line for line in refused(json.dumps(document).encode()))


def test_every_field_of_a_lock_is_in_the_text() -> None:
    document = json.loads(lockdoc.encode(locks.GOOD))
    assert document.keys() == {field.name for field in dataclasses.fields(Lock)} - {"excluded", "templates"}


def test_a_lock_names_what_is_excluded_only_where_something_is() -> None:
    left_out = dataclasses.replace(locks.GOOD, excluded=(locks.wheel("zlib-ng", "1.0"),))
    document = json.loads(lockdoc.encode(left_out))
    assert [wheel["name"] for wheel in document["excluded"]] == ["zlib-ng"]
    assert lockdoc.decode(lockdoc.encode(left_out), "demo.lock.json") == left_out
    both = dataclasses.replace(locks.GOOD, excluded=(locks.GOOD.wheels[0],))
    assert any(": .excluded |" in line for line in refused(lockdoc.encode(both)))


def test_writing_says_whether_it_changed_anything(tmp_path: Path) -> None:
    path = tmp_path / "manifests" / "demo.lock.json"
    assert lockdoc.write(path, locks.GOOD)
    before = path.stat()
    assert not lockdoc.write(path, locks.GOOD)
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert lockdoc.write(path, dataclasses.replace(locks.GOOD, epoch=1))
    assert lockdoc.read(path, "manifests/demo.lock.json").epoch == 1
    assert os.listdir(path.parent) == ["demo.lock.json"]


def test_the_file_is_readable_by_all_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        lockdoc.write(tmp_path / "demo.lock.json", locks.GOOD)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "demo.lock.json").stat().st_mode) == 0o644


def test_a_write_that_fails_leaves_the_old_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "demo.lock.json"
    lockdoc.write(path, locks.GOOD)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(Refused, match=r"NV920.*No space"):
        lockdoc.write(path, dataclasses.replace(locks.GOOD, epoch=1))
    assert os.listdir(tmp_path) == ["demo.lock.json"]
    assert lockdoc.read(path, "demo.lock.json") == locks.GOOD


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000, b'{"a": NaN, "a": 1}', b"null", b"[]"])
def test_what_is_no_lock_at_all_is_refused(data: bytes) -> None:
    assert refused(data)


@given(data=st.binary(max_size=200))
def test_no_bytes_crash_the_reader(data: bytes) -> None:
    assert refused(data)


def test_a_lone_surrogate_is_refused() -> None:
    text = lockdoc.encode(locks.GOOD).replace(b'"version": "0.28.0"', b'"version": "\\ud800"')
    assert refused(text)


@pytest.mark.parametrize(
    "field", sorted({field.name for field in dataclasses.fields(Lock)} - {"excluded", "templates"})
)
def test_every_field_is_required(field: str) -> None:
    document = json.loads(lockdoc.encode(locks.GOOD))
    del document[field]
    assert any(f": .{field} |" in line for line in refused(json.dumps(document).encode()))


@given(at=st.integers(0, len(lockdoc.encode(locks.GOOD)) - 1))
def test_no_byte_can_be_lost_unnoticed(at: int) -> None:
    data = lockdoc.encode(locks.GOOD)
    assert decoded_or_refused(data[:at] + data[at + 1 :]) != locks.GOOD


def decoded_or_refused(data: bytes) -> Lock | set[str]:
    """A shorter word or number is a lock too, but another one; all else must be refused."""
    try:
        return lockdoc.decode(data, "demo.lock.json")
    except Refused as caught:
        return {refusal.code for refusal in caught.refusals}


def test_a_fresh_lock_has_nothing_against_it() -> None:
    assert lockdoc.fresh(locks.GOOD, locks.INPUTS, locks.GOOD_SERIES) == []


def test_all_staleness_is_told_at_once() -> None:
    series = locks.series(locks.patch("key"), locks.patch("guard", "rejected"), locks.patch("new"))
    found = lockdoc.fresh(locks.GOOD, "2" * 64, series)
    assert [(refusal.code, refusal.where.partition(": ")[2]) for refusal in found] == [
        ("NV202", ".inputs"),
        ("NV203", "patch drain"),
        ("NV203", "patch guard"),
        ("NV203", "patch new"),
        ("NV203", ".series.patches"),
    ]
