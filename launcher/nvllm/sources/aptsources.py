"""The archives in the apt configuration of the host, as apt reads it.

`apt-get indextargets --no-release-info` parses every form of source (one line or deb822, with options, several
URIs and suites, disabled entries) and needs neither package lists nor a network. Without lists it cannot tell which
of them are Debian's; `mirrors.py` asks the archives themselves.
"""

from __future__ import annotations

import re

from nvllm.core import proc
from nvllm.core.refusal import refuse

_TIMEOUT = 60.0
"""Seconds in which apt must have listed its sources; it asks no network for that."""
_READ = ("apt-get", "indextargets", "--no-release-info", "--format", "$(CREATED_BY)|$(COMPONENT)|$(REPO_URI)")
_PRIORITY = re.compile(r"\bpriority:(\d{1,9})")
_LAST = 1 << 32  # behind every priority


def archives() -> tuple[str, ...]:
    """Return the base URLs (with a slash at the end) that apt has packages of a component `main` from, each once.

    In the order of apt's sources; none if apt is not installed. Raises Refused NV206 with apt's message if it cannot
    read them.
    """
    # The user's own configuration of apt counts.
    environment = proc.environment({}, passed=["APT_CONFIG"])
    try:
        done = proc.run(_READ, env=environment, timeout=_TIMEOUT)
    except FileNotFoundError:
        return ()
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").splitlines()
        problem = " / ".join(line for line in lines if line.startswith("E:")) or f"exit status {done.returncode}"
        cure = "apt-get indextargets"
        raise refuse("NV206", "index debian", "sources that apt can read", problem, cure)
    rows = (line.split("|", 2) for line in done.stdout.decode(errors="replace").splitlines())
    urls = (row[2] for row in rows if len(row) == 3 and row[:2] == ["Packages", "main"])
    return tuple(dict.fromkeys(url.rstrip("/") + "/" for url in urls))


def mirror_list(url: str) -> str | None:
    """Return the URL of the mirror list that URL refers to (apt-transport-mirror(1)), None if it refers to none."""
    scheme, colon, rest = url.partition(":")
    if scheme == "mirror":
        scheme = "mirror+http"
    return scheme.removeprefix("mirror+") + colon + rest.rstrip("/") if scheme.startswith("mirror+") else None


def listed(text: str) -> tuple[str, ...]:
    """Return the base URLs in TEXT, a mirror list, in the order of their priorities."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    lines.sort(key=lambda line: int(priority[1]) if (priority := _PRIORITY.search(line)) else _LAST)
    return tuple(dict.fromkeys(line.split()[0].rstrip("/") + "/" for line in lines))
