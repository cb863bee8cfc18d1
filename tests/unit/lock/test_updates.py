"""What a reminder of security updates says, with the real apt against a small mirror on loopback."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nvllm.core.lock import Lock, LockedDebianBase, LockedRegistryBase
from nvllm.lock import updates
from nvllm.sources import debian, mirrors
from nvllm.sources.debian import Update
from support import locks
from support.aptmirror import publish
from support.loopback import Site

CHOOSE = "write `security: true` below `base:` in images/demo.yaml, and nvllm lock demo --update debs"


pytestmark = pytest.mark.usefixtures("trusted")


def world(site: Site, fixed: str) -> tuple[Lock, dict[str, str]]:
    """Return a lock of packages of SITE, and how to reach it: it has the version FIXED of one of them."""
    offered = publish(site, "bookworm", {"openssl": ("3.0-1", ""), "bash": ("5.2-1", "")})
    chosen = debian.resolve("bookworm", ["openssl", "bash"], "amd64", {}, offered)
    publish(site, "bookworm-security", {"openssl": (fixed, "")})
    for path in [path for path in site.pages if "bookworm-security" in path]:
        site.pages[path.replace("/debian/", "/debian-security/")] = site.pages.pop(path)
    base = LockedDebianBase("debian", "bookworm", "3.11", chosen.packages, snapshot=chosen.snapshot)
    env = {mirrors.MIRROR_VARIABLE: f"{site.url}/debian {site.url}/debian-security"}
    return replace(locks.GOOD, base=base), env


def test_what_is_newer_is_named_with_both_versions_and_how_to_take_it(site: Site) -> None:
    lock, env = world(site, "3.0-1+deb12u1")
    found = updates.remind(lock, env, offline=False)
    assert found is not None
    assert (found.newer, found.unknown) == ((Update("openssl", "3.0-1", "3.0-1+deb12u1"),), None)
    assert list(found.words) == [
        f"security updates: 1 package has a newer version; to take it, {CHOOSE}",
        "  openssl 3.0-1 -> 3.0-1+deb12u1",
    ]
    assert found.data == {
        "newer": [{"name": "openssl", "locked": "3.0-1", "newer": "3.0-1+deb12u1"}],
        "unknown": None,
    }


def test_a_lock_that_has_them_all_is_said_to(site: Site) -> None:
    found = updates.remind(*world(site, "3.0-1"), offline=False)
    assert found is not None
    assert list(found.words) == ["security updates: none missing"]


def test_a_lock_that_chose_them_moves_on_by_itself(site: Site) -> None:
    lock, env = world(site, "3.1-1")
    assert isinstance(lock.base, LockedDebianBase)
    chosen = replace(lock, base=replace(lock.base, security=True), platform="linux/amd64")
    found = updates.remind(chosen, env, offline=False)
    assert found is not None
    assert found.cure == "nvllm lock demo --update debs"


def test_who_cannot_be_asked_is_said_and_refuses_nothing(site: Site) -> None:
    lock, env = world(site, "3.1-1")
    found = updates.remind(lock, env, offline=True)
    assert found is not None
    assert list(found.words) == ["security updates: unknown: --offline"]
    main = {mirrors.MIRROR_VARIABLE: f"{site.url}/debian"}
    found = updates.remind(lock, main, offline=False)
    assert found is not None
    assert found.unknown == f"index debian: {site.url}/debian/: bookworm alone"
    site.pages.clear()
    found = updates.remind(lock, env, offline=False)
    assert found is not None
    assert str(found.unknown).startswith("apt-get, suite bookworm: ")
    assert "404" in str(found.unknown)


def test_an_image_of_a_registry_has_none() -> None:
    base = LockedRegistryBase("registry", "3.12", f"example.test/cuda@sha256:{'b' * 64}", "/usr/local/bin/python3.12")
    assert updates.remind(replace(locks.GOOD, base=base), {}, offline=False) is None
