"""Debian packages: which `.deb` files a root file system needs, and where mirrors offer them.

apt resolves, with a state of its own: the host's installed packages, lists and pins have no say, and no root
is needed. Mirrors and proxies are those of the host's apt, or NVLLM_DEBIAN_MIRROR where it has none for
Debian.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote

from nvllm import proc
from nvllm.lock import LockedDeb, LockedFile
from nvllm.refusal import Refusal, Refused

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MIRROR_VARIABLE = "NVLLM_DEBIAN_MIRROR"

_TIMEOUT = 300.0
_TARGET = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)|$(CREATED_BY)"
_URI = re.compile(r"^'(?P<url>[^']+)' (?P<name>\S+) \d+ ", re.MULTILINE)


@dataclass(frozen=True, slots=True, order=True)
class Mirror:
    """One repository: its base URL (with a slash at the end), release and component."""

    url: str
    release: str
    component: str

    @property
    def line(self) -> str:
        return f"deb [signed-by={KEYRING}] {self.url} {self.release} {self.component}"


def mirrors(suite: str, env: Mapping[str, str]) -> tuple[Mirror, ...]:
    """Return where SUITE, its updates and its security updates are offered, from ENV or the host's apt.

    Raises Refused NV206 if neither names a Debian mirror.
    """
    named = env.get(MIRROR_VARIABLE, "").split()
    found = _named(suite, named) if named else _configured(suite)
    if not found:
        raise Refused(
            [
                Refusal(
                    "NV206",
                    "index debian",
                    f"a Debian mirror with the suite {suite}",
                    "apt is not here, or is configured with no such mirror",
                    f"name one or more: export {MIRROR_VARIABLE}='URL-OF-DEBIAN URL-OF-DEBIAN-SECURITY'",
                )
            ]
        )
    return found


def _named(suite: str, urls: Iterable[str]) -> tuple[Mirror, ...]:
    found: list[Mirror] = []
    for url in urls:
        base = url.rstrip("/") + "/"
        releases = [f"{suite}-security"] if base.endswith("-security/") else [suite, f"{suite}-updates"]
        found += [Mirror(base, release, "main") for release in releases]
    return tuple(found)


def _configured(suite: str) -> tuple[Mirror, ...]:
    try:
        done = proc.run(["apt-get", "indextargets", "--format", _TARGET], env=proc.environment({}), timeout=_TIMEOUT)
    except FileNotFoundError:
        return ()
    found: set[Mirror] = set()
    for line in done.stdout.decode().splitlines():
        url, release, component, origin, created_by = line.split("|")
        # An empty origin is a source whose lists were never downloaded: its name is the only thing to go by.
        ours = origin == "Debian" and created_by == "Packages"
        if ours and component == "main" and release in (suite, f"{suite}-updates", f"{suite}-security"):
            found.add(Mirror(url.rstrip("/") + "/", release, component))
    return tuple(sorted(found))


def locate(file: LockedFile, offered: Sequence[Mirror]) -> tuple[str, ...]:
    """Return the URLs at which one of the mirrors OFFERED has FILE, if any has."""
    return tuple(dict.fromkeys(mirror.url + _quoted(file.path) for mirror in offered))


def _quoted(path: str) -> str:
    # apt's own quoting: a plus sign in a path is a space to some servers.
    return path.replace("%", "%25").replace("+", "%2b").replace("~", "%7e")


def resolve(
    suite: str,
    packages: Sequence[str],
    architecture: str,
    kept: Mapping[str, str],
    offered: Sequence[Mirror],
) -> tuple[LockedDeb, ...]:
    """Return PACKAGES and everything they depend on, sorted by name, as the mirrors OFFERED have them now.

    KEPT maps names to versions to prefer where a mirror still has them. Raises Refused NV209 with apt's
    words, NV512 if apt or Debian's keyring is not here.
    """
    proc.require("apt-get", "apt")
    if not KEYRING.exists():
        raise Refused(
            [
                Refusal(
                    "NV512", str(KEYRING), "Debian's archive keys", "no file", "apt-get install debian-archive-keyring"
                )
            ]
        )
    with TemporaryDirectory(prefix="nvllm-apt-") as directory:
        options = _private_state(Path(directory), architecture, kept, offered)
        _apt(["apt-get", *options, "-qq", "update"], suite)
        # Essential packages that nobody depends on are not asked for: nothing is configured in the image.
        listed = _apt(
            ["apt-get", *options, "--print-uris", "-y", "-qq", "install", "--no-install-recommends", *packages], suite
        )
        wanted = [_name_and_version(match["name"]) for match in _URI.finditer(listed)]
        shown = _apt(["apt-cache", *options, "show", *(f"{name}={version}" for name, version in wanted)], suite)
    debs = {(deb.name, deb.version): deb for deb in _parse(shown)}
    return tuple(debs[pair] for pair in sorted(wanted))


def _private_state(root: Path, architecture: str, kept: Mapping[str, str], offered: Sequence[Mirror]) -> list[str]:
    for name in ("lists/partial", "cache/archives/partial"):
        (root / name).mkdir(parents=True)
    (root / "status").touch()
    (root / "sources.list").write_text("".join(mirror.line + "\n" for mirror in offered))
    (root / "preferences").write_text(
        "".join(
            f"Package: {name}\nPin: version {version}\nPin-Priority: 1001\n\n" for name, version in sorted(kept.items())
        )
    )
    settings = {
        "Dir::State": root,
        "Dir::State::Lists": root / "lists",
        "Dir::State::status": root / "status",
        "Dir::Cache": root / "cache",
        "Dir::Etc::sourcelist": root / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": root / "preferences",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Install-Recommends": "false",
        "APT::Install-Suggests": "false",
        "APT::Default-Release": "",
    }
    return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]


def _apt(argv: Sequence[str], suite: str) -> str:
    done = proc.run(argv, env=proc.environment({}), timeout=_TIMEOUT)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
        raise Refused(
            [
                Refusal(
                    "NV209",
                    f"{argv[0]}, suite {suite}",
                    "the packages of the spec, resolved",
                    " / ".join(said),
                    "name packages that the suite has, or repair the mirror: apt-get update",
                )
            ]
        )
    return done.stdout.decode()


def _name_and_version(filename: str) -> tuple[str, str]:
    name, version, _ = filename.split("_", 2)
    return name, unquote(version)


def _parse(shown: str) -> list[LockedDeb]:
    debs = []
    for paragraph in shown.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        file = LockedFile(fields["Filename"], fields["SHA256"], int(fields["Size"]), "debian")
        debs.append(LockedDeb(fields["Package"], fields["Version"], fields["Architecture"], file))
    return debs
