"""Carries what pip is configured with to another root: its files as one, and what they and the environment name.

    python3 tools/pip_carried.py PIP_CONF DIRECTORIES FILES

All three are written: a configuration file for the whole root; the directories of this machine that are indexes, or
hold wheels; and the files that a setting names: certificate bundles, constraints, requirements. Standard library only:
it runs where nothing is set up, and no pip is.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

INDEXES = {"index-url", "extra-index-url"}
"""Such an index may name files beside itself, so the directory that holds it goes along."""
NAMED = {"cert", "client-cert", "constraint", "build-constraint", "requirement"}
"""Settings whose values are files. pip refuses to run where one of constraints or requirements is missing."""
BUNDLES = {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}


def files(env: Mapping[str, str]) -> list[Path]:
    """Return where pip looks for its configuration in the environment ENV; the later win."""
    home = Path(env.get("HOME", "/root"))
    return [
        *(Path(directory) / "pip/pip.conf" for directory in env.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")),
        Path("/etc/pip.conf"),
        home / ".pip/pip.conf",
        Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf",
        Path(env.get("PIP_CONFIG_FILE", os.devnull)),
    ]


def read(paths: Iterable[Path]) -> configparser.RawConfigParser:
    """Return what the configuration files PATHS say together."""
    configured = configparser.RawConfigParser()
    configured.read(paths)
    return configured


def settings(configured: configparser.RawConfigParser, env: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return every setting, of all sections and of the environment ENV, by the name that it has in a file."""
    listed = [(name, value) for section in configured.sections() for name, value in configured.items(section)]
    return listed + [(name[4:].lower().replace("_", "-"), env[name]) for name in env if name.startswith("PIP_")]


def local(value: str) -> set[Path]:
    """Return the paths of this machine among the words of VALUE."""
    urls = {Path(unquote(urlsplit(word).path)) for word in value.split() if word.startswith("file:")}
    return urls | {Path(word) for word in value.split() if word.startswith("/")}


def directories(listed: Iterable[tuple[str, str]]) -> list[Path]:
    """Return the directories that the settings LISTED name as indexes and as places of wheels; none lies in another."""
    named = set()
    for name, value in listed:
        if name in INDEXES:
            named |= {path.parent for path in local(value)}
        elif name == "find-links":
            named |= local(value)
    there = {path for path in named if path.is_dir()}
    return sorted(path for path in there if not there & set(path.parents))


def named_files(listed: Iterable[tuple[str, str]], env: Mapping[str, str]) -> list[Path]:
    """Return the files that the settings LISTED name, one or several each, and the bundles of the environment ENV."""
    values = [value for name, value in listed if name in NAMED] + [env[name] for name in BUNDLES if name in env]
    named = {Path(value) for value in values} | {path for value in values for path in local(value)}
    return sorted(path for path in named if path.is_file())


def main() -> None:
    pip_conf, places, named = map(Path, sys.argv[1:])
    configured = read(files(os.environ))
    listed = settings(configured, os.environ)
    with pip_conf.open("w") as file:
        configured.write(file)
    places.write_text("".join(f"{path}\n" for path in directories(listed)))
    named.write_text("".join(f"{path}\n" for path in named_files(listed, os.environ)))


if __name__ == "__main__":
    main()
