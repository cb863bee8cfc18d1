"""Which archives are mirrors of Debian, by the sources of the real apt and the answers of a real server."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.lock import LockedFile
from nvllm.core.refusal import Refusal, Refused
from nvllm.sources import mirrors
from nvllm.sources.fetch import Answer
from nvllm.sources.mirrors import Mirror, Mirrors
from support.aptmirror import configure
from support.loopback import Page, Site, serving

MAIN = "http://mirror.test/debian/"
SECURITY = "http://mirror.test/debian-security/"
PLAIN = LockedFile("pool/main/a/a/a_1+b~1_amd64.deb", "0" * 64, 1, "debian")
FIXED = LockedFile("pool/updates/main/a/a/a_1_amd64.deb", "0" * 64, 1, "debian")
MOMENT = "20260102T030405Z"
SNAPSHOTS = "http://snapshots.test"
BOTH = Mirrors("bookworm", (Mirror(MAIN, "bookworm", "main"), Mirror(SECURITY, "bookworm-security", "main")))


def says(site: Site, directory: str, release: str, origin: str = "Debian") -> str:
    """Let SITE have an archive with RELEASE in DIRECTORY, and return its URL."""
    text = f"Origin: {origin}\nSuite: {release}\nSHA256:\n" + " 0 0 some/file\n" * 100_000
    site.pages[f"/{directory}/dists/{release}/Release"] = Page(text.encode())
    return f"{site.url}/{directory}/"


def found(env: dict[str, str] | None = None) -> Mirrors:
    with httpx2.Client(timeout=5) as client:
        return mirrors.find("bookworm", env or {}, client)


def test_archives_of_debian_are_mirrors_and_no_others(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, security = says(site, "debian", "bookworm"), says(site, "debian-security", "bookworm-security")
    third = says(site, "third", "bookworm", "Somebody")
    node = says(site, "node", "nodistro", "Debian")
    sources = {third: "bookworm", main: "bookworm", security: "bookworm-security", node: "nodistro"}
    lines = [f"deb {url} {release} main" for url, release in sources.items()]
    configure(tmp_path, monkeypatch, "\n".join(lines))
    expected = (Mirror(main, "bookworm", "main"), Mirror(security, "bookworm-security", "main"))
    assert found() == Mirrors("bookworm", expected)


def test_a_host_with_another_release_of_debian_has_the_suite_too(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, security = says(site, "debian", "bookworm"), says(site, "debian-security", "bookworm-security")
    configure(tmp_path, monkeypatch, f"deb {main} stable main\ndeb {security} stable-security main\n")
    assert [mirror.release for mirror in found().of("bookworm", "bookworm-security")] == [
        "bookworm",
        "bookworm-security",
    ]


def test_a_list_of_mirrors_stands_for_each_of_them(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    urls = [says(site, name, "bookworm") for name in ("one", "two")]
    (tmp_path / "some.list").write_text("".join(f"{url}\tpriority:{5 - n}\n" for n, url in enumerate(urls)))
    configure(tmp_path, monkeypatch, f"deb mirror+file:{tmp_path}/some.list bookworm main\n")
    assert [mirror.url for mirror in found().offered] == [urls[1], urls[0]]


def test_an_archive_on_this_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = tmp_path / "local/dists/bookworm/Release"
    release.parent.mkdir(parents=True)
    release.write_text("Origin: Debian\n")
    configure(tmp_path, monkeypatch, f"deb file:{tmp_path}/local bookworm main\n")
    assert [mirror.url for mirror in found().offered] == [f"file:{tmp_path}/local/"]


def test_an_archive_that_is_busy_for_a_moment_is_asked_again(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = says(site, "debian", "bookworm")
    site.pages["/debian/dists/bookworm/Release"].failures = 1
    configure(tmp_path, monkeypatch, f"deb {main} bookworm main\n")
    assert [mirror.url for mirror in found().offered] == [main]


def test_who_gives_no_answer_is_remembered_without_credentials(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as gone:
        away = gone.url
    says(site, "busy", "bookworm")
    site.pages["/busy/dists/bookworm/Release"].failures = 100
    lines = [f"deb {site.url}/busy bookworm main", f"deb {away.replace('//', '//user:secret@')}/debian bookworm main"]
    configure(tmp_path, monkeypatch, "\n".join([*lines, "deb cdrom:[Debian 12 _Bookworm_]/ bookworm main"]))
    answers = found().silent
    said = {answer.url: answer.problem.partition(":")[0] for answer in answers}
    cdrom = "cdrom://Debian 12 _Bookworm_/"  # as apt prints it
    assert said == {f"{site.url}/busy/": "status 503", f"{away}/debian/": "ConnectError", cdrom: "UnsupportedProtocol"}


@given(order=st.permutations([MAIN, SECURITY.rstrip("/")]))
def test_named_mirrors_win_and_nobody_is_asked(order: list[str]) -> None:
    assert set(found({mirrors.MIRROR_VARIABLE: " ".join(order)}).offered) == set(BOTH.offered)


def test_each_address_is_named_once_and_the_likely_one_first() -> None:
    twice = Mirrors("bookworm", (*BOTH.offered, BOTH.offered[0]))
    assert twice.locate(PLAIN) == tuple(url + "pool/main/a/a/a_1%2bb%7e1_amd64.deb" for url in (MAIN, SECURITY))
    assert twice.locate(FIXED) == (SECURITY + FIXED.path, MAIN + FIXED.path)


def answered(of: Mirrors, file: LockedFile, said: str, *, final: bool) -> list[Answer]:
    return [Answer(url, said, final) for url in of.locate(file)]


def refusal(of: Mirrors, file: LockedFile, answers: list[Answer], env: dict[str, str] | None = None) -> Refusal:
    return mirrors.not_offered(file, of, answers, MOMENT, env or {})


def test_a_superseded_version_names_all_who_were_asked_and_moves_on() -> None:
    answers = answered(BOTH, PLAIN, "status 404", final=True)
    found = refusal(BOTH, PLAIN, answers)
    assert (found.code, found.where) == ("NV206", "index debian: a_1+b~1_amd64.deb")
    assert found.found == f"{MAIN}: status 404; {SECURITY}: status 404"
    move_on = "the version is superseded, so lock a newer one: nvllm lock IMAGE --update debs"
    name_one = "; or name an archive that keeps old versions: export NVLLM_DEBIAN_SNAPSHOT=URL"
    assert found.cure == move_on + name_one
    assert mirrors.not_offered(PLAIN, BOTH, answers, None, {}).cure == move_on


def test_an_archive_that_was_asked_is_among_them() -> None:
    env = {mirrors.SNAPSHOT_VARIABLE: SNAPSHOTS}
    (url,) = mirrors.archived(PLAIN, BOTH, MOMENT, env)
    answers = [*answered(BOTH, PLAIN, "status 404", final=True), Answer(url, "status 404", final=True)]
    found = refusal(BOTH, PLAIN, answers, env)
    assert found.found.endswith(f"; {SNAPSHOTS}/archive/debian/{MOMENT}/: status 404")
    assert found.cure.endswith("nvllm lock IMAGE --update debs")


def test_a_mirror_that_gives_no_answer_may_have_it_later() -> None:
    found = refusal(BOTH, PLAIN, answered(BOTH, PLAIN, "ConnectError: refused", final=False))
    assert found.found == f"{MAIN}: ConnectError: refused; {SECURITY}: ConnectError: refused"
    assert found.cure.startswith("try again when all of them answer; if one never does, name one or more: export ")
    silent = Mirrors("bookworm", BOTH.offered, (Answer("http://away.test/", "ConnectTimeout: "),))
    found = refusal(silent, PLAIN, answered(silent, PLAIN, "status 404", final=True))
    assert found.found.endswith("; http://away.test/: ConnectTimeout: ")
    assert found.cure.startswith("try again")


def test_a_security_update_without_a_mirror_of_the_security_suite() -> None:
    main = Mirrors("bookworm", BOTH.offered[:1])
    found = refusal(main, FIXED, answered(main, FIXED, "status 404", final=True))
    assert found.found == f"{MAIN}: status 404; no configured mirror has the suite bookworm-security"
    assert found.cure.startswith("give apt a source with the suite bookworm-security, or name one or more: export ")


def test_a_security_mirror_that_is_silent_may_be_the_one() -> None:
    main = Mirrors("bookworm", BOTH.offered[:1], (Answer(SECURITY, "ConnectTimeout: "),))
    found = refusal(main, FIXED, answered(main, FIXED, "status 404", final=True))
    assert found.found == f"{MAIN}: status 404; {SECURITY}: ConnectTimeout: "
    assert found.cure.startswith("try again")


def test_a_suite_that_no_mirror_has_is_refused_without_credentials() -> None:
    main = Mirrors("bookworm", (Mirror("http://user:secret@mirror.test/debian/", "bookworm", "main"),))
    with pytest.raises(Refused) as caught:
        main.of("bookworm", "bookworm-security")
    (found,) = caught.value.refusals
    assert (found.code, found.expected) == ("NV206", "a Debian mirror with the suite bookworm-security")
    assert found.found == f"{MAIN}: bookworm alone"


def test_no_mirror_at_all() -> None:
    found = refusal(Mirrors("bookworm", ()), PLAIN, [])
    assert found.found == "apt is not installed, or its configuration has no such mirror"
    assert found.cure.startswith("name one or more: export NVLLM_DEBIAN_MIRROR=")


def test_an_archive_that_is_named_has_both_of_debians() -> None:
    env = {mirrors.SNAPSHOT_VARIABLE: f"{SNAPSHOTS}/"}
    base = f"{SNAPSHOTS}/archive"
    assert mirrors.archived(PLAIN, BOTH, MOMENT, env) == (
        f"{base}/debian/{MOMENT}/pool/main/a/a/a_1%2bb%7e1_amd64.deb",
    )
    assert mirrors.archived(FIXED, BOTH, MOMENT, env) == (f"{base}/debian-security/{MOMENT}/{FIXED.path}",)
    assert mirrors.archived(PLAIN, BOTH, MOMENT, {}) == ()


def test_an_archive_that_the_mirror_names_is_its_own(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, security = says(site, "debian", "bookworm"), says(site, "debian-security", "bookworm-security")
    page = site.pages["/debian/dists/bookworm/Release"]
    page.body = b"Snapshots: http://kept.test/of/@SNAPSHOTID@\n" + page.body
    configure(tmp_path, monkeypatch, f"deb {main} bookworm main\ndeb {security} bookworm-security main\n")
    urls = (f"http://kept.test/of/{MOMENT}/pool/main/a/a/a_1%2bb%7e1_amd64.deb",)
    assert mirrors.archived(PLAIN, found(), MOMENT, {}) == urls
    assert mirrors.archived(FIXED, found(), MOMENT, {}) == ()
