"""NV206, not at the index: no configured index offers a locked file any more."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import httpx2
import pytest

from nvllm.core.lock import LockedFile
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refusal, Refused
from nvllm.sources import fetch as fetching
from nvllm.sources import mirrors
from nvllm.sources.fetch import Answer, fetch
from nvllm.sources.indexes import Configuration, Indexes, Sources
from nvllm.sources.store import Store
from support.aptmirror import configure
from support.loopback import Page, Site, serving

TORCH = LockedFile("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", "0" * 64, 10, "pytorch-cpu")
NUMPY = LockedFile("numpy-2.3.5-cp311-cp311-manylinux_2_28_x86_64.whl", "0" * 64, 10, "pypi")
DEB = LockedFile("pool/main/b/bash/bash_5.2_amd64.deb", hashlib.sha256(b"bash").hexdigest(), 4, "debian")


class At:
    """A source that knows one address."""

    def __init__(self, url: str) -> None:
        self.url = url

    def locate(self, file: LockedFile) -> Sequence[str]:
        return [self.url]

    def archived(self, file: LockedFile) -> Sequence[str]:
        return []

    def client(self) -> httpx2.Client:
        return httpx2.Client(timeout=5)

    def not_offered(self, file: LockedFile, answers: Sequence[Answer]) -> Refusal:
        return fetching.not_offered(file, answers)


def only(refused: pytest.ExceptionInfo[Refused]) -> Refusal:
    (found,) = refused.value.refusals
    assert found.code == "NV206"
    assert refused.value.exit_code == 1
    return found


def test_a_wheel_that_pip_must_be_given_an_index_for(site: Site) -> None:
    with pytest.raises(Refused) as refused:
        Indexes(Configuration((f"{site.url}/simple",), (), (), None)).locate(TORCH)
    found = only(refused)
    assert found.where == f"index pytorch-cpu: {TORCH.path}"
    assert "default index does not carry this wheel" in found.found
    assert "the PyTorch CPU wheel index" in found.cure
    assert "pip config set global.extra-index-url" in found.cure


def test_a_wheel_that_was_deleted(site: Site) -> None:
    url = site.index("numpy", {"numpy-2.3.6-cp311-cp311-manylinux_2_28_x86_64.whl": b"newer"})
    with pytest.raises(Refused) as refused:
        Indexes(Configuration((url,), (), (), None)).locate(NUMPY)
    found = only(refused)
    assert found.where == f"index pypi: {NUMPY.path}"
    assert found.expected == f"a file with sha256 {NUMPY.sha256}"
    assert "pip config list" in found.cure


def test_a_package_that_left_all_mirrors(site: Site, tmp_path: Path) -> None:
    named = {mirrors.MIRROR_VARIABLE: f"{site.url}/one {site.url}/two"}
    with pytest.raises(Refused) as refused:
        fetch([DEB], Store(tmp_path), Sources("bookworm", named), Silent(), offline=False)
    found = only(refused)
    assert found.where == "index debian: bash_5.2_amd64.deb"
    assert found.found == f"{site.url}/one/: status 404; {site.url}/two/: status 404"
    assert found.cure.endswith("nvllm lock IMAGE --update debs")


def test_a_mirror_that_does_not_answer_hides_no_other(site: Site, tmp_path: Path) -> None:
    with serving() as gone:
        named = {mirrors.MIRROR_VARIABLE: f"{gone.url}/one {site.url}/two"}
    site.pages[f"/two/{DEB.path}"] = Page(b"bash")
    fetch([DEB], Store(tmp_path), Sources("bookworm", named), Silent(), offline=False)
    assert Store(tmp_path).has(DEB.sha256)


def test_a_server_that_is_always_busy(site: Site, tmp_path: Path) -> None:
    site.pages["/bash"] = Page(b"bash", failures=100)
    with pytest.raises(Refused) as refused:
        fetch([DEB], Store(tmp_path), At(f"{site.url}/bash"), Silent(), offline=False)
    assert only(refused).found == "status 503"
    assert site.pages["/bash"].failures == 97


def test_nobody_listens(tmp_path: Path, site: Site) -> None:
    with serving() as gone:
        url = gone.url
    with pytest.raises(Refused) as refused:
        fetch([DEB], Store(tmp_path), At(f"{url}/bash"), Silent(), offline=False)
    assert only(refused).found.startswith("ConnectError")


def test_no_secret_of_an_index_url_is_shown(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    address = site.url.replace("://", "://user:secret@")
    site.pages["/simple/numpy/"] = Page(b"", failures=100)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"{address}/simple")
    with pytest.raises(Refused) as refused:
        fetch([NUMPY], Store(tmp_path), Sources(None, {}), Silent(), offline=False)
    assert "secret" not in str(refused.value)
    assert only(refused).found == "status 503"


def test_a_host_that_has_no_debian_mirror(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both a host whose apt knows another distribution only and one without apt."""
    configure(tmp_path, monkeypatch, f"deb {site.url}/ubuntu jammy main\n")
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            Sources("bookworm", {}).mirrors().of("bookworm")
        found = only(refused)
        assert (found.where, found.expected) == ("index debian", "a Debian mirror with the suite bookworm")
        assert found.found == "apt is not installed, or its configuration has no such mirror"
        assert found.cure.startswith("name one or more: export NVLLM_DEBIAN_MIRROR=")
        monkeypatch.setenv("PATH", os.fspath(tmp_path))
