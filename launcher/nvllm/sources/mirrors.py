"""Debian mirrors: which ones have the suite of an image, and where they have a file.

Mirrors are those in NVLLM_DEBIAN_MIRROR, or else the archives of the host's apt. Each is asked for the Release file of
the image's suite. That shows whether it is an archive of Debian, works on hosts with another release of Debian, and
does not depend on aliases such as ``stable`` or on third parties' names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx2

from nvllm.core import reading
from nvllm.core.lock import LockedFile
from nvllm.core.refusal import Refusal, refuse
from nvllm.sources import aptsources, fetch
from nvllm.sources.fetch import Answer, public_url

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MIRROR_VARIABLE = "NVLLM_DEBIAN_MIRROR"
SNAPSHOT_VARIABLE = "NVLLM_DEBIAN_SNAPSHOT"

_NAME_ONE = f"name one or more: export {MIRROR_VARIABLE}='URL-OF-DEBIAN URL-OF-DEBIAN-SECURITY'"
_SNAPSHOT = "@SNAPSHOTID@"
"""The placeholder for the time in the field `Snapshots` of a Release file."""
_NEWER = "nvllm lock IMAGE --update debs"
_TIMEOUT = 10.0
_AT_ONCE = 8
"""Seconds, and mirrors asked at once. A mirror that needs longer for its first bytes is not one to download from."""
_HEAD = 4096
"""Bytes of a Release file that are read: its fields come first, followed by the hashes of hundreds of files."""
_OK, _SERVER_ERROR = 200, 500


@dataclass(frozen=True, slots=True)
class Mirror:
    """One repository: its base URL (with a slash at the end), release and component."""

    url: str
    release: str
    component: str
    snapshots: str | None = None
    """The URL of its snapshots, if its Release file names one."""

    @property
    def line(self) -> str:
        return f"deb [signed-by={KEYRING}] {self.url} {self.release} {self.component}"

    @property
    def security(self) -> bool:
        return self.release.endswith("-security")


@dataclass(frozen=True, slots=True)
class Mirrors:
    """The mirrors OFFERED for SUITE and its security updates, and the archives that gave no answer (SILENT)."""

    suite: str
    offered: tuple[Mirror, ...]
    silent: tuple[Answer, ...] = ()

    def of(self, *releases: str) -> tuple[Mirror, ...]:
        """Return the mirrors of RELEASES. Raises Refused NV206 if one of them has none."""
        lacking = [release for release in releases if all(mirror.release != release for mirror in self.offered)]
        if lacking:
            expected = f"a Debian mirror with the suite {lacking[0]}"
            raise refuse("NV206", "index debian", expected, self.none(), _NAME_ONE)
        return tuple(mirror for mirror in self.offered if mirror.release in releases)

    def locate(self, file: LockedFile) -> tuple[str, ...]:
        """Return the URLs at which a mirror may have FILE, the most likely first."""
        likely = sorted(self.offered, key=lambda mirror: mirror.security != _is_security(file))
        return tuple(dict.fromkeys(mirror.url + _quoted(file.path) for mirror in likely))

    def none(self) -> str:
        """Return why there is no mirror of a suite, as text."""
        problems = [f"{public_url(mirror.url)}: {mirror.release} alone" for mirror in self.offered]
        problems += [f"{answer.url}: {answer.problem}" for answer in self.silent]
        return "; ".join(problems) or "apt is not installed, or its configuration has no such mirror"


def archived(file: LockedFile, mirrors: Mirrors, snapshot: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the URLs at which a snapshot archive may have FILE at the time SNAPSHOT.

    ENV names the archive, which must have the paths of Debian's; without it, those in the Release files of MIRRORS.
    """
    security = _is_security(file)
    archive = "debian-security" if security else "debian"
    named = [
        f"{url.rstrip('/')}/archive/{archive}/{_SNAPSHOT}"
        for url in _urls(env.get(SNAPSHOT_VARIABLE, ""), SNAPSHOT_VARIABLE)
    ]
    offered = [mirror.snapshots for mirror in mirrors.offered if mirror.snapshots and mirror.security == security]
    urls = (base.replace(_SNAPSHOT, snapshot).rstrip("/") for base in named or offered)
    return tuple(dict.fromkeys(f"{url}/{_quoted(file.path)}" for url in urls))


def not_offered(
    file: LockedFile, mirrors: Mirrors, answers: Sequence[Answer], snapshot: str | None, env: Mapping[str, str]
) -> Refusal:
    """Return the refusal for FILE after ANSWERS of all MIRRORS and of the URLs that `archived` returned."""
    configured = [Answer(answer.url.removesuffix(_quoted(file.path)), answer.problem) for answer in answers]
    problems = [f"{answer.url}: {answer.problem}" for answer in (*configured, *mirrors.silent)]
    release = f"{mirrors.suite}-security"
    if mirrors.silent or any(not answer.final for answer in answers):
        cure = f"try again when all of them answer; if one never does, {_NAME_ONE}"
    elif not mirrors.offered:
        problems = problems or [mirrors.none()]
        cure = _NAME_ONE
    elif _is_security(file) and not any(mirror.security for mirror in mirrors.offered):
        problems.append(f"no configured mirror has the suite {release}")
        cure = f"give apt a source with the suite {release}, or {_NAME_ONE}"
    else:
        cure = f"the version is superseded, so lock a newer one: {_NEWER}"
        if snapshot is not None and not archived(file, mirrors, snapshot, env):
            cure += f"; or name an archive that keeps old versions: export {SNAPSHOT_VARIABLE}=URL"
    where = f"index debian: {file.filename}"
    return Refusal("NV206", where, f"a file with sha256 {file.sha256}", "; ".join(problems), cure)


def find(suite: str, env: Mapping[str, str], client: httpx2.Client) -> Mirrors:
    """Return the mirrors of SUITE that ENV names, or else those among the archives of the host's apt.

    Raises Refused NV206 if apt cannot read its sources.
    """
    named = _urls(env.get(MIRROR_VARIABLE, ""), MIRROR_VARIABLE)
    return Mirrors(suite, tuple(_named(suite, named))) if named else among(aptsources.archives(), suite, client)


def _urls(value: str, variable: str) -> list[str]:
    """Return the URLs in VALUE, that of the environment's VARIABLE. Raises Refused NV108 for what is none."""
    return [fetch.usable(url, variable) for url in value.split()]


def _named(suite: str, urls: Iterable[str]) -> Iterable[Mirror]:
    for url in urls:
        base = url.rstrip("/") + "/"
        yield Mirror(base, f"{suite}-security" if base.endswith("-security/") else suite, "main")


def among(archives: Iterable[str], suite: str, client: httpx2.Client) -> Mirrors:
    """Return those of ARCHIVES that are mirrors of SUITE or of its security updates, by their Release files."""
    mirrors: dict[Mirror, None] = {}
    silent: list[Answer] = []
    with ThreadPoolExecutor(_AT_ONCE, "mirror") as pool:
        for answer in pool.map(lambda url: _mirrors_at(url, suite, client), archives):
            mirrors.update(dict.fromkeys(answer.offered))
            silent += answer.silent
    return Mirrors(suite, tuple(mirrors), tuple(silent))


def _mirrors_at(url: str, suite: str, client: httpx2.Client) -> Mirrors:
    try:
        where = aptsources.mirror_list(url)
        if where is not None:
            named = aptsources.listed(_text(where, client) or "")
            # A list that names a list could name itself.
            return among([entry for entry in named if aptsources.mirror_list(entry) is None], suite, client)
        for release in (suite, f"{suite}-security"):
            lines = (_text(f"{url}dists/{release}/Release", client) or "").splitlines()
            fields = dict(line.split(": ", 1) for line in lines if ": " in line)
            if fields.get("Origin") == "Debian":
                return Mirrors(suite, (Mirror(url, release, "main", fields.get("Snapshots")),))
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return Mirrors(suite, (), (Answer.of(url, error),))
    return Mirrors(suite, ())


def _text(url: str, client: httpx2.Client) -> str | None:
    """Return the beginning of the file at URL, None if there is none. Raises httpx2.HTTPError without an answer."""
    parts = urlsplit(url)
    if parts.scheme in ("file", "copy"):
        path = Path(unquote(parts.path))
        return reading.content(path, reading.PAGE)[:_HEAD].decode(errors="replace") if path.is_file() else None
    try:
        return _begin(url, client)
    except httpx2.HTTPError:  # try once more: the server may have been busy
        return _begin(url, client)


def _begin(url: str, client: httpx2.Client) -> str | None:
    with client.stream("GET", url, follow_redirects=True, timeout=_TIMEOUT) as response:
        if response.status_code >= _SERVER_ERROR:
            response.raise_for_status()
        if response.status_code != _OK:
            return None
        data = b""
        for chunk in response.iter_bytes():
            data += chunk
            if len(data) >= _HEAD:
                break
    return data.decode(errors="replace")


def _is_security(file: LockedFile) -> bool:
    return file.path.startswith("pool/updates/")


def _quoted(path: str) -> str:
    # as apt quotes: some servers take a plus sign in a path for a space.
    return path.replace("%", "%25").replace("+", "%2b").replace("~", "%7e")
