"""The memo of hashes on real file systems: which changes it sees, and the blocks that each start reads again."""

from __future__ import annotations

import mmap
import os
import posix
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nvllm.core.lock import LockedModel
from nvllm.core.refusal import Refusal
from nvllm.models import memo
from nvllm.models.memo import HashCache
from nvllm.models.modeltree import tree_of, verify
from support import namespaces
from support.blessings_world import environment

CURE = "nvllm model make tiny"
SIZE = 3 * 2**20 + 5


def model(directory: Path) -> LockedModel:
    directory.mkdir()
    (directory / "weights").write_bytes(b"a" * SIZE)
    tree, files = tree_of(directory)
    return LockedModel("directory", tree, files)


def settled() -> int:
    return time.time_ns() + 10**10


def verified(locked: LockedModel, directory: Path) -> list[Refusal]:
    """Return what a start refuses that begins when the files have been settled for long."""
    return verify(locked, directory, HashCache.load(directory.parent / "memo.json", settled), cure=CURE)


def mapped_write_is_seen(directory: Path) -> bool:
    """Write through a mapping that was dirty before the file was hashed; return whether the next start sees that.

    The times do not tell: they moved at the first write to the page, before the hash.
    """
    locked = model(directory / "model")
    with (directory / "model/weights").open("r+b") as stream:
        view = mmap.mmap(stream.fileno(), SIZE, mmap.MAP_SHARED)
    view[0:1] = b"a"
    assert verified(locked, directory / "model") == []
    view[0:1] = b"c"
    return [one.code for one in verified(locked, directory / "model")] == ["NV403"]


def test_a_write_through_a_mapping_is_seen_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks that are read again would show it as well; they are left out here."""
    monkeypatch.setattr(HashCache, "sample", lambda *_: None)
    monkeypatch.setattr(os, "fsync", posix.fsync)  # after it the next write to the page moves the times
    assert mapped_write_is_seen(tmp_path)


ON_TMPFS = """
import os, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_memo
from nvllm.models.memo import HashCache
HashCache.sample = lambda *_: None
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", sys.argv[1]], check=True)
print(test_memo.mapped_write_is_seen(Path(sys.argv[1])), Path(sys.argv[1], "memo.json").exists())
"""


def test_on_a_tmpfs_nothing_is_remembered(tmp_path: Path) -> None:
    """F7: the hash in the memo was that of other bytes, and size, times and inode were the same."""
    directory, unshare = tmp_path, ["unshare", "--mount"]
    program = ON_TMPFS
    if not namespaces.allowed():  # whoever may not mount takes the tmpfs that every Linux has
        directory, unshare = Path(f"/dev/shm/nvllm-test-{os.getpid()}"), []
        directory.mkdir()
        program = ON_TMPFS.replace("subprocess.run", "(lambda *_, **__: None)")
    try:
        command = [*unshare, sys.executable, "-c", program, str(directory), str(Path(__file__).parent)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    finally:
        if directory != tmp_path:
            subprocess.run(["rm", "-r", str(directory)], check=True)
    assert (done.stdout, done.stderr) == ("True False\n", "")


def test_a_file_system_that_nobody_measured_keeps_no_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "file_system", lambda _: "fuse.sshfs")
    assert verified(model(tmp_path / "model"), tmp_path / "model") == []
    assert not (tmp_path / "memo.json").exists()


def test_the_file_system_of_a_descriptor(tmp_path: Path) -> None:
    with Path("/proc/self/mountinfo").open() as stream:
        assert memo.file_system(stream.fileno()) == "proc"


def test_changed_blocks_are_found_although_size_and_times_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only root, a disk or a file system that lies can do: here by a key that leaves the times out."""
    monkeypatch.setattr(memo, "file_system", lambda _: "ext4")
    monkeypatch.setattr(HashCache, "key", staticmethod(lambda info: f"{info.st_dev}:{info.st_ino}:{info.st_size}:0:0"))
    locked = model(tmp_path / "model")
    assert verified(locked, tmp_path / "model") == []
    with (tmp_path / "model/weights").open("r+b") as stream:
        stream.seek(2**20 + 7)
        stream.write(b"B")
    (refusal,) = verified(locked, tmp_path / "model")
    assert (refusal.code, refusal.cure) == ("NV403", CURE)
    assert refusal.found == "other bytes from 1048576 to 2097151, with the size and times of the last hash"
    (again,) = verified(locked, tmp_path / "model")  # the hash was forgotten, so now the whole file is read
    assert again.found.startswith("sha256 ")


def test_each_start_reads_other_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "file_system", lambda _: "ext4")
    monkeypatch.setattr("nvllm.models.modeltree.SAMPLED_OF_FILE", 1)
    locked, offsets = model(tmp_path / "model"), set()
    assert verified(locked, tmp_path / "model") == []
    real = os.pread

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        offsets.add(offset // 2**20)
        return real(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    for _ in range(60):  # one of four blocks each time: that one is never drawn happens once in 8 million runs
        before = len(offsets)
        assert verified(locked, tmp_path / "model") == []
        assert len(offsets) <= before + 1
    assert offsets == {0, 1, 2, 3}


def test_a_memo_is_small(tmp_path: Path) -> None:
    assert [memo.block_size(size) for size in (1, 5 * 2**30, 30 * 2**30)] == [2**20, 2**20, 4 * 2**20]
