"""The archives that the host's apt is configured with, as apt itself reads its sources.

`apt-get indextargets --no-release-info` parses every form of source (one line or deb822, with options, several
URIs and suites, disabled entries) and needs neither lists that were fetched nor a network. What it cannot say
without lists is whose archive it is; `mirrors.py` asks the archives themselves.
"""

from __future__ import annotations

import re

from nvllm.core import proc
from nvllm.core.refusal import refuse

_TIMEOUT = 60.0
_READ = ("apt-get", "indextargets", "--no-release-info", "--format", "$(CREATED_BY)|$(COMPONENT)|$(REPO_URI)")
_PRIORITY = re.compile(r"\bpriority:(\d+)")
_LAST = 1 << 32


def archives() -> tuple[str, ...]:
    """Return the base URLs (with a slash at the end) that apt has packages of a component `main` from, each once.

    They are in the order of apt's sources; none if apt is not here. Raises Refused NV206 with apt's words if it
    cannot read them.
    """
    # The sources that count are the user's, wherever they lie.
    environment = proc.environment({}, passed=["APT_CONFIG"])
    try:
        done = proc.run(_READ, env=environment, timeout=_TIMEOUT)
    except FileNotFoundError:
        return ()
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").splitlines()
        said = " / ".join(line for line in lines if line.startswith("E:")) or f"exit status {done.returncode}"
        cure = "repair apt's sources until this works: apt-get indextargets"
        raise refuse("NV206", "index debian", "sources that apt can read", said, cure)
    rows = (line.split("|", 2) for line in done.stdout.decode().splitlines())
    urls = (url for kind, component, url in rows if (kind, component) == ("Packages", "main"))
    return tuple(dict.fromkeys(url.rstrip("/") + "/" for url in urls))


def mirror_list(url: str) -> str | None:
    """Return where the list of mirrors is that URL stands for (apt-transport-mirror(1)), None if it is no such URL."""
    scheme, colon, rest = url.partition(":")
    if scheme == "mirror":
        scheme = "mirror+http"
    return scheme.removeprefix("mirror+") + colon + rest.rstrip("/") if scheme.startswith("mirror+") else None


def listed(text: str) -> tuple[str, ...]:
    """Return the base URLs that TEXT, a list of mirrors, names, in the order of their priorities."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    lines.sort(key=lambda line: int(found[1]) if (found := _PRIORITY.search(line)) else _LAST)
    return tuple(dict.fromkeys(line.split()[0].rstrip("/") + "/" for line in lines))
