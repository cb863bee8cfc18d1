"""Layers: the same bytes from the same entries, whatever surrounds them, and refused where a tar could mislead."""

from __future__ import annotations

import hashlib
import io
import random
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.layers import tarlayer
from nvllm.layers.tarlayer import Layer, TarEntry
from support import layersamples

_EPOCH = 1_760_000_000
_TEXT = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), max_size=130)
# The prefixes keep a file from standing where another path needs a directory.
_PATHS = st.builds(
    lambda parents, leaf: "/".join([*parents, leaf]),
    st.lists(_TEXT.map(lambda text: "d" + text), max_size=3),
    _TEXT.map(lambda text: "f" + text),
)
_THINGS = st.one_of(
    st.tuples(st.just("file"), st.booleans(), st.binary(max_size=1500)),
    st.tuples(st.just("link"), st.just(False), _TEXT.map(lambda text: ("t" + text).encode())),
    st.tuples(st.just("directory"), st.just(False), st.just(b"")),
)


def _entry(path: str, thing: tuple[str, bool, bytes]) -> TarEntry:
    kind, executable, data = thing
    if kind == "file":
        return tarlayer.blob(path, data, executable=executable)
    return tarlayer.link(path, data.decode()) if kind == "link" else tarlayer.directory(path)


def _write(entries: list[TarEntry], path: Path) -> Layer:
    return tarlayer.write("sample", entries, epoch=_EPOCH, path=path, progress=Silent())


@settings(max_examples=20)
@given(st.dictionaries(_PATHS, _THINGS, max_size=8), st.randoms())
def test_order_does_not_matter_and_a_tar_reader_sees_what_was_meant(
    things: dict[str, tuple[str, bool, bytes]], shuffling: random.Random
) -> None:
    entries = [_entry(path, thing) for path, thing in things.items()]
    shuffled = [_entry(path, thing) for path, thing in things.items()]
    shuffling.shuffle(shuffled)
    with tempfile.TemporaryDirectory() as scratch:
        one, other = _write(entries, Path(scratch, "one.tar")), _write(shuffled, Path(scratch, "other.tar"))
        data = one.path.read_bytes()
        assert (one.diff_id, one.size) == (other.diff_id, other.size)
    assert one.diff_id == "sha256:" + hashlib.sha256(data).hexdigest()
    assert one.size == len(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = tar.getmembers()
        found = {member.name: member for member in members}
        for path, (kind, executable, content) in things.items():
            member = found[path]
            if kind == "file":
                stream = tar.extractfile(member)
                assert stream is not None
                assert (member.isreg(), stream.read()) == (True, content)
                assert member.mode == (0o755 if executable else 0o644)
            elif kind == "link":
                assert (member.issym(), member.linkname.encode(), member.mode) == (True, content, 0o777)
            else:
                assert (member.isdir(), member.mode) == (True, 0o755)
    assert len(found) == len(members)
    assert [m.name.encode() for m in members] == sorted(m.name.encode() for m in members)
    for member in members:
        assert (member.uid, member.gid, member.uname, member.gname, member.mtime) == (0, 0, "", "", _EPOCH)
    parents = {"/".join(path.split("/")[:depth]) for path in things for depth in range(1, path.count("/") + 1)}
    assert set(found) == {*things, *parents}
    assert all(found[parent].isdir() for parent in parents)


GOLDEN = """
import sys
from pathlib import Path
from nvllm.layers import tarlayer
from nvllm.core.progress import Silent
entries = [
    tarlayer.blob("usr/bin/tool", b"#!/bin/sh\\n", executable=True),
    tarlayer.blob("usr/share/" + 15 * "long-name-" + "/" + 12 * "segment/" + "file", b"long"),
    tarlayer.blob("usr/share/" + 26 * "255-and-more", b"longer"),
    tarlayer.blob("usr/share/größe-文件", "Zażółć".encode()),
    tarlayer.blob("usr/share/raw-\\udcff", b""),
    tarlayer.link("lib", "usr/lib"),
    tarlayer.link("link", 30 * "target-" + "ä"),
    tarlayer.TarEntry("tmp", "directory", 0o1777),
]
print(tarlayer.write("x", entries, epoch=1760000000, path=Path(sys.argv[1]), progress=Silent()).diff_id)
"""
GOLDEN_DIGEST = "sha256:741791e68dd459458055c58796bcba659ff9d1a11d710a887c5f44f21c80e0f3"


@pytest.mark.parametrize(
    "around",
    [
        layersamples.Surroundings(),
        layersamples.Surroundings(umask=0o077),
        layersamples.Surroundings(umask=0o000, environment={"TZ": "Pacific/Kiritimati"}),
        layersamples.Surroundings(cwd=Path("/usr"), environment={"PYTHONHASHSEED": "7", "HOME": "/nonexistent"}),
        # An old locale, in which file names are not UTF-8.
        layersamples.Surroundings(environment={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    ],
    ids=["plain", "umask-077", "time-zone", "cwd-and-hash-seed", "locale"],
)
def test_a_layer_has_the_bytes_that_it_always_had(tmp_path: Path, around: layersamples.Surroundings) -> None:
    assert layersamples.child(GOLDEN, tmp_path / "layer.tar", around=around).strip() == GOLDEN_DIGEST


def test_the_bytes_are_posix_tar() -> None:
    """GNU tar and Go read the same names as tarfile: nothing in a layer is Python's own."""
    with tempfile.TemporaryDirectory() as scratch:
        layersamples.child(GOLDEN, Path(scratch, "layer.tar"))
        listed = subprocess.run(
            ["tar", "--list", "--quoting-style=literal", "--file", str(Path(scratch, "layer.tar"))],
            capture_output=True,
            check=True,
        ).stdout.split(b"\n")
    assert "usr/share/größe-文件".encode() in listed
    assert b"usr/share/raw-\xff" in listed
    assert b"usr/share/" + 26 * b"255-and-more" in listed
    assert b"tmp/" in listed


def test_a_sticky_directory_stays_sticky_in_either_order() -> None:
    sticky = TarEntry("tmp", "directory", 0o1777)
    for entries in ([sticky, tarlayer.directory("tmp")], [tarlayer.directory("tmp"), sticky]):
        assert [entry.mode for entry in tarlayer.complete(entries)] == [0o1777]


class _Torn(io.RawIOBase):
    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object, /) -> int:
        raise OSError("the disk is gone")


def _torn() -> BinaryIO:
    return io.BufferedReader(_Torn())


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    entries = [tarlayer.blob("a", bytes(1 << 21)), TarEntry("b", "file", 0o644, 10, content=_torn)]
    with pytest.raises(OSError, match="the disk is gone"):
        _write(entries, tmp_path / "layer.tar")
    assert list(tmp_path.iterdir()) == []


KILLED = """
import io, os, signal, sys
from pathlib import Path
from nvllm.layers import tarlayer
from nvllm.core.progress import Silent
def content():
    os.kill(os.getpid(), signal.SIGKILL)
entries = [tarlayer.blob("a", bytes(1 << 21)), tarlayer.TarEntry("b", "file", 0o644, 10, content=content)]
tarlayer.write("x", entries, epoch=0, path=Path(sys.argv[1]), progress=Silent())
"""


def test_a_killed_write_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    path = tmp_path / "layer.tar"
    environment = {"PYTHONPATH": str(Path(tarlayer.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not path.exists()
    assert len(list(tmp_path.iterdir())) == 1, "the test was to kill it in the middle"
    layer = _write([tarlayer.blob("a", b"")], path)
    assert layer.diff_id == "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_refused_layer_is_not_begun(tmp_path: Path) -> None:
    with pytest.raises(Refused):
        _write([tarlayer.blob("../a", b"")], tmp_path / "layer.tar")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        ".",
        "./a",
        "a/./b",
        "..",
        "../a",
        "a/..",
        "a/../b",
        "a\0b",
        "\ud800",
        "\udcc3\udca4",
    ],
)
def test_unsafe_paths(path: str) -> None:
    assert not tarlayer.safe(path)


@pytest.mark.parametrize("path", ["a", "a/b", "...", "a/..b", ".wh.a", "a\\..\\b", "ä", "a\nb", "raw-\udcff"])
def test_safe_paths(path: str) -> None:
    assert tarlayer.safe(path)


@given(st.text())
def test_a_safe_path_never_leaves_its_tree(path: str) -> None:
    if tarlayer.safe(path):
        whole = Path("/root/tree", path)
        assert whole.is_relative_to("/root/tree")
        assert str(whole) == f"/root/tree/{path}"


def test_a_layer_is_readable_by_others_whatever_the_umask(tmp_path: Path) -> None:
    layer = _write([tarlayer.blob("a", b"x")], tmp_path / "layer.tar")
    with tarfile.open(layer.path) as tar:
        (member,) = tar.getmembers()
    assert stat.S_IMODE(member.mode) == 0o644
