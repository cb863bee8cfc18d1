"""NV306, unsafe archive member: a package, wheel or layer holds what must not be there, or is no whole archive."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from nvllm.core.progress import Silent
from nvllm.core.refusal import Refusal, Refused
from nvllm.layers import deb, rootfs, tarlayer
from nvllm.layers.wheel import Scheme, Wheel
from nvllm.patches import source
from support import layersamples
from support.layersamples import Member

SCHEME = Scheme("opt/venv", layersamples.PYTHON)


def refusals(action: Callable[[], object]) -> list[Refusal]:
    with pytest.raises(Refused) as caught:
        action()
    assert {refusal.code for refusal in caught.value.refusals} == {"NV306"}
    assert all(refusal.cure and refusal.expected and refusal.found for refusal in caught.value.refusals)
    return list(caught.value.refusals)


def only(action: Callable[[], object]) -> Refusal:
    (found,) = refusals(action)
    return found


# Layers


def test_everything_wrong_with_a_layer_is_said_at_once() -> None:
    entries = [
        tarlayer.blob("/etc/passwd", b""),
        tarlayer.blob("../up", b""),
        tarlayer.blob("a/../../b", b""),
        tarlayer.blob("twice", b"1"),
        tarlayer.blob("twice", b"1"),
        tarlayer.directory("both"),
        tarlayer.link("both", "elsewhere"),
        tarlayer.blob("file", b""),
        tarlayer.blob("file/below", b""),
        tarlayer.link("link", "/"),
        tarlayer.blob("link/below/it", b""),
        tarlayer.blob("\ud800", b""),
    ]
    found = [
        (refusal.where, refusal.expected, refusal.found) for refusal in refusals(lambda: tarlayer.complete(entries))
    ]
    assert sorted(found) == sorted(
        [
            ("../up", "a relative path without . or ..", "another path"),
            ("/etc/passwd", "a relative path without . or ..", "another path"),
            ("\\ud800", "a relative path without . or ..", "another path"),
            ("a/../../b", "a relative path without . or ..", "another path"),
            ("both", "one entry of that path", "directory and link"),
            ("file", "a directory, because file/below lies below it", "a file"),
            ("link", "a directory, because link/below/it lies below it", "a link"),
            ("twice", "one entry of that path", "file and file"),
        ]
    )


# Debian packages


DAMAGED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "no ar archive"),
    "no archive": (lambda data: b"<html>not found</html>", "no ar archive"),
    "torn header": (lambda data: data + b"data.tar.xz", "a torn ar header"),
    "size that is no number": (lambda data: data.replace(b"4         `", b"-4        `"), "a torn ar header"),
    "cut member": (lambda data: data[:-200], "bytes of data.tar.xz"),
    "zstd": (
        lambda data: data.replace(b"data.tar.xz ", b"data.tar.zst"),
        "members debian-binary control.tar.xz data.tar.zst",
    ),
    "flipped bit": (lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:], "data.tar: "),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_package(tmp_path: Path, damage: str) -> None:
    change, expected = DAMAGED[damage]
    whole = layersamples.deb_bytes("demo", [Member(f"./usr/{n}", bytes([n]) * 99) for n in range(50)])
    path = tmp_path / "demo.deb"
    path.write_bytes(change(whole))
    found = only(lambda: list(deb.files(path, "demo")))
    assert found.where == "demo", "in the store, a package has only a hash for a name"
    assert found.expected == "a whole Debian package (deb(5)), its tars compressed by xz, gzip or not at all"
    assert expected in found.found
    assert found.cure == "lock another file in its place: nvllm lock IMAGE --update debs"


def test_packages_without_their_members(tmp_path: Path) -> None:
    path = tmp_path / "demo.deb"
    path.write_bytes(layersamples.ar([("debian-binary", b"2.0\n"), ("control.tar", layersamples.tar([]))]))
    assert only(lambda: list(deb.files(path, "demo"))).found == "members debian-binary control.tar"
    assert only(lambda: deb.control(path, "demo")).found == "no control file of UTF-8 text"


@pytest.mark.parametrize(
    "member", [layersamples.directory("./control"), Member("./control", b"Package: \xff\n"), Member("./other", b"")]
)
def test_a_control_file_that_is_none(tmp_path: Path, member: Member) -> None:
    path = tmp_path / "demo.deb"
    path.write_bytes(layersamples.ar([("control.tar", layersamples.tar([member]))]))
    assert only(lambda: deb.control(path, "demo")).found == "no control file of UTF-8 text"


@pytest.mark.parametrize("rest", [b"", b"\1" + bytes(1023)], ids=["cut", "damaged"])
def test_a_tar_that_ends_too_early(tmp_path: Path, rest: bytes) -> None:
    """Between two members nothing but the missing end tells that there was more."""
    path = tmp_path / "demo.deb"
    first = layersamples.tar([Member("./a", b"")])[:512]
    path.write_bytes(layersamples.ar([("data.tar", first + rest)]))
    assert only(lambda: list(deb.files(path, "demo"))).found == "data.tar that does not end as a tar does"


# The base's tree


def unpack(tmp_path: Path, *packages: tuple[str, Path]) -> Callable[[], object]:
    return lambda: rootfs.unpack(list(packages), tmp_path / "tree", Silent())


SPECIAL = {
    "fifo": (Member("./run/pipe", kind=tarfile.FIFOTYPE), "a FIFO"),
    "character device": (Member("./dev/null", kind=tarfile.CHRTYPE), "a character device"),
    "block device": (Member("./dev/sda", kind=tarfile.BLKTYPE), "a block device"),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_special_files(tmp_path: Path, kind: str) -> None:
    member, shown = SPECIAL[kind]
    found = only(unpack(tmp_path, layersamples.deb(tmp_path, "demo", member)))
    assert (found.where, found.found) == (f"demo: {member.name}", shown)
    assert found.expected == "a file, a directory or a link"
    assert not (tmp_path / "tree").exists()


@pytest.mark.parametrize("name", ["../outside", "./usr/../../outside", "/etc/outside", ".//outside", "./usr/./x"])
def test_paths_that_leave_the_tree(tmp_path: Path, name: str) -> None:
    found = only(unpack(tmp_path, layersamples.deb(tmp_path, "demo", Member(name, b"x"))))
    assert (found.where, found.expected) == (f"demo: {name}", "a path below the root, without ..")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo_1.0_amd64.deb"]


@pytest.mark.parametrize("below", ["file", "deeper/file"])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_nothing_is_written_through_a_link(tmp_path: Path, below: str, kind: bytes) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    members = [
        Member("./usr/file", b"x"),
        layersamples.symlink("./usr/out", str(outside)),
        Member(f"./usr/out/{below}", b"" if kind != tarfile.REGTYPE else b"x", kind=kind, link="./usr/file"),
    ]
    found = only(unpack(tmp_path, layersamples.deb(tmp_path, "demo", *members)))
    assert (found.expected, found.found) == ("a path through directories only", "usr/out is a link")
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("place", ["etc", "var", "var/lib", "tmp", "run", "models", "home", "usr", "usr/lib64"])
def test_what_nvllm_writes_itself_goes_through_no_link_either(tmp_path: Path, place: str) -> None:
    outside = tmp_path / "outside"
    (outside / "lib").mkdir(parents=True)
    package = layersamples.deb(tmp_path, "demo", layersamples.symlink(f"./{place}", str(outside)))
    found = refusals(unpack(tmp_path, package))
    assert all(refusal.where.startswith("demo: ") for refusal in found)
    assert [path.name for path in outside.rglob("*")] == ["lib"]
    assert not (tmp_path / "tree").exists()


def test_the_user_database_is_a_file(tmp_path: Path) -> None:
    found = only(unpack(tmp_path, layersamples.deb(tmp_path, "demo", layersamples.directory("./etc/passwd/"))))
    assert (found.where, found.found) == ("demo: etc/passwd", "a directory")


@pytest.mark.parametrize(
    "target", ["/etc/hostname", "../../../../etc/hostname", "./missing", "./usr/link", "./usr/d/x"]
)
def test_hard_links_never_read_the_host(tmp_path: Path, target: str) -> None:
    members = [
        layersamples.symlink("./usr/link", "/etc/hostname"),
        layersamples.symlink("./usr/d", "/etc"),
        Member("./usr/taken", kind=tarfile.LNKTYPE, link=target),
    ]
    found = only(unpack(tmp_path, layersamples.deb(tmp_path, "demo", *members)))
    assert (found.where, found.found) == ("demo: ./usr/taken", target)
    assert found.expected == "a hard link to a file that was unpacked before it"


FILE = Member("./usr/thing", b"one")
OTHERS = {
    "content": (Member("./usr/thing", b"two"), "a file of one"),
    "mode": (Member("./usr/thing", b"one", 0o755), "a file of one"),
    "link": (layersamples.symlink("./usr/thing", "one"), "a file of one"),
    "directory": (layersamples.directory("./usr/thing/"), "a file of one"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_two_packages_with_one_path(tmp_path: Path, other: str) -> None:
    member, shown = OTHERS[other]
    one, two = layersamples.deb(tmp_path, "one", FILE), layersamples.deb(tmp_path, "two", member)
    found = only(unpack(tmp_path, one, two))
    assert found.where.startswith("two: ./usr/thing")
    assert (found.expected, found.found) == ("a path that no other package has", shown)
    assert refusals(unpack(tmp_path, two, one)), "nor in the other order"


def test_a_file_below_a_file(tmp_path: Path) -> None:
    packages = layersamples.deb(tmp_path, "one", FILE), layersamples.deb(tmp_path, "two", Member("./usr/thing/x", b""))
    assert only(unpack(tmp_path, *packages)).found == "usr/thing is a file"


def test_a_merged_path_is_the_same_path(tmp_path: Path) -> None:
    packages = [
        layersamples.deb(tmp_path, "one", Member("./lib/x.so", b"1")),
        layersamples.deb(tmp_path, "two", Member("./usr/lib/x.so", b"2")),
    ]
    assert only(unpack(tmp_path, *packages)).where == "two: ./usr/lib/x.so"


def test_every_package_is_told_of_at_once(tmp_path: Path) -> None:
    torn = tmp_path / "torn.deb"
    torn.write_bytes(b"")
    packages = [
        layersamples.deb(tmp_path, "one", Member("../a", b""), Member("../b", b"")),
        ("torn", torn),
        layersamples.deb(tmp_path, "two", Member("./pipe", kind=tarfile.FIFOTYPE)),
    ]
    assert [found.where for found in refusals(unpack(tmp_path, *packages))] == [
        "one: ../a",
        "one: ../b",
        "torn",
        "two: ./pipe",
    ]


@pytest.mark.parametrize("name", ["../../../outside", "a/../../b"])
def test_a_package_whose_name_is_a_path(tmp_path: Path, name: str) -> None:
    _, path = layersamples.deb(tmp_path, "demo", Member("./usr/x", b""))
    assert only(unpack(tmp_path, (name, path))).where == f"{name}: var/lib/dpkg/status.d/{name}"


# Wheels


def entries(path: Path) -> Callable[[], object]:
    def read() -> None:
        with Wheel(path, "demo-1.0-py3-none-any.whl") as opened:
            for entry in opened.entries(SCHEME):
                with entry.content() as stream:
                    stream.read()

    return read


@pytest.mark.parametrize(
    "name",
    ["../outside.py", "demo/../../outside.py", "/etc/outside", "demo-1.0.data/unknown/x", "demo-1.0.data/scripts/../x"],
)
def test_members_that_leave_the_environment(tmp_path: Path, name: str) -> None:
    found = only(entries(layersamples.wheel(tmp_path, "demo", {name: b"x"})))
    assert found.where == f"demo-1.0-py3-none-any.whl: {name}"
    assert (found.expected, found.found) == ("a path inside the environment", "one outside it")


def test_two_members_for_one_place(tmp_path: Path) -> None:
    found = only(entries(layersamples.wheel(tmp_path, "demo", {"a.py": b"1", "demo-1.0.data/purelib/a.py": b"2"})))
    assert found.where == "demo-1.0-py3-none-any.whl: demo-1.0.data/purelib/a.py"
    assert found.found == "also a.py"


def test_a_wheel_that_is_no_archive(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for data in (b"", b"not a zip", layersamples.wheel(tmp_path, "demo", {"a.py": b"1"}).read_bytes()[:-9]):
        path.write_bytes(data)
        found = only(entries(path))
        assert (found.where, found.expected) == ("demo-1.0-py3-none-any.whl", "a whole wheel (PEP 427)")
        assert found.cure == "lock another file in its place: nvllm lock IMAGE --update wheels"


@pytest.mark.parametrize("place", ["a.bin", "demo-1.0.data/scripts/run", "demo-1.0.dist-info/entry_points.txt"])
def test_a_damaged_member(tmp_path: Path, place: str) -> None:
    path = tmp_path / "demo.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(place, b"[console_scripts]\nsome content")
        archive.writestr("demo-1.0.dist-info/METADATA", b"")
    path.write_bytes(path.read_bytes().replace(b"some content", b"some c0ntent"))
    found = only(entries(path))
    assert found.where == f"demo-1.0-py3-none-any.whl: {place}"
    assert "CRC" in found.found


@pytest.mark.parametrize(
    "text",
    [
        "[console_scripts]\nrun\n",
        "run = a:b\n",
        "[console_scripts]\nrun = a:b\nrun = c:d\n",
        "[console_scripts]\nrun = a\n",
        "[console_scripts]\nrun = a; import os:main\n",
        "[console_scripts]\nrun = a:main()\n",
    ],
)
def test_entry_points_that_are_none(tmp_path: Path, text: str) -> None:
    found = only(entries(layersamples.wheel(tmp_path, "demo", {"demo-1.0.dist-info/entry_points.txt": text.encode()})))
    assert found.where == "demo-1.0-py3-none-any.whl: entry_points.txt"


def test_entry_points_that_are_no_text(tmp_path: Path) -> None:
    wheel = layersamples.wheel(tmp_path, "demo", {"demo-1.0.dist-info/entry_points.txt": b"\xff"})
    assert only(entries(wheel)).where.endswith("demo-1.0.dist-info/entry_points.txt")


def test_a_wheel_without_metadata(tmp_path: Path) -> None:
    path = tmp_path / "demo.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.py", b"")
    with Wheel(path) as opened:
        assert only(lambda: opened.dist_info).where == "demo.whl"


# Source archives


def test_a_source_archive_whose_file_is_a_link(tmp_path: Path) -> None:
    path = tmp_path / "vllm-0.28.0.tar"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("vllm-0.28.0/vllm/a.py")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
    path.write_bytes(out.getvalue())
    assert only(lambda: source.archive(path, ["vllm/a.py"])).found == "a link or a special file"
