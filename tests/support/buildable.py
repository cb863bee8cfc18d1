"""A small project on disk that `nvllm build --layout` builds in a second, without an engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvllm.cli.main import main
from nvllm.core.lock import LockedPatch, LockedSeries
from nvllm.core.paths import Places, Project
from nvllm.lock import lockdoc
from nvllm.spec import specfile
from support import layersamples, series_samples, specs

IMAGE = "demo"
PATCH = "guard"


class Buildable:
    """The image `demo` with PATCHES below ROOT, and a home with its locked files in the store."""

    def __init__(self, root: Path, patches: Sequence[str] = (PATCH,)) -> None:
        self.project = Project(root / "project")
        self.home = root / "home"
        self.places = Places(self.home / "cache", self.home / "state")
        (self.home / "cache").mkdir(parents=True)
        world = layersamples.World(self.home / "cache")
        text = specs.GOOD.replace('python: "3.11"', f'python: "{layersamples.PYTHON}"')
        text = text.replace("enable: [aot-load-guard]", f"enable: [{', '.join(patches)}]").replace(
            "differs: [vllm/_version.py]", ""
        )
        self.project.spec(IMAGE).parent.mkdir(parents=True)
        self.project.spec(IMAGE).write_text(text)
        spec = specfile.load(self.project.spec(IMAGE), specs.SHOWN)
        package, changed = layersamples.PACKAGE, layersamples.CHANGED
        texts = {one: series_samples.patch_text(package, {**package, **changed[one]}) for one in patches}
        directory = self.project.series("v0.28.0")
        directory.mkdir(parents=True)
        header = series_samples.HEADER.replace("base: v1", "base: v0.28.0").replace("1.2.3", "0.28.0")
        header = header.replace("0123456789abcdef0123456789abcdef01234567", specs.COMMIT)
        entries = [series_samples.entry(directory, n, one, text) for n, (one, text) in enumerate(texts.items(), 1)]
        (directory / "series.yaml").write_text(header + "".join(entries))
        self.lock = replace(
            world.lock,
            inputs=specfile.inputs(spec, self.project.platform),
            wheels=tuple(sorted(world.lock.wheels, key=lambda one: one.name)),
            series=LockedSeries(
                "v0.28.0",
                tuple(LockedPatch(one, "carried", hashlib.sha256(text).hexdigest()) for one, text in texts.items()),
            ),
        )
        lockdoc.write(self.project.lock(IMAGE), self.lock)

    def arguments(self, *words: str) -> list[str]:
        return ["--project", str(self.project.root), "--platform", "linux/amd64", "--offline", "--json", *words]

    def nvllm(self, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
        """Run nvllm in this process, with the home of this project; return the exit status and the document."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NVLLM_HOME", str(self.home))
            patch.setenv("DOCKER_HOST", f"unix://{self.home}/no-engine")
            status = main(self.arguments(*words))
        said = capsys.readouterr()
        assert said.out, said.err
        return status, json.loads(said.out)
