"""Debian packages: resolving the `.deb` files of a root file system, by apt.

apt runs with its own state and configuration: the host's installed packages, lists, pins and hooks have no influence,
and no root is needed. Only proxies and certificates come from the host's configuration; `mirrors.py` finds the mirrors.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote

from nvllm.core import proc, reading
from nvllm.core.lock import LockedDeb, LockedFile
from nvllm.core.refusal import Refusal, Refused, refuse
from nvllm.sources.mirrors import KEYRING, Mirror

_TIMEOUT = 300.0
"""Seconds for one command of apt; `update` downloads the lists of packages."""
_URI = re.compile(r"^'[^']+' (?P<name>\S+) \d+", re.MULTILINE)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DATE = re.compile(r"^Date: (.*)$", re.MULTILINE)
_POLICY = re.compile(
    r"^(?P<name>[^\s:]+)\S*:\n +Installed: (?P<locked>\S+)\n +Candidate: (?P<newer>\S+)$", re.MULTILINE
)

# Debian's snapshots are taken some hours after a release, and a time between two snapshots means the earlier one. A
# superseded file usually leaves the archive later than that.
_SETTLED = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Selection:
    """The packages that apt chose, sorted by name, and the time of a snapshot of the archive that has all of them."""

    packages: tuple[LockedDeb, ...]
    snapshot: str | None


@dataclass(frozen=True, slots=True)
class Update:
    """A locked package with a newer version."""

    name: str
    locked: str
    newer: str


def resolve(
    suite: str, packages: Sequence[str], architecture: str, kept: Mapping[str, str], offered: Sequence[Mirror]
) -> Selection:
    """Return PACKAGES and everything they depend on, as the mirrors OFFERED have them now.

    KEPT maps names to versions to prefer where a mirror still has them. Raises Refused NV209 with apt's message, NV512
    if apt or Debian's keyring is not installed.
    """
    _require_apt()
    with TemporaryDirectory(prefix="nvllm-apt-") as directory:
        apt = _Apt(Path(directory), suite)
        apt.configure(architecture, kept, offered)
        apt.run("apt-get", "-qq", "update")
        listed = apt.run("apt-get", "--print-uris", "-y", "-qq", "install", *packages)
        try:
            released = apt.released()
            versions = sorted({_name_and_version(match["name"]) for match in _URI.finditer(listed)})
            paragraphs = apt.run("apt-cache", "show", *(f"{name}={version}" for name, version in versions))
            debs = {(deb.name, deb.version): deb for deb in _parse(paragraphs)}
            chosen = tuple(debs[pair] for pair in versions)
        except (ValueError, KeyError, OverflowError) as error:
            raise Refused([apt.refusal("apt-cache", f"an answer of another form: {error!r}"[:300])]) from error
    return Selection(chosen, f"{max(released) + _SETTLED:%Y%m%dT%H%M%SZ}" if released else None)


def updates(
    suite: str, packages: Sequence[LockedDeb], architecture: str, offered: Sequence[Mirror]
) -> tuple[Update, ...]:
    """Return those of PACKAGES with a newer version on the mirrors OFFERED, by name. Raises as `resolve` does."""
    _require_apt()
    with TemporaryDirectory(prefix="nvllm-apt-") as directory:
        apt = _Apt(Path(directory), suite)
        apt.configure(architecture, {}, offered)
        apt.install(packages)
        apt.run("apt-get", "-qq", "update")
        output = apt.run("apt-cache", "policy", *(package.name for package in packages))
    updated = (Update(match["name"], match["locked"], match["newer"]) for match in _POLICY.finditer(output))
    return tuple(
        sorted((update for update in updated if update.locked != update.newer), key=lambda update: update.name)
    )


def _require_apt() -> None:
    proc.require("apt-get", "apt")
    if not KEYRING.exists():
        cure = "apt-get install debian-archive-keyring"
        raise refuse("NV512", str(KEYRING), "Debian's archive keys", "no file", cure)


@dataclass(frozen=True, slots=True)
class _Apt:
    """apt with its state below ROOT, for packages of SUITE."""

    root: Path
    suite: str

    def configure(self, architecture: str, kept: Mapping[str, str], offered: Sequence[Mirror]) -> None:
        """Write its configuration: of the host's, only proxies and certificates."""
        root = self.root
        for name in ("lists/partial", "cache/archives/partial"):
            (root / name).mkdir(parents=True)
        (root / "status").touch()
        # Of several mirrors with a file, apt uses the first one's path: the order must not depend on the host.
        ordered = sorted(offered, key=lambda mirror: (mirror.release, mirror.url))
        (root / "sources.list").write_text("".join(mirror.line + "\n" for mirror in ordered))
        # From 1001 on a pin also takes a version that is older than another one; see apt_preferences(5).
        pins = (f"Package: {name}\nPin: version {kept[name]}\nPin-Priority: 1001\n" for name in sorted(kept))
        (root / "preferences").write_text("\n".join(pins))
        settings = {
            "Dir::State": root,
            "Dir::State::Lists": root / "lists",
            "Dir::State::status": root / "status",
            "Dir::Cache": root / "cache",
            "Dir::Etc::main": "/dev/null",
            "Dir::Etc::parts": "/dev/null",
            "Dir::Etc::sourcelist": root / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferences": root / "preferences",
            "Dir::Etc::preferencesparts": "/dev/null",
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Install-Recommends": "false",
            "APT::Install-Suggests": "false",
            # An unreadable mirror must not be skipped: its updates would be missing silently.
            "APT::Update::Error-Mode": "any",
            "Acquire::Retries": "3",
            "Acquire::Languages": "none",
        }
        host = proc.run(["apt-config", "dump"], env=proc.environment({}), timeout=_TIMEOUT)
        settled = host.stdout.decode(errors="replace").splitlines()
        reaching = [line for line in settled if line.startswith("Acquire::http")]
        lines = [*reaching, *(f'{key} "{value}";' for key, value in settings.items())]
        (root / "apt.conf").write_text("".join(line + "\n" for line in lines))

    def install(self, packages: Iterable[LockedDeb]) -> None:
        """Register exactly PACKAGES as installed."""
        fields = "Package: {}\nStatus: install ok installed\nArchitecture: {}\nVersion: {}\n"
        stanzas = (fields.format(package.name, package.architecture, package.version) for package in packages)
        # In the form of dpkg's status file, in whose place it stands.
        (self.root / "status").write_text("\n".join(stanzas))

    def released(self) -> list[datetime]:
        """Return the release time of each suite, from its Release file."""
        texts = [
            reading.content(path, reading.LOCK).decode(errors="replace")
            for path in (self.root / "lists").glob("*Release")
        ]
        return [parsedate_to_datetime(dated[1]) for text in texts if (dated := _DATE.search(text)) is not None]

    def run(self, *argv: str) -> str:
        """Run one command of apt and return its output. Raises Refused NV209 with its message if it fails."""
        environment = proc.environment({"APT_CONFIG": str(self.root / "apt.conf")})
        try:
            done = proc.run(argv, env=environment, timeout=_TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise Refused([self.refusal(argv[0], f"no answer in {error.timeout:.0f} s")]) from error
        if done.returncode != 0:
            output = done.stderr.decode(errors="replace").strip().splitlines()
            raise Refused([self.refusal(argv[0], " / ".join(output) or f"exit status {done.returncode}")])
        return done.stdout.decode(errors="replace")

    def refusal(self, program: str, problem: str) -> Refusal:
        cure = f"name packages that {self.suite} has, or a mirror that answers: apt-get update"
        return Refusal("NV209", f"{program}, suite {self.suite}", "base.packages of the spec, resolved", problem, cure)


def _name_and_version(filename: str) -> tuple[str, str]:
    name, version, _ = filename.split("_", 2)
    return name, unquote(version)


def _parse(text: str) -> list[LockedDeb]:
    """Return the packages that apt has TEXT. Raises ValueError or KeyError for what is no list of packages."""
    debs = []
    for paragraph in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if not _SHA256.fullmatch(fields["SHA256"]):
            raise ValueError(f"{fields['Package']}: no SHA256")
        file = LockedFile(fields["Filename"], fields["SHA256"], int(fields["Size"]), "debian")
        debs.append(LockedDeb(fields["Package"], fields["Version"], fields["Architecture"], file))
    return debs
