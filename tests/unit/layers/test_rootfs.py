"""The base's tree: what packages hold, in the places where a merged /usr has them, and nothing of the host."""

from __future__ import annotations

import os
import stat
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.layers import rootfs, tarlayer
from nvllm.layers.tarlayer import TarEntry
from support import layersamples
from support.layersamples import Member

DEMO = (
    layersamples.directory("./bin/"),
    Member("./bin/sh", b"#!", 0o755),
    layersamples.symlink("./bin/bash", "sh"),
    Member("./sbin/tool", b"tool", 0o4755),
    Member("./lib64/ld.so", b"loader", 0o755),
    Member("./usr/lib/library.so", b"library"),
    Member("./usr/bin/again", kind=tarfile.LNKTYPE, link="./bin/sh"),
    layersamples.symlink("./usr/lib/link.so", "library.so"),
    layersamples.symlink("./etc/absolute", "/usr/lib/library.so"),
    Member("./etc/config", b"config", 0o600),
    layersamples.directory("./usr/share/doc/demo/"),
    Member("./usr/share/doc/demo/copyright", b"free"),
    Member("./usr/share/doc/demo/changelog.gz", b"long"),
    layersamples.directory("./usr/share/man/man1/"),
    Member("./usr/share/man/man1/sh.1.gz", b"page"),
    Member("./usr/share/locale/de/LC_MESSAGES/demo.mo", b"Texte"),
    layersamples.directory("./tmp/"),
    Member("./usr/größe", b"named"),
)


def _unpacked(tmp_path: Path, *members: Member) -> Path:
    tree = tmp_path / "tree"
    rootfs.unpack([layersamples.deb(tmp_path, "demo", *members)], tree, Silent())
    return tree


def _entries(tree: Path) -> dict[str, TarEntry]:
    return {entry.path: entry for entry in rootfs.entries(tree)}


def _content(entry: TarEntry) -> bytes:
    with entry.content() as stream:
        return stream.read()


@pytest.mark.parametrize(
    ("path", "merged"),
    [
        ("bin/sh", "usr/bin/sh"),
        ("lib64/ld.so", "usr/lib64/ld.so"),
        ("libx/y", "libx/y"),
        ("usr/bin/sh", "usr/bin/sh"),
        ("etc/lib/x", "etc/lib/x"),
    ],
)
def test_merged(path: str, merged: str) -> None:
    assert rootfs.merged(path) == merged
    assert rootfs.merged(merged) == merged


def test_a_tree(tmp_path: Path) -> None:
    found = _entries(_unpacked(tmp_path, *DEMO))
    files = {path: (_content(entry), entry.mode) for path, entry in found.items() if entry.kind == "file"}
    note = files.pop("var/lib/dpkg/status.d/demo")
    assert note == (layersamples.control("demo"), 0o644)
    assert files.pop("etc/passwd")[0].startswith(b"root:x:0:0:")
    assert files.pop("etc/group")[0].startswith(b"root:x:0:")
    assert files.pop("etc/nsswitch.conf")[0].endswith(b"hosts: files dns\n")
    assert files == {
        "usr/bin/sh": (b"#!", 0o755),
        "usr/bin/again": (b"#!", 0o755),
        "usr/sbin/tool": (b"tool", 0o755),
        "usr/lib64/ld.so": (b"loader", 0o755),
        "usr/lib/library.so": (b"library", 0o644),
        "etc/config": (b"config", 0o644),
        "usr/share/doc/demo/copyright": (b"free", 0o644),
        "usr/größe": (b"named", 0o644),
    }
    assert {path: entry.target for path, entry in found.items() if entry.kind == "link"} == {
        "bin": "usr/bin",
        "sbin": "usr/sbin",
        "lib": "usr/lib",
        "lib64": "usr/lib64",
        "usr/bin/bash": "sh",
        "usr/lib/link.so": "library.so",
        "etc/absolute": "/usr/lib/library.so",
    }
    directories = {path: entry.mode for path, entry in found.items() if entry.kind == "directory"}
    assert {path for path, mode in directories.items() if mode == 0o1777} == {"tmp", "var/tmp"}
    assert {"run/nvllm", "models", "home/nvllm", "proc", "sys", "dev"} <= directories.keys()
    assert not any(path.startswith(("usr/share/man", "usr/share/locale")) for path in found)


def test_the_entries_are_a_layer(tmp_path: Path) -> None:
    tree = _unpacked(tmp_path, *DEMO)
    assert len(tarlayer.complete(rootfs.entries(tree))) == len(_entries(tree))


def test_the_tree_replaces_an_older_one_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/stale").write_text("")
    tree = _unpacked(tmp_path, *DEMO)
    assert not (tree / "stale").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo_1.0_amd64.deb", "tree"]


def test_a_refused_tree_is_not_there_and_the_older_one_stays(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/older").write_text("")
    with pytest.raises(Refused):
        _unpacked(tmp_path, *DEMO, Member("./pipe", kind=tarfile.FIFOTYPE))
    assert [path.name for path in (tmp_path / "tree").iterdir()] == ["older"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo_1.0_amd64.deb", "tree"]


KILLED = """
import os, signal, sys
from pathlib import Path
from nvllm.layers import rootfs
from nvllm.core.progress import Silent
class Killing(Silent):
    def task(self, label, total, unit):
        return self
    def __enter__(self):
        return self
    def __exit__(self, *_):
        pass
    def advance(self, amount):
        os.kill(os.getpid(), signal.SIGKILL)
pid = os.fork()
if pid == 0:
    rootfs.unpack([("demo", Path(sys.argv[1]))], Path(sys.argv[2]), Killing())
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_killed_unpacking_leaves_no_tree(tmp_path: Path) -> None:
    _, path = layersamples.deb(tmp_path, "demo", *DEMO)
    assert layersamples.child(KILLED, path, tmp_path / "tree") == "-9\n"
    assert not (tmp_path / "tree").exists()
    assert list(tmp_path.glob("tree.*.partial")), "the test was to kill it in the middle"


LAYER = """
import sys
from pathlib import Path
from nvllm.layers import rootfs, tarlayer
from nvllm.core.progress import Silent
tree = Path(sys.argv[2], "tree")
rootfs.unpack([("demo", Path(sys.argv[1]))], tree, Silent())
path = Path(sys.argv[2], "layer.tar")
print(tarlayer.write("base", rootfs.entries(tree), epoch=1, path=path, progress=Silent()).diff_id)
"""


def test_what_surrounds_the_unpacking_does_not_reach_the_layer(tmp_path: Path) -> None:
    _, package = layersamples.deb(tmp_path, "demo", *DEMO)
    digests = set()
    for number, around in enumerate(
        [
            layersamples.Surroundings(),
            layersamples.Surroundings(umask=0o077),
            layersamples.Surroundings(umask=0o000, cwd=tmp_path, environment={"TZ": "Asia/Kathmandu"}),
            layersamples.Surroundings(environment={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
        ]
    ):
        place = tmp_path / str(number) / "a longer directory"[:number]
        place.mkdir(parents=True)
        digests.add(layersamples.child(LAYER, package, place, around=around))
    assert len(digests) == 1
    tree = tmp_path / "1/a/tree"
    assert stat.S_IMODE((tree / "etc").stat().st_mode) == 0o700, "the umask did take effect"


def test_two_packages_may_hold_the_same_file_if_it_is_the_same(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    members = [Member("./usr/a", b"1", 0o755), layersamples.symlink("./usr/b", "a"), layersamples.directory("./usr/c/")]
    packages = [layersamples.deb(tmp_path, name, *members) for name in ("one", "two")]
    rootfs.unpack(packages, tree, Silent())
    assert (tree / "usr/a").read_bytes() == b"1"


def test_a_directory_gives_way_to_a_link_as_dpkg_lets_it(tmp_path: Path) -> None:
    tree = _unpacked(tmp_path, layersamples.symlink("./usr/here", "there"), layersamples.directory("./usr/here/"))
    assert (tree / "usr/here").readlink() == Path("there")


def test_ours_wins_over_a_packages_user_database(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    tree = _unpacked(tmp_path, Member("./etc/group", b"theirs"), layersamples.symlink("./etc/passwd", str(outside)))
    assert (tree / "etc/group").read_text().startswith("root:x:0:")
    assert not (tree / "etc/passwd").is_symlink()
    assert outside.read_text() == "untouched"


def _codes(package: tuple[str, Path], tree: Path) -> set[str]:
    try:
        rootfs.unpack([package], tree, Silent())
    except Refused as refused:
        return {refusal.code for refusal in refused.refusals}
    return set()


_NAMES = st.lists(st.sampled_from(["usr", "lib", "..", ".", "out", "x", "", "etc"]), min_size=1, max_size=4).map(
    "/".join
)
_MEMBERS = st.lists(
    st.builds(
        Member,
        name=_NAMES,
        mode=st.sampled_from([0o644, 0o755]),
        kind=st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]),
        link=st.sampled_from(["OUTSIDE", "OUTSIDE/secret", "../../..", "usr/x", "x", "./usr"]),
    ),
    max_size=7,
)


@settings(max_examples=20)
@given(_MEMBERS)
def test_no_package_reaches_what_lies_outside(members: list[Member]) -> None:
    """Whatever a package holds: nothing outside the tree changes, and nothing from there comes in."""
    with tempfile.TemporaryDirectory() as scratch:
        outside = Path(scratch, "outside")
        outside.mkdir()
        (outside / "secret").write_text("secret")
        aimed = [
            Member(m.name, m.data, m.mode, m.kind, m.link.replace("OUTSIDE", str(outside))) if m.link else m
            for m in members
        ]
        tree = Path(scratch, "inner/tree")
        codes = _codes(layersamples.deb(Path(scratch), "demo", *aimed), tree)
        assert codes == (set() if tree.exists() else {"NV306"})
        if tree.exists():
            assert all(_content(e) != b"secret" for e in rootfs.entries(tree) if e.kind == "file")
        assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("secret", "secret")]
        assert sorted(os.listdir(scratch)) == ["demo_1.0_amd64.deb", "inner", "outside"]
        assert os.listdir(Path(scratch, "inner")) in ([], ["tree"])


def test_links_are_followed_below_the_tree(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "usr/lib").mkdir(parents=True)
    (tree / "etc").mkdir()
    (tree / "etc/file").write_text("in the tree")
    (tmp_path / "file").write_text("outside")
    links = {
        "absolute": "/etc/file",
        "relative": "../../etc/file",
        "again": "absolute",
        "above": "../../../../etc/file",
        "outside": str(tmp_path / "file"),
        "directory": "/etc",
        "round": "round",
    }
    for name, target in links.items():
        (tree / "usr/lib" / name).symlink_to(target)
    found = {name: rootfs.followed(tree, tree / "usr/lib" / name) for name in links}
    there = ("absolute", "relative", "again", "above")
    assert found == dict.fromkeys(links) | dict.fromkeys(there, tree / "etc/file")
    assert rootfs.followed(tree, tree / "etc/file") == tree / "etc/file"
