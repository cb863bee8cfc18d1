"""A bisect of a small image on a Ray cluster, whose probe looks into the image without starting it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvllm.engine import engine
from nvllm.host import survey
from nvllm.host.facts import TASK_LABEL
from nvllm.serve import hostclass
from support import looking_probe
from support.buildable import IMAGE, Buildable
from support.engine_world import Done, until
from support.ray_cluster import RayWorld
from support.real_registry import RealRegistry

if TYPE_CHECKING:
    from docker import DockerClient

PATCHES = ("guard", "key", "top", "end")
CAUSE = ["key", "top"]
"""The planted patches: with both of them the probe fails."""


@dataclass
class Bisect:
    """A bisect of the image of SMALL on WORLD, through REGISTRY, with its probe in PLACE."""

    place: Path
    small: Buildable
    world: RayWorld
    registry: RealRegistry
    client: DockerClient
    kept: tuple[str, ...] = ()
    """Machines that outlive the bisect."""

    @property
    def home(self) -> Path:
        return self.small.home

    @property
    def journal(self) -> Path:
        return self.small.places.work(self.small.project) / "bisect" / IMAGE / "journal.jsonl"

    def start(self, *options: str) -> str:
        """Start the bisect, and return the class of this host."""
        probe = looking_probe.write(self.place)
        words = ["start", IMAGE, "--set", "--good", "none", "--build-only", "--test", str(probe), *options]
        assert self.world.nvllm(self.home, "bisect", *words).code == 0
        return str(self.records("start")[0]["host"])

    @property
    def words(self) -> list[str]:
        return ["bisect", "run", "--on", self.world.address, "--registry", self.registry.name]

    def run(self) -> Done:
        return self.world.nvllm(self.home, *self.words)

    def begin(self) -> subprocess.Popen[bytes]:
        """Run the driver in the background."""
        env = {**self.world.env, "NVLLM_HOME": str(self.home)}
        argv = self.world.argv(*self.words, "--json")
        with (self.place / "driver.out").open("wb") as out, (self.place / "driver.log").open("ab") as log:
            return subprocess.Popen(argv, env=env, stdout=out, stderr=log)

    def ends(self, driver: subprocess.Popen[bytes]) -> Mapping[str, Any]:
        """Wait until DRIVER has ended well, and return what it found."""
        said = self.place / "driver.out"
        assert driver.wait(240) == 0, said.read_text() + (self.place / "driver.log").read_text()[-3000:]
        found: dict[str, Any] = json.loads(said.read_bytes())["result"]
        return found

    def records(self, *kinds: str) -> list[dict[str, Any]]:
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        return [one for line in lines if (one := json.loads(line))["record"] in kinds]

    def tasks(self, *kinds: str) -> set[str]:
        return {one["task"] for one in self.records(*kinds)}

    def begun(self) -> set[str]:
        return {one.name for one in (self.place / "begun").glob("*")}

    def containers(self) -> set[str]:
        """Return the tasks that have a container."""
        found = self.client.api.containers(all=True, filters={"label": TASK_LABEL})
        return {one["Labels"][TASK_LABEL] for one in found} & self.tasks("sent")

    def none_left(self) -> None:
        """Wait until no task has a container. The driver does not wait for what it cancelled at its end."""
        until(lambda: not self.containers(), "no task has a container", 30)

    def check(self, done: Mapping[str, Any]) -> None:
        """Check that DONE found the cause, that every task ended once, and that another machine decides the same."""
        assert done["found"]["culprits"] == CAUSE
        assert done["found"]["certified"]
        sent = Counter(one["task"] for one in self.records("sent"))
        ends = Counter(one["task"] for one in self.records("trial", "lost"))
        assert set(sent.values()) == {1}
        assert ends == sent
        kept = {one.name for one in (self.journal.parent / "evidence").iterdir()}
        assert {one["evidence"] for one in self.records("trial")} == kept
        assert self.world.nvllm(self.home, "bisect", "replay", str(self.journal)).code == 0

    def end(self) -> None:
        """Lose the machines but those that are kept, and remove what it has in the engine and in the driver's state."""
        self.world.lose_machines(*self.kept)
        for one in self.client.api.containers(all=True, filters={"label": TASK_LABEL}):
            if one["Labels"][TASK_LABEL] in self.tasks("sent") | self.begun():
                self.client.api.remove_container(one["Id"], force=True)
        mine = tuple(f"nvllm:{IMAGE}-{one['build_hash'][:12]}" for one in self.records("build"))
        for tag in [tag for image in self.client.images.list("nvllm") for tag in image.tags if tag.startswith(mine)]:
            self.client.api.remove_image(tag, force=True)
        shutil.rmtree(self.home / "state", ignore_errors=True)


def own_class(small: Buildable) -> str:
    """Return the class of this host."""
    return hostclass.host_class(survey.host_facts(small.places, engine.connect()))


def named(world: RayWorld, home: Path, *names: str) -> dict[str, dict[str, Any]]:
    """Return what the machines say of themselves, by name, once they are those that have NAMES, and the head."""
    found: dict[str, dict[str, Any]] = {}

    def there() -> bool:
        found.clear()
        found.update({one["machine"]: one for one in world.status(home)})
        return set(found) == {*names, "head"}

    until(there, f"the machines {names}", 120)
    return found
