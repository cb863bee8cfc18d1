"""The whole source with a patch set applied: what is changed, what stays, and what is refused."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.patches import checkout, unified
from support import series_samples

FILES = {"vllm/a.py": b"one\n", "vllm/b.py": b"two\n", "README": b"three\n", "tool.sh": b"four\n"}


def _archive(path: Path, files: dict[str, bytes], kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(f"vllm-1/{name}")
            member.size, member.mode = len(data), 0o775 if name.endswith(".sh") else 0o600
            tar.addfile(member, io.BytesIO(data))
        odd = tarfile.TarInfo("vllm-1/link")
        odd.type, odd.linkname = kind, "/etc/passwd"
        if kind != tarfile.REGTYPE:
            tar.addfile(odd)
    return path


def _diff(before: dict[str, bytes], after: dict[str, bytes]) -> unified.Diff:
    return unified.parse(series_samples.patch_text(before, after), "sample.patch")


def _tree(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mode & 0o777)
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_a_set_is_applied_to_the_whole_source(tmp_path: Path) -> None:
    after = {"vllm/a.py": b"ONE\n", "vllm/new/c.py": b"five\n", "README": b"three\n", "tool.sh": b"FOUR\n"}
    archive = _archive(tmp_path / "x.tar.gz", FILES)
    changed = checkout.write(archive, [_diff(FILES, after)], tmp_path / "out")
    assert changed == ("tool.sh", "vllm/a.py", "vllm/b.py", "vllm/new/c.py")
    modes = dict.fromkeys(after, 0o644) | {"tool.sh": 0o755}
    assert _tree(tmp_path / "out") == {path: (data, modes[path]) for path, data in after.items()}


def test_without_patches_it_is_the_source(tmp_path: Path) -> None:
    assert checkout.write(_archive(tmp_path / "x.tar.gz", FILES), [], tmp_path / "out") == ()
    assert {path: data for path, (data, _) in _tree(tmp_path / "out").items()} == FILES


def test_a_patch_that_does_not_apply_writes_nothing(tmp_path: Path) -> None:
    diff = _diff({"vllm/a.py": b"other\n"}, {"vllm/a.py": b"another\n"})
    with pytest.raises(Refused) as caught:
        checkout.write(_archive(tmp_path / "x.tar.gz", FILES), [diff], tmp_path / "out")
    assert [one.code for one in caught.value.refusals] == ["NV301"]
    assert not (tmp_path / "out").exists()


def test_a_link_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        checkout.write(_archive(tmp_path / "x.tar.gz", FILES, tarfile.SYMTYPE), [], tmp_path / "out")
    assert [one.code for one in caught.value.refusals] == ["NV306"]


def test_a_path_that_leaves_the_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        checkout.write(_archive(tmp_path / "x.tar.gz", {"../../out": b""}), [], tmp_path / "out")
    assert [one.code for one in caught.value.refusals] == ["NV306"]
