"""The project that `make test-gpu` blesses: image sm120 for the GPU at hand, its files, and the record of its build."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from gpu import project
from gpu.machine import Place
from gpu.project import GDN, IMAGE, OF, Ground
from nvllm.core.paths import Project
from nvllm.image import buildrecord, identity
from nvllm.spec import specfile

ROOT = Path(__file__).parents[2]
TREE = f"sha256:{'ab' * 32}"


def test_the_image_is_that_of_the_repository_but_for_the_gpu() -> None:
    made = specfile.parse(yaml.safe_dump(project.spec(TREE)), f"images/{IMAGE}.yaml")
    of = specfile.load(ROOT / f"images/{OF}.yaml", f"images/{OF}.yaml")
    assert (made.vllm, made.patches, made.python) == (of.vllm, of.patches, of.python)
    assert made.targets == ("sm_90a",)
    tiny, theirs = made.profiles["tiny-blessed"], of.profiles["tiny-blessed"]
    assert (tiny.arguments, tiny.sentinels, tiny.limits) == (theirs.arguments, theirs.sentinels, theirs.limits)
    for name, profile in made.profiles.items():
        assert profile.blessed == (name not in {project.EAGER, project.SWITCHED_OFF})
        assert profile.gpu is not None
        assert profile.gpu.capabilities == ("9.0",)
        assert "kv-cache-memory-bytes" in profile.arguments  # measured at each start it would differ
    assert made.models[GDN].tree == TREE  # type: ignore[union-attr]  # a directory


def test_the_lock_fits_and_a_record_says_that_the_image_was_built(tmp_path: Path) -> None:
    gdn = tmp_path / "gdn"
    gdn.mkdir()
    (gdn / "config.json").write_text("{}")
    ground = Ground(Place(tmp_path / "place"), tmp_path / "project", tmp_path / "home", tmp_path / "engine")
    build = project.write(ground, gdn)
    again, stale = identity.load_build(Project(ground.project), IMAGE, None)
    assert (stale, again.build_hash) == ([], build.build_hash)
    image = json.loads((ground.engine / "image.json").read_text())
    record = buildrecord.read(ground.places.builds, build.build_hash)
    assert record is not None
    assert record.image_id == image["said"]["Id"]
    assert set(build.tags) == set(image["said"]["RepoTags"])
    own = Path(image["root"]["/opt/nvllm"])
    assert json.loads((own / "identity.json").read_text())["build_hash"] == build.build_hash
    assert (own / "gate.py").read_bytes() == (ROOT / "launcher/nvllm/runtime/gate.py").read_bytes()
    venv = Path(image["root"]["/opt/venv"])
    assert (venv / Path(build.scheme.interpreter).relative_to("/opt/venv")).exists()
    assert (venv / "bin/vllm").stat().st_mode & 0o111
