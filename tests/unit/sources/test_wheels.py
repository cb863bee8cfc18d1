"""The wheels of an image, resolved by the real uv over directories and indexes of small wheels."""

from __future__ import annotations

import hashlib
import os
import platform
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from nvllm.core.refusal import Refusal, Refused
from nvllm.sources import indexes
from nvllm.sources import wheels as wheelset
from nvllm.sources.indexes import Configuration
from nvllm.sources.wheels import Resolved, Target
from support import parsed
from support.loopback import Page, Site, serving
from support.wheels import make_wheel

HERE = Target(platform.python_version(), platform.machine(), 36)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is all that pip knows."""
    unconfigured(monkeypatch)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", os.fspath(tmp_path))
    return tmp_path


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server whose index is all that pip knows."""
    unconfigured(monkeypatch)
    with serving() as running:
        monkeypatch.setenv("PIP_INDEX_URL", f"{running.url}/simple")
        monkeypatch.setenv("PIP_RETRIES", "0")
        yield running


def unconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    proxies = ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"]
    for name in [name for name in os.environ if name.startswith("PIP_") or name in proxies]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


def test_the_environment_is_read_as_pip_reads_it(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(shelf, "app", "1.0")
    for name, value in {
        "PIP_EXTRA_INDEX_URL": "http://a.test/more http://a.test/none",
        "PIP_INDEX_URL": "http://user:secret@a.test/simple",
        "PIP_PROXY": "127.0.0.1:8000",
        "PIP_RETRIES": "0",
        "PIP_TIMEOUT": "0.5",
        "PIP_TRUSTED_HOST": "a.test",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PIP_FIND_LINKS", f"{shelf} wheels gone file:///gone")
    asked = parsed.ask_pip()
    assert asked == parsed.of_variables() == indexes.read_configuration()
    assert [wheel.version for wheel in wheelset.resolve(["app"], HERE, {}, {}, asked)] == ["1.0"]
    monkeypatch.delenv("PIP_NO_INDEX")
    assert parsed.ask_pip() == parsed.of_variables()


def resolve(*requirements: str, target: Target = HERE, kept: dict[str, str] | None = None) -> dict[str, str]:
    """Return the versions that were chosen, by name."""
    found = wheelset.resolve(requirements, target, kept or {}, {}, indexes.read_configuration())
    return {wheel.name: wheel.version for wheel in found}


def refused(*requirements: str, kept: dict[str, str] | None = None) -> Refusal:
    """Return why they could not be resolved."""
    with pytest.raises(Refused) as caught:
        resolve(*requirements, kept=kept)
    (found,) = caught.value.refusals
    assert found.code == "NV209"
    return found


def tagged(directory: Path, tag: str, version: str = "1.0", name: str = "app") -> Path:
    """Make a wheel whose file name says that it is for TAG."""
    made = make_wheel(directory, name, version)
    return made.rename(directory / f"{name}-{version}-{tag}.whl")


def test_the_newest_that_fit_come_with_their_hashes(shelf: Path) -> None:
    make_wheel(shelf, "Dep.B", "1.0")
    newest = make_wheel(shelf, "Dep.B", "1.1+cpu")
    make_wheel(shelf, "app-a", "2.0", ["dep.b>=1.0", "absent; python_version < '3'"])
    app, dep = wheelset.resolve(["app-a==2.0"], HERE, {}, {}, indexes.read_configuration())
    assert (app.name, app.version) == ("app-a", "2.0")
    assert (dep.name, dep.version, dep.filename) == ("dep-b", "1.1+cpu", newest.name)
    assert dep.sha256 == hashlib.sha256(newest.read_bytes()).hexdigest()
    assert unquote(dep.url) == f"file://{newest}"


def test_kept_versions_stay_and_bring_nothing_by_themselves(shelf: Path) -> None:
    for version in ("1.0", "1.1"):
        make_wheel(shelf, "dep", version)
    make_wheel(shelf, "app", "2.0", ["dep"])
    make_wheel(shelf, "unneeded", "1.0")
    found = wheelset.resolve(["app==2.0"], HERE, {"dep": "1.0", "unneeded": "1.0"}, {}, indexes.read_configuration())
    assert [(wheel.name, wheel.version) for wheel in found] == [("app", "2.0"), ("dep", "1.0")]


def test_nothing_is_installed_or_left(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(shelf, "app", "2.0")
    scratch = shelf / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", os.fspath(scratch))
    wheelset.resolve(["app==2.0"], HERE, {}, {}, indexes.read_configuration())
    assert list(scratch.iterdir()) == []


def test_what_cannot_be_kept_names_the_update(shelf: Path) -> None:
    make_wheel(shelf, "dep", "1.0")
    make_wheel(shelf, "dep", "2.0")
    make_wheel(shelf, "app", "2.0", ["dep>=2"])
    with pytest.raises(Refused) as refused:
        wheelset.resolve(["app==2.0"], HERE, {"dep": "1.0"}, {}, indexes.read_configuration())
    (refusal,) = refused.value.refusals
    assert refusal.cure.endswith("--update wheels")


def test_platform_tags_are_those_of_the_c_library_and_older() -> None:
    tags = wheelset.platform_tags(Target("3.11.2", "x86_64", 28))
    assert tags[0] == "manylinux_2_28_x86_64"
    assert {"manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"} <= set(tags)
    assert "manylinux_2_29_x86_64" not in tags
    assert len(tags) == len(set(tags))
    assert wheelset.platform_tags(Target("3.11.2", "aarch64", 5))[:1] == ["manylinux_2_5_aarch64"]


def test_a_wheel_for_a_newer_c_library_is_not_taken(shelf: Path) -> None:
    machine = platform.machine()
    for version, tag in (("1.0", f"manylinux_2_17_{machine}"), ("2.0", f"manylinux_2_40_{machine}")):
        wheel = make_wheel(shelf, "app", version)
        wheel.rename(shelf / f"app-{version}-py3-none-{tag}.whl")
    (app,) = wheelset.resolve(["app"], HERE, {}, {}, indexes.read_configuration())
    assert app.version == "1.0"


def test_markers_are_those_of_the_image_and_not_of_this_host(shelf: Path) -> None:
    for name in ("arm-only", "intel-only", "old-only", "new-only", "patched-only"):
        make_wheel(shelf, name, "1.0")
    needs = [
        "arm-only; platform_machine == 'aarch64'",
        "intel-only; platform_machine == 'x86_64'",
        "old-only; python_version < '3.12'",
        "new-only; python_version >= '3.12' and sys_platform == 'linux'",
        "patched-only; python_full_version >= '3.12.4'",
    ]
    make_wheel(shelf, "app", "2.0", needs)

    def names(target: Target) -> list[str]:
        return [wheel.name for wheel in wheelset.resolve(["app==2.0"], target, {}, {}, indexes.read_configuration())]

    assert names(Target("3.12.0", "aarch64", 36)) == ["app", "arm-only", "new-only"]
    assert names(Target("3.12.14", "x86_64", 36)) == ["app", "intel-only", "new-only", "patched-only"]
    assert names(Target("3.11.2", "x86_64", 36)) == ["app", "intel-only", "old-only"]


def test_a_wheel_for_another_python_or_machine_is_not_taken(shelf: Path) -> None:
    tagged(shelf, "cp311-cp311-manylinux_2_28_x86_64")
    tagged(shelf, "cp312-cp312-manylinux_2_28_x86_64", "2.0")
    tagged(shelf, "cp312-cp312-manylinux_2_28_aarch64", "3.0")
    assert resolve("app", target=Target("3.11.2", "x86_64", 36)) == {"app": "1.0"}
    assert resolve("app", target=Target("3.12.0", "x86_64", 36)) == {"app": "2.0"}
    assert resolve("app", target=Target("3.12.0", "aarch64", 36)) == {"app": "3.0"}


def test_of_the_wheels_of_a_version_the_best_is_taken(shelf: Path) -> None:
    """The order is pip's: by tag, and then by build number."""

    def chosen(target: Target) -> str:
        (wheel,) = wheelset.resolve(["app"], target, {}, {}, indexes.read_configuration())
        return wheel.filename.removeprefix("app-1.0-").removesuffix(".whl")

    target = Target("3.11.2", "x86_64", 36)
    for tag in (
        "py3-none-any",
        "1-py3-none-any",
        "10-py3-none-any",
        "2-py3-none-any",
        "cp311-cp311-linux_x86_64",
        "cp39-abi3-manylinux_2_34_x86_64",
        "cp311-cp311-manylinux2014_x86_64",
        "cp311-cp311-manylinux_2_28_x86_64",
    ):
        tagged(shelf, tag)
        if not tag.endswith("py3-none-any"):
            assert chosen(target) == ("cp311-cp311-linux_x86_64" if "abi3" in tag else tag)
    assert chosen(Target("3.12.0", "aarch64", 36)) == "10-py3-none-any"


def test_a_release_for_newer_pythons_only_is_not_taken(shelf: Path) -> None:
    make_wheel(shelf, "app", "1.0")
    make_wheel(shelf, "app", "2.0", python=">=3.11.3")
    assert resolve("app", target=Target("3.11.2", "x86_64", 36)) == {"app": "1.0"}
    assert resolve("app", target=Target("3.11.3", "x86_64", 36)) == {"app": "2.0"}


def test_a_release_for_older_pythons_only_is_taken(shelf: Path) -> None:
    """uv ignores upper bounds of Requires-Python, and says so in its documentation; pip takes 1.0 here."""
    make_wheel(shelf, "app", "1.0")
    make_wheel(shelf, "app", "2.0", python="<3.11")
    assert resolve("app", target=Target("3.11.2", "x86_64", 36)) == {"app": "2.0"}


def test_extras_bring_what_they_ask_for(shelf: Path) -> None:
    make_wheel(shelf, "app", "1.0", ["more; extra == 'all'", "other; extra == 'none'"], extras=["all", "none"])
    make_wheel(shelf, "more", "1.0")
    make_wheel(shelf, "top", "1.0", ["app[all]"])
    assert resolve("top") == {"app": "1.0", "more": "1.0", "top": "1.0"}
    assert resolve("app") == {"app": "1.0"}


def test_a_pre_release_is_taken_only_where_no_other_fits(shelf: Path) -> None:
    for version in ("1.0", "2.0rc1"):
        make_wheel(shelf, "dep", version)
    make_wheel(shelf, "early", "0.1b1")
    make_wheel(shelf, "app", "1.0", ["dep", "early"])
    make_wheel(shelf, "app", "2.0", ["dep==2.0rc1"])
    assert resolve("app==1.0") == {"app": "1.0", "dep": "1.0", "early": "0.1b1"}
    assert resolve("app==2.0") == {"app": "2.0", "dep": "2.0rc1"}
    assert resolve("app==1.0", kept={"dep": "2.0rc1"})["dep"] == "2.0rc1"


def test_a_build_label_counts_as_newer_and_can_be_asked_for(shelf: Path) -> None:
    for version in ("2.0", "2.0+cpu"):
        make_wheel(shelf, "torch", version)
    make_wheel(shelf, "app", "1.0", ["torch==2.0"])
    assert resolve("app")["torch"] == "2.0+cpu"
    assert resolve("app", "torch==2.0+cpu")["torch"] == "2.0+cpu"
    assert resolve("app", kept={"torch": "2.0+cpu"})["torch"] == "2.0+cpu"


def test_a_source_archive_is_never_built(shelf: Path) -> None:
    (shelf / "app-2.0.tar.gz").write_bytes(b"no archive at all")
    make_wheel(shelf, "app", "1.0")
    assert resolve("app") == {"app": "1.0"}


def publish(site: Site, *wheels: Path, at: str = "/simple", yanked: str = "", fragment: str = "#sha256={}") -> None:
    """Offer WHEELS, all of one project, at the index AT; of each the page says FRAGMENT with its sha256."""
    links = ""
    for wheel in wheels:
        data = wheel.read_bytes()
        site.pages[f"{at}/files/{wheel.name}"] = Page(data)
        attribute = " data-yanked=bad" if yanked and yanked in wheel.name else ""
        hashed = fragment.format(hashlib.sha256(data).hexdigest())
        links += f'<a href="{at}/files/{wheel.name}{hashed}"{attribute}>{wheel.name}</a>'
    project = wheels[0].name.split("-")[0]
    site.pages[f"{at}/{project}/"] = Page(f"<!DOCTYPE html>{links}".encode(), content_type="text/html")


def test_a_yanked_release_is_taken_only_if_it_is_named(site: Site, tmp_path: Path) -> None:
    publish(site, make_wheel(tmp_path, "app", "1.0"), make_wheel(tmp_path, "app", "2.0"), yanked="2.0")
    assert resolve("app") == {"app": "1.0"}
    assert resolve("app==2.0") == {"app": "2.0"}
    publish(site, make_wheel(tmp_path, "top", "1.0", ["app==2.0"]))
    assert "app==2.0 was yanked (reason: bad)" in refused("top").found
    assert resolve("top", kept={"app": "2.0"}) == {"app": "2.0", "top": "1.0"}


def test_the_best_version_of_all_indexes_is_taken(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{site.url}/more {site.url}/none")
    old, new = make_wheel(tmp_path, "app", "1.0"), make_wheel(tmp_path, "app", "2.0")
    publish(site, old)
    publish(site, new, at="/more")
    (found,) = wheelset.resolve(["app"], HERE, {}, {}, indexes.read_configuration())
    assert found == Resolved(
        "app", "2.0", new.name, hashlib.sha256(new.read_bytes()).hexdigest(), f"{site.url}/more/files/{new.name}"
    )


def test_a_wheel_for_this_machine_is_found_at_any_index(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{site.url}/more")
    publish(site, tagged(tmp_path, "py3-none-manylinux_2_17_aarch64"))
    publish(site, tagged(tmp_path, "py3-none-manylinux_2_17_x86_64"), at="/more")
    for machine in ("aarch64", "x86_64"):
        (found,) = wheelset.resolve(["app"], Target("3.11.2", machine, 36), {}, {}, indexes.read_configuration())
        assert found.filename.endswith(f"{machine}.whl")


def test_a_file_without_any_hash_is_locked_by_what_was_downloaded(site: Site, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "app", "1.0")
    publish(site, wheel, fragment="")
    (found,) = wheelset.resolve(["app"], HERE, {}, {}, indexes.read_configuration())
    assert found.sha256 == hashlib.sha256(wheel.read_bytes()).hexdigest()


def test_a_file_with_another_hash_only_is_refused(site: Site, tmp_path: Path) -> None:
    publish(site, make_wheel(tmp_path, "app", "1.0"), fragment="#md5=0123456789abcdef0123456789abcdef")
    found = refused("app")
    assert (found.where, found.expected) == ("index: app-1.0-py3-none-any.whl", "a sha256 for the file")


def test_an_index_that_fails_is_not_an_empty_one(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{site.url}/more")
    publish(site, make_wheel(tmp_path, "app", "1.0"))
    publish(site, make_wheel(tmp_path, "app", "2.0"), at="/more")
    site.pages["/more/app/"].failures = 1
    assert "503 Service Unavailable" in refused("app").found
    assert resolve("app") == {"app": "2.0"}


def test_an_index_that_does_not_answer_in_time(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_TIMEOUT", "0.5")
    publish(site, make_wheel(tmp_path, "app", "1.0"))
    site.pages["/simple/app/"].pace = 3
    assert "/simple/app/" in refused("app").found


def test_credentials_in_a_url_are_used_and_not_shown(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"{site.url}/simple".replace("://", "://user:secret@"))
    publish(site, make_wheel(tmp_path, "app", "1.0"))
    site.credentials = "user:secret"
    caplog.set_level("DEBUG")
    assert resolve("app") == {"app": "1.0"}
    site.credentials = "user:other"
    found = refused("app")  # uv, as pip, looks no further at an index that does not know the user
    assert "app was not found in the package registry" in found.found
    assert "secret" not in found.found + caplog.text


def test_credentials_of_netrc_are_used(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(site, make_wheel(tmp_path, "app", "1.0"))
    site.credentials = "user:secret"
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login user password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert resolve("app") == {"app": "1.0"}


def test_a_proxy_of_pip_is_used(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_PROXY", site.url.removeprefix("http://"))
    monkeypatch.setenv("PIP_INDEX_URL", "http://index.test/simple")
    monkeypatch.setenv("PIP_TRUSTED_HOST", "index.test")
    publish(site, make_wheel(tmp_path, "app", "1.0"), at="http://index.test/simple")
    assert resolve("app") == {"app": "1.0"}


def test_an_index_without_encryption_is_asked_only_if_its_host_is_trusted(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_PROXY", site.url)
    monkeypatch.setenv("PIP_INDEX_URL", "http://index.test/simple")
    publish(site, make_wheel(tmp_path, "app", "1.0"), at="http://index.test/simple")
    assert "app was not found" in refused("app").found


def test_what_uv_is_configured_with_does_not_count(
    shelf: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    make_wheel(shelf, "app", "1.0")
    make_wheel(other, "app", "2.0")
    (other / "uv").mkdir()
    text = f'find-links = ["{other}"]\n'
    (other / "uv/uv.toml").write_text(text)
    (other / "pyproject.toml").write_text(f"[tool.uv]\n{text}")
    monkeypatch.setenv("XDG_CONFIG_HOME", os.fspath(other))
    monkeypatch.setenv("UV_FIND_LINKS", os.fspath(other))
    monkeypatch.chdir(other)
    assert resolve("app") == {"app": "1.0"}


def test_directories_are_found_from_here_and_those_that_are_gone_are_ignored(
    shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shelf / "some wheels").mkdir()
    make_wheel(shelf / "some wheels", "app", "1.0")
    (shelf / "some wheels").rename(shelf / "wheels")
    monkeypatch.setenv("PIP_FIND_LINKS", "wheels gone file:///gone")
    monkeypatch.chdir(shelf)
    assert resolve("app") == {"app": "1.0"}


def test_uv_is_given_what_pip_is_configured_with() -> None:
    urls = ("https://main.test/simple", "http://plain.test/simple", "http://inside.test:8080/simple")
    asked = Configuration(urls, ("https://links.test/a",), ("inside.test:8080",), "/ca.pem", "http://proxy.test:3128")
    assert tomllib.loads(wheelset.uv_settings(asked)) == {
        "system-certs": False,
        "index-strategy": "unsafe-best-match",
        "prerelease": "if-necessary",
        "no-build": True,
        "no-index": False,
        "find-links": ["https://links.test/a"],
        "allow-insecure-host": ["inside.test:8080"],
        "keyring-provider": "disabled",
        "http-proxy": "http://proxy.test:3128",
        "https-proxy": "http://proxy.test:3128",
        "index": [{"url": urls[0], "default": False}, {"url": urls[2], "default": True}],
    }
    alone = tomllib.loads(wheelset.uv_settings(Configuration((), (), (), None, keyring=True)))
    assert (alone["system-certs"], alone["no-index"], alone["keyring-provider"]) == (True, True, "subprocess")
    assert not {"index", "http-proxy"} & alone.keys()


@pytest.mark.parametrize(("glibc", "known"), [(17, 17), (27, 17), (28, 28), (30, 28), (31, 31), (36, 36), (43, 40)])
def test_uv_resolves_for_the_newest_c_library_that_it_knows(glibc: int, known: int) -> None:
    target = Target("3.12.0", "aarch64", glibc)
    assert wheelset.uv_platform(target) == f"aarch64-manylinux_2_{known}"


def test_a_c_library_older_than_uv_knows_is_refused(shelf: Path) -> None:
    make_wheel(shelf, "app", "1.0")
    with pytest.raises(Refused) as caught:
        resolve("app", target=Target("3.11.2", "x86_64", 12))
    assert "x86_64-manylinux_2_12" in caught.value.refusals[0].found
