from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.lock import LockedModel, ModelFile
from nvllm.models import memo
from nvllm.models.memo import HashCache, Known
from nvllm.models.modeltree import located, tree_hash, tree_of, verify
from nvllm.sources import hub
from support.hubserver import FIRST, REPO, serving

CURE = "nvllm model make tiny"
CONTENT = {"config.json": b"{}\n", "model.safetensors": b"\x07" * 5000, "sub/deep/vocab.txt": b"a\nb\n"}

files = st.lists(
    st.builds(
        ModelFile, st.text("ab/é", min_size=1, max_size=6), st.integers(0, 9), st.sampled_from(["0" * 64, "1" * 64])
    ),
    unique_by=lambda file: file.path,
    max_size=6,
)


def write(directory: Path, content: dict[str, bytes]) -> Path:
    for path, data in content.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(data)
    return directory


def lock(directory: Path) -> LockedModel:
    tree, found = tree_of(directory)
    return LockedModel("directory", tree, found)


@pytest.fixture(autouse=True)
def lasting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the memo keep hashes wherever the temporary files of the tests lie. `test_memo.py` has real file systems."""
    monkeypatch.setattr("nvllm.models.memo.file_system", lambda _: "ext4")


def known(content: bytes, sha256: str) -> Known:
    """Return what the memo would have of CONTENT, of less than a block, with SHA256 as its hash."""
    return Known(sha256, 2**20, hashlib.sha256(content).digest()[:16])


def codes(locked: LockedModel, directory: Path, memo: HashCache) -> list[str]:
    return [refusal.code for refusal in verify(locked, directory, memo, cure=CURE)]


def settled() -> int:
    """A clock that is far enough ahead for every file to have settled."""
    return time.time_ns() + 60_000_000_000


@given(files, st.randoms())
def test_a_tree_hash_does_not_depend_on_order(found: list[ModelFile], random: Random) -> None:
    mixed = list(found)
    random.shuffle(mixed)
    assert tree_hash(mixed) == tree_hash(found)


@given(files, files)
def test_different_sets_have_different_tree_hashes(one: Sequence[ModelFile], other: Sequence[ModelFile]) -> None:
    assert (tree_hash(one) == tree_hash(other)) == (set(one) == set(other))


def test_the_tree_hash_is_a_format_that_does_not_change() -> None:
    found = [ModelFile("b", 1, "1" * 64), ModelFile("a", 0, "0" * 64)]
    assert tree_hash(found) == "sha256:f0292c845cb563beac0d7de2185dfa36cbf35f8b21cdbeeccc2a5133cc001b98"


def test_a_tree_is_its_files_whatever_their_times_modes_and_order(tmp_path: Path) -> None:
    one = write(tmp_path / "one", CONTENT)
    other = write(tmp_path / "other", dict(reversed(CONTENT.items())))
    (other / "empty").mkdir()
    (other / "config.json").chmod(0o600)
    os.utime(other / "config.json", (1, 1))
    tree, found = tree_of(one)
    assert (tree, found) == tree_of(other)
    assert tree == tree_hash(found)
    assert [file.path for file in found] == sorted(CONTENT)
    assert [file.size for file in found] == [len(CONTENT[path]) for path in sorted(CONTENT)]


def test_the_named_directory_may_be_a_link(tmp_path: Path) -> None:
    real = write(tmp_path / "real", CONTENT)
    (tmp_path / "link").symlink_to("real")
    locked = lock(tmp_path / "link")
    assert codes(locked, tmp_path / "link", HashCache.none()) == []
    assert dict(located(locked, tmp_path / "link", cure=CURE))["config.json"] == real / "config.json"


def test_located_names_the_locked_files_in_order_and_nothing_else(tmp_path: Path) -> None:
    locked = lock(write(tmp_path, CONTENT))
    (tmp_path / "extra").write_bytes(b"")
    expected = tuple((path, tmp_path / path) for path in sorted(CONTENT))
    assert located(locked, tmp_path, cure=CURE) == expected


def test_the_memo_saves_a_second_reading(tmp_path: Path) -> None:
    """Shown by a memo that holds a wrong hash: it is believed, and a memo that keeps nothing is not asked."""
    locked = lock(write(tmp_path / "model", CONTENT))
    memo = HashCache.load(tmp_path / "state" / "memo.json", settled)
    memo.put((tmp_path / "model" / "config.json").stat(), known(CONTENT["config.json"], "0" * 64), settled())
    (refusal,) = verify(locked, tmp_path / "model", memo, cure=CURE)
    assert (refusal.code, refusal.found) == ("NV403", f"sha256 {'0' * 12}")
    assert codes(locked, tmp_path / "model", HashCache.none()) == []


def test_the_memo_is_written_and_read_again(tmp_path: Path) -> None:
    locked = lock(write(tmp_path / "model", CONTENT))
    place = tmp_path / "state" / "memo.json"
    assert codes(locked, tmp_path / "model", HashCache.load(place, settled)) == []
    again = HashCache.load(place)
    for file in locked.files:
        assert again.get((tmp_path / "model" / file.path).stat()) == file.sha256
    assert [path.name for path in place.parent.iterdir()] == ["memo.json"]


def test_a_file_that_was_just_written_is_not_remembered(tmp_path: Path) -> None:
    """Within one tick of the file system's clock it can be written again and look the same."""
    locked = lock(write(tmp_path / "model", CONTENT))
    place = tmp_path / "memo.json"
    assert codes(locked, tmp_path / "model", HashCache.load(place)) == []
    assert not place.exists()


@pytest.mark.parametrize("age", [-1, 0, 1_999_999_999])
def test_two_seconds_are_young(tmp_path: Path, age: int) -> None:
    (tmp_path / "file").write_bytes(b"x")
    info = (tmp_path / "file").stat()
    memo = HashCache.load(tmp_path / "memo.json")
    memo.put(info, known(b"x", "0" * 64), info.st_ctime_ns + age)
    assert memo.get(info) is None
    memo.put(info, known(b"x", "0" * 64), info.st_ctime_ns + 2_000_000_001)
    assert memo.get(info) == "0" * 64


def test_an_old_modification_time_does_not_make_a_file_old(tmp_path: Path) -> None:
    """Everybody can set it; the change time tells."""
    (tmp_path / "file").write_bytes(b"x")
    os.utime(tmp_path / "file", (1, 1))
    info = (tmp_path / "file").stat()
    memo = HashCache.load(tmp_path / "memo.json")
    memo.put(info, known(b"x", "0" * 64), time.time_ns())
    assert memo.get(info) is None


def test_a_change_that_restores_size_and_modification_time_is_seen(tmp_path: Path) -> None:
    locked = lock(write(tmp_path / "model", CONTENT))
    memo = HashCache.load(tmp_path / "memo.json", settled)
    assert codes(locked, tmp_path / "model", memo) == []
    weights = tmp_path / "model" / "model.safetensors"
    before = weights.stat()
    weights.write_bytes(b"\x08" * 5000)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert weights.stat().st_mtime_ns == before.st_mtime_ns
    assert codes(locked, tmp_path / "model", memo) == ["NV403"]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "{",
            "[]",
            '{"schema": "nvllm.memo/1", "sha256": {"KEY": "HASH"}}',
            '{"schema": "nvllm.memo/2", "files": 7}',
        ),
        '{"schema": "nvllm.memo/2", "files": {"KEY": ["HASH", 1048576, ""]}}',
        '{"schema": "nvllm.memo/2", "files": {"KEY": ["HASH", 1, "AAAAAAAAAAAAAAAAAAAAAA=="]}}',
    ],
)
def test_a_damaged_memo_is_empty_and_is_replaced(tmp_path: Path, text: str) -> None:
    locked = lock(write(tmp_path / "model", CONTENT))
    info = (tmp_path / "model" / "config.json").stat()
    place = tmp_path / "memo.json"
    place.write_text(text.replace("KEY", HashCache.key(info)).replace("HASH", "0" * 64))
    assert HashCache.load(place).get(info) is None
    assert codes(locked, tmp_path / "model", HashCache.load(place, settled)) == []
    assert len(json.loads(place.read_text())["files"]) == len(CONTENT)


def test_a_memo_that_others_can_write_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    info = (tmp_path / "file").stat()
    place = tmp_path / "memo.json"
    row = ["0" * 64, 2**20, "AAAAAAAAAAAAAAAAAAAAAA=="]
    place.write_text(json.dumps({"schema": memo.SCHEMA, "files": {HashCache.key(info): row}}))
    place.chmod(0o644)
    (tmp_path / "link.json").symlink_to(place)
    assert HashCache.load(place).get(info) == "0" * 64
    assert HashCache.load(tmp_path / "link.json").get(info) is None
    place.chmod(0o666)
    assert HashCache.load(place).get(info) is None


def test_a_snapshot_without_links_is_fine(tmp_path: Path) -> None:
    """The client writes one where it was told to make no links."""
    with serving(FIRST) as server:
        locked = hub.resolve(REPO, "main", cache_dir=tmp_path / "lock", endpoint=server.endpoint)
    snapshot = write(tmp_path / f"models--acme--tiny/snapshots/{locked.revision}", FIRST)
    assert codes(locked, tmp_path, HashCache.none()) == []
    assert dict(located(locked, tmp_path, cure=CURE))["config.json"] == snapshot / "config.json"


def test_a_blob_in_the_cache_s_shared_store_is_followed(tmp_path: Path) -> None:
    """From client 2 on, files that came by Xet lie in one store for all repositories of the cache."""
    with serving(FIRST) as server:
        locked = hub.resolve(REPO, "main", cache_dir=tmp_path, endpoint=server.endpoint)
        hub.download(locked, tmp_path, endpoint=server.endpoint)
    (weights,) = (place for path, place in located(locked, tmp_path, cure=CURE) if path == "model.safetensors")
    shared = tmp_path / "blobs" / "ab" / f"ab{'0' * 62}"
    shared.parent.mkdir(parents=True)
    weights.rename(shared)
    weights.symlink_to(os.path.relpath(shared, weights.parent))
    assert codes(locked, tmp_path, HashCache.none()) == []
    assert dict(located(locked, tmp_path, cure=CURE))["model.safetensors"] == shared
