"""The sources of apt, read by the real apt, which has no lists and no network here."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.sources import aptsources
from support.aptmirror import configure

LINES = """
# deb http://commented.test/debian bookworm main
deb http://line.test/debian oldstable main contrib
deb http://line.test/debian oldstable-updates main
deb [arch=arm64,amd64 signed-by=/usr/share/keyrings/some.gpg] https://options.test/debian/ bookworm main
deb-src http://source.test/debian bookworm main
deb http://flat.test/ ./
deb http://contrib.test/debian bookworm contrib
"""
STANZAS = """
Types: deb deb-src
# a comment between fields
URIs: http://two.test/debian http://three.test/debian/
Suites: bookworm bookworm-updates
Components: contrib
 main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEY865UxYJKwYBBAHaRw8BAQdAd7Z0srwuhlB6JKFkcf4HU4SSS/xcRfwEQWzr
 -----END PGP PUBLIC KEY BLOCK-----

Enabled: no
Types: deb
URIs: http://disabled.test/debian
Suites: bookworm
Components: main

Types: deb
URIs: mirror+file:/etc/apt/mirrors/debian.list
Suites: bookworm
Components: main
"""


def test_every_form_of_source_is_read_without_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(tmp_path, monkeypatch, LINES, STANZAS)
    assert aptsources.archives() == (
        "http://line.test/debian/",
        "https://options.test/debian/",
        "http://two.test/debian/",
        "http://three.test/debian/",
        "mirror+file:/etc/apt/mirrors/debian.list/",
    )


def test_no_source_and_no_apt_are_no_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(tmp_path, monkeypatch, "")
    assert aptsources.archives() == ()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert aptsources.archives() == ()


def test_sources_that_apt_cannot_read_are_said_in_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(tmp_path, monkeypatch, "this is no source\n")
    with pytest.raises(Refused) as refused:
        aptsources.archives()
    (found,) = refused.value.refusals
    assert found.code == "NV206"
    assert "E: The list of sources could not be read" in found.found
    assert found.cure.endswith("apt-get indextargets")


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("mirror+file:/etc/apt/mirrors/debian.list/", "file:/etc/apt/mirrors/debian.list"),
        ("mirror+https://mirror.test/list/", "https://mirror.test/list"),
        ("mirror://mirror.test/list/", "http://mirror.test/list"),
        ("http://mirror.test/debian/", None),
    ],
)
def test_what_stands_for_a_list_of_mirrors(url: str, where: str | None) -> None:
    assert aptsources.mirror_list(url) == where


def test_a_list_of_mirrors_is_read_in_the_order_of_its_priorities() -> None:
    lines = [
        "# ours",
        "http://last.test/debian",
        "",
        "http://b.test/debian/\tpriority:2",
        "http://a.test/debian priority:1",
    ]
    urls = ("http://a.test/debian/", "http://b.test/debian/", "http://last.test/debian/")
    assert aptsources.listed("\n".join(lines)) == urls
