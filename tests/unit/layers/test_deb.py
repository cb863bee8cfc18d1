"""Debian packages: what they hold comes out, and what is damaged is refused, whatever the damage."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvllm.core.refusal import Refused
from nvllm.layers import deb
from support import layersamples
from support.layersamples import Member

_MEMBERS = (
    layersamples.directory("./usr/"),
    Member("./usr/tool", b"#!/bin/sh\n" * 200, 0o755),
    layersamples.symlink("./usr/link", "tool"),
    Member("./usr/größe", "ä".encode()),
)
_PACKAGES = {packed: layersamples.deb_bytes("demo", _MEMBERS, packed) for packed in layersamples.PACKERS}


_Content = tuple[str, list[tuple[str, bytes, int, str, bytes]]]


def _read(data: bytes, scratch: Path) -> _Content:
    path = scratch / "demo.deb"
    path.write_bytes(data)
    found = [(m.name, m.type, m.mode, m.linkname, content) for m, content in deb.files(path, "demo")]
    return deb.control(path, "demo"), found


def _outcome(data: bytes, scratch: Path) -> _Content | set[str]:
    """Return what is read from DATA, or the codes with which it is refused."""
    try:
        return _read(data, scratch)
    except Refused as refused:
        return {refusal.code for refusal in refused.refusals}


@pytest.mark.parametrize("packed", layersamples.PACKERS)
def test_what_a_package_holds_comes_out(tmp_path: Path, packed: str) -> None:
    paragraph, members = _read(_PACKAGES[packed], tmp_path)
    assert paragraph == layersamples.control("demo").decode()
    assert members == [
        (".", tarfile.DIRTYPE, 0o755, "", b""),
        *((m.name.rstrip("/"), m.kind, m.mode, m.link, m.data) for m in _MEMBERS),
    ]


def test_names_are_read_as_utf8_under_any_locale(tmp_path: Path) -> None:
    _, path = layersamples.deb(tmp_path, "demo", *_MEMBERS)
    code = "import sys; from pathlib import Path; from nvllm.layers import deb\n"
    code += "print([ascii(m.name) for m, _ in deb.files(Path(sys.argv[1]), 'demo')])"
    old = layersamples.Surroundings(environment={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    assert "gr\\\\xf6\\\\xdfe" in layersamples.child(code, path, around=old)


@pytest.mark.parametrize("packed", [".xz", ".gz"])
def test_a_damaged_package_is_refused_or_harmless(tmp_path_factory: pytest.TempPathFactory, packed: str) -> None:
    """Bytes are changed, cut and put in: the package is refused, or what is read from it is what it held.

    Packages that are not compressed have no check over their content; the sha256 of the lock is theirs.
    """
    whole = _PACKAGES[packed]
    scratch = tmp_path_factory.mktemp("damaged")
    right = _read(whole, scratch)

    @settings(max_examples=15)
    @given(*_damages(len(whole)))
    def damaged(start: int, end: int, replacement: bytes) -> None:
        data = whole[:start] + replacement + whole[end:]
        assert _outcome(data, scratch) in ({"NV306"}, right)

    damaged()


def _damages(size: int) -> Any:
    index = st.integers(0, size)
    return (
        st.shared(index, key="start"),
        st.shared(index, key="start").flatmap(lambda start: st.integers(start, min(size, start + 3)) | st.just(size)),
        st.binary(max_size=3),
    )


def test_a_damaged_plain_package_never_raises_anything_else(tmp_path_factory: pytest.TempPathFactory) -> None:
    whole = _PACKAGES[""]
    scratch = tmp_path_factory.mktemp("damaged")

    @settings(max_examples=15)
    @given(*_damages(len(whole)))
    def damaged(start: int, end: int, replacement: bytes) -> None:
        found = _outcome(whole[:start] + replacement + whole[end:], scratch)
        assert found == {"NV306"} or isinstance(found, tuple)

    damaged()


def test_a_package_cut_anywhere_is_refused(tmp_path: Path) -> None:
    for packed, whole in _PACKAGES.items():
        for size in range(0, len(whole), 61):
            with pytest.raises(Refused):
                _read(whole[:size], tmp_path)
        assert packed in layersamples.PACKERS


def test_damage_that_only_the_end_of_the_stream_shows(tmp_path: Path) -> None:
    """A reader that stops behind the last member never comes to the checksum."""
    data = layersamples.tar(_MEMBERS)
    packed = bytearray(gzip.compress(data, mtime=0))
    packed[-8] ^= 1  # the checksum itself
    members = [("debian-binary", b"2.0\n"), ("data.tar.gz", bytes(packed))]
    path = tmp_path / "demo.deb"
    path.write_bytes(layersamples.ar(members))
    with pytest.raises(Refused, match="CRC"):
        list(deb.files(path, "demo"))


def test_a_consumers_error_is_its_own(tmp_path: Path) -> None:
    """What goes wrong while the members are used is not taken for damage of the package."""
    _, path = layersamples.deb(tmp_path, "demo", *_MEMBERS)

    def consume() -> None:
        for _ in deb.files(path, "demo"):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        consume()
