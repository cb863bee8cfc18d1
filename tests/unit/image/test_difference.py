"""How images differ: every attribute of an entry by name, with both values, and the lines of what can be read."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import itertools
import marshal
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from nvllm.core.refusal import Refused
from nvllm.image import difference
from nvllm.image.contents import Contents, FileRange, StoredLayer
from nvllm.image.difference import ImageDifference

NUMBER = itertools.count()


def entry(name: str, data: bytes = b"", **attributes: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for attribute, value in attributes.items():
        setattr(info, attribute, value)
    return info, data


def stored(
    place: Path, *entries: tuple[tarfile.TarInfo, bytes], name: str = "wheels", form: int = tarfile.PAX_FORMAT
) -> StoredLayer:
    path = place / f"{next(NUMBER)}.tar"
    with tarfile.open(path, "w", format=form) as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return of_file(path, name)


def of_file(path: Path, name: str = "wheels") -> StoredLayer:
    digest = "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    return StoredLayer(name, digest, lambda: FileRange(path, 0, path.stat().st_size))


def compared(one: StoredLayer, other: StoredLayer) -> list[ImageDifference]:
    return differences(Contents("a", None, (one,)), Contents("b", None, (other,)))


def said(found: Sequence[ImageDifference]) -> list[tuple[str, str, str, str]]:
    return [(one.path, one.attribute, one.first, one.second) for one in found]


def sha256(data: bytes) -> str:
    return f"sha256 {hashlib.sha256(data).hexdigest()}"


ATTRIBUTES = [
    ({"mode": 0o644}, {"mode": 0o755}, ("mode", "0644", "0755")),
    ({"uid": 0}, {"uid": 1000}, ("owner", "0", "1000")),
    ({"gid": 0}, {"gid": 1000}, ("group", "0", "1000")),
    ({"uname": ""}, {"uname": "root"}, ("owner name", "", "root")),
    ({"gname": ""}, {"gname": "root"}, ("group name", "", "root")),
    ({"mtime": 1}, {"mtime": 2}, ("mtime", "1", "2")),
    ({"mtime": 1}, {"mtime": 1.5}, ("mtime", "1", "1.5")),
    (
        {"type": tarfile.SYMTYPE, "linkname": "x"},
        {"type": tarfile.SYMTYPE, "linkname": "y"},
        ("link", "x", "y"),
    ),
    ({}, {"type": tarfile.DIRTYPE}, ("type", "file", "directory")),
    ({}, {"pax_headers": {"SCHILY.xattr.user.note": "1"}}, ("xattr user.note", "absent", "1")),
    ({"pax_headers": {"comment": "1"}}, {"pax_headers": {"comment": "2"}}, ("pax comment", "1", "2")),
    (
        {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3},
        {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5},
        ("device", "1:3", "1:5"),
    ),
]


@pytest.mark.parametrize(("before", "after", "expected"), ATTRIBUTES, ids=[row[2][0] for row in ATTRIBUTES])
def test_an_attribute_is_named_with_both_values(
    tmp_path: Path, before: Mapping[str, Any], after: Mapping[str, Any], expected: tuple[str, str, str]
) -> None:
    found = compared(stored(tmp_path, entry("opt/x", **before)), stored(tmp_path, entry("opt/x", **after)))
    assert said(found) == [("opt/x", *expected)]
    assert {one.layer for one in found} == {"wheels"}


def test_a_changed_text_is_shown_as_lines(tmp_path: Path) -> None:
    one, other = b"a\nb\nc\n", b"a\nB\nc\nd\n"
    found = compared(stored(tmp_path, entry("t", one)), stored(tmp_path, entry("t", other)))
    assert said(found) == [("t", "size", "6", "8"), ("t", "content", sha256(one), sha256(other))]
    assert found[1].lines == ("@@ -1,3 +1,4 @@", " a", "-b", "+B", " c", "+d")


def test_a_change_that_is_no_text_has_a_place(tmp_path: Path) -> None:
    found = compared(stored(tmp_path, entry("b", b"\0\1\2")), stored(tmp_path, entry("b", b"\0\1\3")))
    assert [one.lines for one in found] == [("first different at byte 2: 02 and 03",)]


def test_a_long_text_is_cut(tmp_path: Path) -> None:
    one, other = (b"".join(b"%s%d\n" % (letter, number) for number in range(500)) for letter in (b"a", b"b"))
    (found,) = compared(stored(tmp_path, entry("t", one)), stored(tmp_path, entry("t", other)))
    assert found.lines[-1] == f"... {1001 - len(found.lines) + 1} more lines"


def pyc(source: bytes, flags: int = 3) -> bytes:
    head = importlib.util.MAGIC_NUMBER + flags.to_bytes(4, "little") + importlib.util.source_hash(source)
    return head + marshal.dumps(compile(source, "/opt/a.py", "exec"))


def test_changed_bytecode_is_named_with_its_header(tmp_path: Path) -> None:
    one, other = b"A = 1\nB = len('one')\n", b"A = 1\nB = len('four')\n"
    layers = [
        stored(tmp_path, entry("opt/__pycache__/a.cpython-311.pyc", pyc(source)), entry("opt/a.py", source))
        for source in (one, other)
    ]
    changed = next(each for each in compared(*layers) if each.path.endswith(".pyc") and each.attribute == "content")
    assert changed.lines[0].startswith("header, source: ")
    assert changed.lines[1] == "the code differs: diffoscope shows how"


def test_bytecode_with_another_header_alone(tmp_path: Path) -> None:
    layers = [stored(tmp_path, entry("opt/__pycache__/a.pyc", pyc(b"A = 1\n", flags))) for flags in (3, 1)]
    assert [one.lines for one in compared(*layers)] == [("header, kind: 03000000 and 01000000",)]


def test_a_file_that_is_on_one_side_alone(tmp_path: Path) -> None:
    found = compared(stored(tmp_path, entry("a"), entry("b")), stored(tmp_path, entry("b"), entry("c")))
    assert said(found) == [("a", "file", "file", "absent"), ("c", "file", "absent", "file")]


def test_another_order_of_the_same_entries(tmp_path: Path) -> None:
    found = compared(stored(tmp_path, entry("a"), entry("b")), stored(tmp_path, entry("b"), entry("a")))
    assert said(found) == [("", "order, from entry 1 on", "a", "b")]


def test_the_same_entries_in_another_archive(tmp_path: Path) -> None:
    found = compared(stored(tmp_path, entry("a")), stored(tmp_path, entry("a"), form=tarfile.GNU_FORMAT))
    ((path, attribute, one, other),) = said(found)
    assert (path, attribute) == ("", "bytes of the archive")
    assert one.endswith(" at byte 152")  # the check sum of the header, which covers its magic
    assert one != other


def test_a_path_that_is_there_twice(tmp_path: Path) -> None:
    found = compared(stored(tmp_path, entry("a", b"1")), stored(tmp_path, entry("a", b"1"), entry("a", b"2")))
    assert said(found) == [("a (2)", "file", "absent", "file")]


def test_bytes_that_are_no_tar_are_refused(tmp_path: Path) -> None:
    (tmp_path / "torn").write_bytes(b"not a tar" * 100)
    with pytest.raises(Refused) as caught:
        compared(of_file(tmp_path / "torn"), stored(tmp_path, entry("a")))
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV306", f"{tmp_path}/torn: layer wheels")


# Whole images


def image(*layers: StoredLayer, **configuration: Any) -> Contents:
    return Contents("x", {"os": "linux", **configuration}, layers)


def differences(one: Contents, other: Contents) -> list[ImageDifference]:
    return list(difference.images(one, other))


def test_configurations_and_layers_that_one_side_lacks(tmp_path: Path) -> None:
    base, top = stored(tmp_path, entry("a"), name="base"), stored(tmp_path, entry("b"), name="top")
    found = differences(image(base, created="1"), image(base, top, created="2"))
    assert found == [
        ImageDifference("configuration", ".created", "value", "1", "2"),
        ImageDifference("top", "", "layer", "absent", "present"),
    ]
    assert differences(image(base, top), image(top, base))[0].attribute == "order of the layers"


def test_a_layer_under_another_name_is_the_same_layer(tmp_path: Path) -> None:
    one = stored(tmp_path, entry("a"))
    assert differences(image(one), image(StoredLayer("number 1", one.diff_id, one.tar))) == []


def test_equal_layers_are_not_read() -> None:
    def unread() -> FileRange:
        raise AssertionError("read")

    layer = StoredLayer("base", f"sha256:{64 * 'a'}", unread)
    assert differences(image(layer), image(layer)) == []


@pytest.mark.thorough
def test_one_changed_file_among_many_takes_seconds(tmp_path: Path) -> None:
    many = [entry(f"opt/file{number}", b"%d\n" % number * 50) for number in range(20_000)]
    one = stored(tmp_path, *many, entry("opt/last", b"1"))
    other = stored(tmp_path, *many, entry("opt/last", b"2"))
    began = time.monotonic()
    found = compared(one, other)
    assert said(found) == [("opt/last", "content", sha256(b"1"), sha256(b"2"))]
    assert time.monotonic() - began < 30, "a machine with nothing else to do needs two"


def test_many_changed_files_are_all_named_and_few_shown_in_lines(tmp_path: Path) -> None:
    layers = [
        stored(tmp_path, *(entry(f"f{number:03}", b"%s\n" % word) for number in range(50))) for word in (b"a", b"b")
    ]
    found = compared(*layers)
    assert len(found) == 50
    assert sum(bool(one.lines) for one in found) == difference.DETAILED


def test_a_refusal_names_the_first_difference_of_each_layer() -> None:
    found = [
        ImageDifference("base", "a", "mode", "0644", "0755"),
        ImageDifference("base", "b", "mode", "0644", "0755"),
        ImageDifference("configuration", ".os", "value", "x", "y"),
    ]
    first, second = difference.refusals(found, "NV310", "a and b", "a cure")
    assert (first.where, first.expected, first.found) == (
        "a and b: layer base: a",
        "mode 0644",
        "mode 0755 (and 1 more differences in this layer)",
    )
    assert (second.where, second.expected) == ("a and b: configuration: .os", "value x")
