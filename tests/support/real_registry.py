"""Debian's docker-registry, on loopback, with its storage in a directory; and what such a directory offers."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.engine_world import World, free_port, until

Wrap = Callable[..., Sequence[str]]


def plain(*command: str | Path) -> Sequence[str]:
    return [*map(str, command)]


def mounted(options: str, directory: Path) -> Wrap:
    """Return what runs a command where a mount with OPTIONS, those of mount(8), lies on DIRECTORY, for it alone."""
    script = f'mount {options} "$0" && exec "$@"'

    def wrap(*command: str | Path) -> Sequence[str]:
        return ["unshare", "--mount", "sh", "-c", script, str(directory), *map(str, command)]

    return wrap


@dataclass
class RealRegistry:
    """A registry at HOST whose blobs lie below DIRECTORY; WRAP puts its command into other namespaces."""

    directory: Path
    wrap: Wrap = plain
    host: str = "127.0.0.1"
    port: int = field(default_factory=free_port)
    read_only: bool = False

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}/nvllm"

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "config.json"
        storage = {
            "filesystem": {"rootdirectory": str(self.directory / "data")},
            "maintenance": {"readonly": {"enabled": self.read_only}},
        }
        http = {"addr": f"{self.host}:{self.port}"}
        config.write_text(json.dumps({"version": 0.1, "log": {"level": "error"}, "storage": storage, "http": http}))
        with (self.directory / "log").open("ab") as log:
            argv = self.wrap("docker-registry", "serve", config)
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        asking = [*self.wrap("curl", "--silent", "--fail", f"http://{self.host}:{self.port}/v2/")]
        until(lambda: subprocess.run(asking, capture_output=True, check=False).returncode == 0, "the registry answers")

    def enlarge(self, size: str) -> None:
        """Give the tmpfs on the storage, which `mounted` made, SIZE."""
        enter = ["nsenter", "--mount", "--target", str(self._process.pid)]
        subprocess.run([*enter, "mount", "-o", f"remount,size={size}", self.directory / "data"], check=True)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def tags(self) -> list[str]:
        """Return the tags of the repository, none if there is no repository."""
        url = f"http://{self.host}:{self.port}/v2/nvllm/tags/list"
        answer = subprocess.run(self.wrap("curl", "--silent", "--fail", url), capture_output=True, check=False)
        return sorted(json.loads(answer.stdout)["tags"] or []) if answer.returncode == 0 else []

    def blob(self, digest: str) -> Path:
        """Return the file in which the registry keeps the blob DIGEST."""
        sha = digest.removeprefix("sha256:")
        return self.directory / "data/docker/registry/v2/blobs/sha256" / sha[:2] / sha / "data"

    def stored(self) -> int:
        """Return how many bytes lie below the registry's storage, unfinished uploads too."""
        sizes = 0
        for directory, _, names in os.walk(self.directory):  # which goes on where the registry has just removed one
            with contextlib.suppress(FileNotFoundError):
                sizes += Path(directory, "data").stat().st_size if "data" in names else 0
        return sizes


@dataclass(frozen=True, slots=True)
class Offered:
    """The blessed PROFILE of WORLD, in the registry whose storage is in DIRECTORY; PUSHED is what `nvllm push` said.

    For the whole session: look, do not touch.
    """

    world: World
    profile: str
    directory: Path
    pushed: Mapping[str, Any]
