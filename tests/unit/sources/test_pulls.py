"""The text of a pull request: from a file, and over HTTP from a server on the loopback in the place of GitHub."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from nvllm.core import reading
from nvllm.core.refusal import Refused
from nvllm.sources import pulls
from support.loopback import Page, Site

PATH = "/vllm-project/vllm/pull/12345.patch"


def text(where: str, *, offline: bool = False) -> bytes:
    return pulls.text(where, "--from-pr", httpx2.Client, offline=offline)


def test_a_mirror_takes_the_place_of_github() -> None:
    assert pulls.url("vllm-project/vllm#12345", {}) == f"https://github.com{PATH}"
    assert pulls.url("vllm-project/vllm#12345", {"NVLLM_GITHUB_MIRROR": "http://here/m/"}) == f"http://here/m{PATH}"


def test_a_url_and_a_file_give_their_bytes(site: Site, tmp_path: Path) -> None:
    site.pages[PATH] = Page(b"the text\n")
    assert text(f"{site.url}{PATH}") == b"the text\n"
    (tmp_path / "12345.patch").write_bytes(b"in a file\n")
    assert text(str(tmp_path / "12345.patch"), offline=True) == b"in a file\n"


def test_what_is_not_given_is_refused(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PATCH", 100)
    site.pages["/large.patch"] = Page(b"x" * 101)
    url = site.url
    for where, offline, code, found in (
        (f"{url}{PATH}", False, "NV209", "status 404"),
        (f"{url}/large.patch", False, "NV209", "more than 100 bytes"),
        (f"{url}{PATH}", True, "NV209", "--offline"),
        ("http://127.0.0.1:9/1.patch", False, "NV209", "ConnectError"),
        ("gopher://here/1.patch", False, "NV209", "UnsupportedProtocol"),
        ("http://[here/1.patch", False, "NV108", "Invalid"),
        (str(tmp_path / "1.patch"), False, "NV109", ""),
    ):
        with pytest.raises(Refused) as refused:
            text(where, offline=offline)
        (refusal,) = refused.value.refusals
        assert (refusal.code, found in refusal.found) == (code, True), (where, refusal)


def test_no_message_has_the_credentials_of_a_url() -> None:
    with pytest.raises(Refused) as refused:
        text("https://me:secret@here/1.patch?token=secret", offline=True)
    assert "secret" not in str(refused.value.refusals)
