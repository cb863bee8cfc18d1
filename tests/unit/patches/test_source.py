"""Where pristine files come from: directories, archives, mappings, one over the other."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.patches import source
from support.series_samples import MappingTree


def _archive(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def _member(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = "/etc/passwd" if kind == tarfile.SYMTYPE else ""
    return member


def test_an_archive_gives_the_wanted_files_without_its_top_directory(tmp_path: Path) -> None:
    members = [(_member("x-1/vllm/a.py"), b"a"), (_member("x-1/b"), b"b"), (_member("x-1"), b"top")]
    tree = source.archive(_archive(tmp_path / "x.tar.gz", members), ["vllm/a.py", "missing"])
    assert tree.read("vllm/a.py") == b"a"
    assert tree.read("missing") is None
    with pytest.raises(KeyError):
        tree.read("b")  # not wanted is not the same as not there


def test_a_wanted_member_that_is_a_link_or_comes_twice_is_refused(tmp_path: Path) -> None:
    members = [(_member("x/a", tarfile.SYMTYPE), b""), (_member("x/b"), b"1"), (_member("x/b"), b"2")]
    with pytest.raises(Refused) as caught:
        source.archive(_archive(tmp_path / "x.tar.gz", members), ["a", "b"])
    assert [(refusal.code, refusal.found) for refusal in caught.value.refusals] == [
        ("NV306", "a link or a special file"),
        ("NV306", "a second member of that name"),
    ]


@pytest.mark.parametrize("cut", [0, 5, 60])
def test_half_an_archive_is_refused(tmp_path: Path, cut: int) -> None:
    whole = _archive(tmp_path / "x.tar.gz", [(_member("x/a"), bytes(range(256)) * 50)]).read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[:cut])
    with pytest.raises(Refused) as caught:
        source.archive(tmp_path / "cut.tar.gz", ["a"])
    assert [refusal.code for refusal in caught.value.refusals] == ["NV108"]


def test_a_directory_gives_regular_files_only(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "f").write_bytes(b"f")
    (tmp_path / "link").symlink_to("f")
    tree = source.DirectoryTree(tmp_path)
    assert [tree.read(path) for path in ("f", "link", "d", "none", "f/below")] == [b"f", None, None, None, None]


def test_an_overlay_wins_and_hides() -> None:
    tree = source.Overlay(MappingTree({"a": b"1", "b": b"2"}), {"a": b"new", "b": None})
    assert [tree.read(path) for path in ("a", "b", "c")] == [b"new", None, None]
