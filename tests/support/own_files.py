"""A project whose profile serves a user's own directory, with an adapter and a chat template; no engine answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from nvllm.core.lock import LockedModel
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Silent
from nvllm.lock import templates
from nvllm.models import modeltree
from nvllm.serve.examination import Depth, Examination, examine
from nvllm.spec import specfile
from support import plansamples
from support.plansamples import edit, write_lock

KEY = "0123456789abcdef0123456789abcdef"
TEMPLATE = "templates/mine.jinja"


@dataclass(frozen=True)
class OwnFiles:
    """PROJECT with MODEL and ADAPTER at paths of the host, and KEY_FILE."""

    project: Project
    places: Places
    model: Path
    adapter: Path
    key_file: Path

    def lock(self) -> None:
        """Write the lock of what is there now."""
        spec = specfile.of(self.project, "demo")
        trees = {name: modeltree.tree_of(path) for name, path in (("mine", self.model), ("pirate", self.adapter))}
        locked = {name: LockedModel("directory", tree, files) for name, (tree, files) in trees.items()}
        write_lock(self.project, models=locked, templates=templates.of(self.project, spec))

    def examined(self) -> Examination:
        return self._examined(Depth.WHOLE)

    def tried(self) -> Examination:
        """Examine the profile as `nvllm bless` does."""
        return self._examined(Depth.UNBLESSED)

    def _examined(self, depth: Depth) -> Examination:
        return examine(self.project, self.places, "demo", "eager", depth, paranoid=True, progress=Silent())

    def codes(self) -> list[str]:
        """Return what is refused, without what this host may lack."""
        missing = {"NV505", "NV506", "NV507", "NV510", "NV602"}
        return [one.code for one in self.examined().refusals if one.code not in missing]


def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OwnFiles:
    """Make the project below TMP_PATH, locked."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("NVLLM_MODELS", raising=False)
    own = OwnFiles(
        plansamples.project(tmp_path),
        plansamples.places(tmp_path),
        tmp_path / "srv/mine",
        tmp_path / "srv/pirate",
        tmp_path / "srv/key",
    )
    for directory, name in ((own.model, "config.json"), (own.adapter, "adapter_config.json")):
        directory.mkdir(parents=True)
        (directory / name).write_text("{}")
    own.key_file.write_text(KEY)
    own.key_file.chmod(0o600)
    (own.project.root / TEMPLATE).parent.mkdir()
    (own.project.root / TEMPLATE).write_text("{{ messages }}")
    spec = own.project.spec("demo")
    text = spec.read_text()
    models_at = text.index("models:\n")
    named = "".join(
        f"  {name}:\n    kind: directory\n    path: {path}\n"
        for name, path in (("mine", own.model), ("pirate", own.adapter))
    )
    spec.write_text(f"{text[:models_at]}models:\n{named}{text[text.index('profiles:') :]}")
    fields = f"    model: mine\n    adapters: [pirate]\n    chat-template: {TEMPLATE}\n"
    edit(spec, "    model: tiny\n", f"{fields}    access: {{key-file: {own.key_file}, publish: 0.0.0.0}}\n")
    own.lock()
    return own
