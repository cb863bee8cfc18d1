"""A small Debian mirror on a loopback site, for the real apt, and sources for an apt that has never fetched a list."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from nvllm.sources.mirrors import Mirror
from support.loopback import Page, Site


def publish(
    site: Site, suite: str, packages: Mapping[str, tuple[str, str]], date: str = "Sat, 01 Nov 2025 00:00:00 UTC"
) -> tuple[Mirror, ...]:
    """Publish PACKAGES (name to version and Depends) as SUITE of SITE, in the place of what was there, on DATE.

    Returns the mirror. Only the index is real: the packages themselves are a few bytes each.
    """
    paragraphs = []
    for name, (version, depends) in packages.items():
        body = f"{name} {version}".encode()
        path = f"pool/main/{name[0]}/{name}/{name}_{version.partition(':')[2] or version}_amd64.deb"
        site.pages[f"/debian/{path}"] = Page(body)
        fields = {
            "Package": name,
            "Version": version,
            "Architecture": "amd64",
            "Maintainer": "Nobody <nobody@example.test>",
            "Depends": depends,
            "Filename": path,
            "Size": str(len(body)),
            "SHA256": hashlib.sha256(body).hexdigest(),
            "Description": "a package for tests",
        }
        paragraphs.append("".join(f"{key}: {value}\n" for key, value in fields.items() if value))
    index = "\n".join(paragraphs).encode()
    inside = "main/binary-amd64/Packages"
    release = (
        f"Origin: Debian\nSuite: {suite}\nCodename: {suite}\nArchitectures: amd64\nComponents: main\n"
        f"Date: {date}\nSHA256:\n {hashlib.sha256(index).hexdigest()} {len(index)} {inside}\n"
    )
    site.pages[f"/debian/dists/{suite}/{inside}"] = Page(index)
    site.pages[f"/debian/dists/{suite}/Release"] = Page(release.encode())
    return (Mirror(f"{site.url}/debian/", suite, "main"),)


def trust(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let apt take the unsigned mirror: nobody but Debian can sign for Debian's keyring. No proxy is asked."""
    monkeypatch.setattr(
        Mirror, "line", property(lambda mirror: f"deb [trusted=yes] {mirror.url} {mirror.release} main")
    )
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)


def configure(directory: Path, monkeypatch: pytest.MonkeyPatch, lines: str, stanzas: str = "") -> None:
    """Give apt the sources LINES (of one line each) and STANZAS (deb822), and lists that were never fetched."""
    for name in ("etc/sources.list.d", "etc/apt.conf.d", "etc/preferences.d", "etc/trusted.gpg.d", "lists/partial"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / "etc/sources.list").write_text(lines)
    (directory / "etc/sources.list.d/some.sources").write_text(stanzas)
    (directory / "apt.conf").write_text(f'Dir::Etc "{directory}/etc";\nDir::State::Lists "{directory}/lists";\n')
    monkeypatch.setenv("APT_CONFIG", str(directory / "apt.conf"))


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirrors' lists are taken without signatures: see `trust`."""
    trust(monkeypatch)
