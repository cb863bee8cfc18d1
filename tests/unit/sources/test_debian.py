"""Debian packages: the real apt against a small mirror on loopback."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from nvllm.core.lock import LockedDeb, LockedFile
from nvllm.core.refusal import Refused
from nvllm.sources import debian
from nvllm.sources.debian import Update
from nvllm.sources.mirrors import Mirrors
from support.aptmirror import publish
from support.loopback import Site

pytestmark = pytest.mark.usefixtures("trusted")


def test_dependencies_come_with_size_hash_and_pool_path(site: Site) -> None:
    offered = publish(site, "bookworm", {"a": ("1.0-1+b2", "b"), "b": ("1:2.0~rc1-1", ""), "c": ("3", "")})
    body = b"b 1:2.0~rc1-1"
    assert debian.resolve("bookworm", ["a"], "amd64", {}, offered).packages[1] == LockedDeb(
        "b",
        "1:2.0~rc1-1",
        "amd64",
        LockedFile("pool/main/b/b/b_2.0~rc1-1_amd64.deb", hashlib.sha256(body).hexdigest(), len(body), "debian"),
    )
    names = [deb.name for deb in debian.resolve("bookworm", ["c", "a"], "amd64", {}, offered).packages]
    assert names == ["a", "b", "c"]


def test_what_is_located_is_what_the_mirror_serves(site: Site) -> None:
    offered = publish(site, "bookworm", {"a": ("1.0~rc1-1+b2", "")})
    (deb,) = debian.resolve("bookworm", ["a"], "amd64", {}, offered).packages
    (url,) = Mirrors("bookworm", offered).locate(deb.file)
    assert url.endswith("/debian/pool/main/a/a/a_1.0%7erc1-1%2bb2_amd64.deb")


def test_a_kept_version_stays_while_a_mirror_has_it(site: Site) -> None:
    old = publish(site, "bookworm", {"a": ("1.0", "")})
    new = publish(site, "bookworm-updates", {"a": ("2.0", "")})
    assert debian.resolve("bookworm", ["a"], "amd64", {}, old + new).packages[0].version == "2.0"
    assert debian.resolve("bookworm", ["a"], "amd64", {"a": "1.0"}, old + new).packages[0].version == "1.0"
    assert debian.resolve("bookworm", ["a"], "amd64", {"a": "0.5"}, old + new).packages[0].version == "2.0"


def test_an_apt_config_of_the_user_has_no_say(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offered = publish(site, "bookworm", {"a": ("1", ""), "b": ("1", "")})
    witness = tmp_path / "witness"
    host = tmp_path / "host.conf"
    host.write_text(f'APT::Update::Pre-Invoke {{ "touch {witness}"; }};\nAPT::Architecture "riscv64";\n')
    monkeypatch.setenv("APT_CONFIG", str(host))
    assert [deb.architecture for deb in debian.resolve("bookworm", ["a"], "amd64", {}, offered).packages] == ["amd64"]
    assert not witness.exists()


GOOD = "Package: a\nVersion: 1\nArchitecture: amd64\nFilename: pool/a.deb\nSize: 1\nSHA256: " + 64 * "0"


@pytest.mark.parametrize(
    ("listed", "shown"),
    [
        ("'http://x/a' nothing 1", GOOD),
        ("'http://x/a' a_1_amd64.deb 1", ""),
        ("'http://x/a' a_1_amd64.deb 1", GOOD.replace("Version: 1", "Version: 2")),
        ("'http://x/a' a_1_amd64.deb 1", GOOD.replace("Size: 1", "Size: one")),
        ("'http://x/a' a_1_amd64.deb 1", GOOD.replace("SHA256: 0", "SHA256: ../0")),
        ("'http://x/a' a_1_amd64.deb 1", GOOD.replace("Filename", "Name")),
    ],
)
def test_an_apt_that_answers_in_another_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str, shown: str
) -> None:
    """Found by `make fuzz`: programs of these names that print anything."""
    (tmp_path / "shown").write_text(shown)
    (tmp_path / "listed").write_text(listed + "\n")
    for name, file in (("apt-get", "listed"), ("apt-cache", "shown"), ("apt-config", "none")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\nexec cat {tmp_path}/{file} 2>/dev/null\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(Refused) as refused:
        debian.resolve("bookworm", ["a"], "amd64", {}, ())
    (found,) = refused.value.refusals
    assert (found.code, found.where) == ("NV209", "apt-cache, suite bookworm")
    assert found.found.startswith("an answer of another form: ")


def test_nothing_stays_behind(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", os.fspath(tmp_path))
    debian.resolve("bookworm", ["a"], "amd64", {}, publish(site, "bookworm", {"a": ("1", "")}))
    assert os.listdir(tmp_path) == []


def test_the_snapshot_is_a_day_after_the_last_release_that_was_asked(site: Site) -> None:
    offered = publish(site, "bookworm", {"a": ("1", "")})
    newer = publish(site, "bookworm-security", {"b": ("1", "")}, date="Sun, 02 Nov 2025 01:02:03 UTC")
    assert debian.resolve("bookworm", ["a"], "amd64", {}, offered).snapshot == "20251102T000000Z"
    assert debian.resolve("bookworm", ["a"], "amd64", {}, (*offered, *newer)).snapshot == "20251103T010203Z"


def test_updates_are_what_is_newer_by_debians_order_of_versions(site: Site) -> None:
    packages = {"a": ("1.9-1", "gone"), "b": ("2.0~rc1-1", ""), "c": ("1:1-1", ""), "d": ("5-1+deb12u2", "")}
    locked = debian.resolve("bookworm", list(packages)[1:], "amd64", {}, publish(site, "bookworm", packages)).packages
    fixed = publish(site, "bookworm-security", {"a": ("3", ""), "b": ("2.0-1", ""), "c": ("9-1", ""), "e": ("1", "")})
    assert debian.updates("bookworm", locked, "amd64", fixed) == (Update("b", "2.0~rc1-1", "2.0-1"),)
