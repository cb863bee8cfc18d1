"""What no move of code and no renaming may change: hashes, written bytes, codes, and what commands print as JSON.

`golden.json` beside this file holds what they are. Who changes one of them on purpose (a lock, a file that enters an
image, a code, a rule) writes it anew and commits both, so that the change is seen by whoever reads the commit:

    PYTHONPATH=launcher:tests python tests/unit/test_golden.py
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from nvllm.cache import manifest
from nvllm.cli.main import main
from nvllm.core import canonical, catalogue
from nvllm.core.paths import Places, Project
from nvllm.core.plan import encode
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refusal, Refused
from nvllm.host import survey
from nvllm.host.facts import DiskFacts, EngineProblem
from nvllm.image import identity, sbom
from nvllm.layers import oci
from nvllm.layers.tarlayer import Layer
from nvllm.lock import lockdoc
from nvllm.serve import examination
from nvllm.serve.examination import Depth
from nvllm.serve.servehash import serve_hash
from support import blessings_world, locks
from support.host_samples import CPU, GIB, HOST

ROOT = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").is_file())
GOLDEN = Path(__file__).with_name("golden.json")
HOME = "/nonexistent/nvllm-golden"
"""Where no test ever writes, so that a launch plan has the same paths everywhere."""

PROBLEM = EngineProblem("absent", f"unix://{HOME}/engine", "nothing answers")
RUNS = f"{HOME}/state/runs"
FACTS = dataclasses.replace(
    HOST, engine=None, engine_problem=PROBLEM, uid=1234, gid=1235, disks={RUNS: DiskFacts(100 * GIB, 1)}
)
LOCKED = {
    "cpu": "linux/amd64",
    "sm120": "linux/amd64",
    "sm120.arm64": "linux/arm64",
    "sm120-v033": "linux/amd64",
    "sm120-v033.arm64": "linux/arm64",
}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def builds() -> dict[str, Any]:
    """Of each committed lock: its bytes, and what decides the image, its configuration and its papers."""
    found = {}
    for name, platform in LOCKED.items():
        project = Project(ROOT, platform)
        path = project.lock(name.partition(".")[0])
        lock = lockdoc.read(path, path.name)
        made, _ = identity.load_build(project, lock.image, None)
        layers = [Layer(kind, f"sha256:{number:064x}", 1, path) for number, kind in enumerate(("base", "wheels"))]
        assembled = oci.assemble(
            layers,
            platform=lock.platform,
            epoch=lock.epoch,
            entrypoint=made.spec.runtime.entrypoint,
            environment=made.environment,
            labels={"nvllm.image": made.spec.name},
        )
        found[name] = {
            "lock as it is": lockdoc.encode(lock) == path.read_bytes(),
            "factors": {key: canonical.digest("golden/1", value) for key, value in made.factors.items()},
            "build hash": made.build_hash,
            "configuration": assembled.id,
            "bill of materials": canonical.digest("golden/1", sbom.document(made)),
        }
    return found


def plans() -> dict[str, Any]:
    """Of profiles of image cpu, on a host of fixed facts: the launch plan, and its serve hash."""
    found = {}
    for profile in ("tiny-eager", "tiny-compiled"):
        examined = examination.examine(
            Project(ROOT), Places(Path(HOME, "cache"), Path(HOME, "state")), "cpu", profile, Depth.UNBLESSED,
            paranoid=False, progress=Silent(),
        )  # fmt: skip
        plan = examined.plan
        found[profile] = {
            "serve hash": plan.serve_hash,
            "hashed anew": serve_hash(plan) == plan.serve_hash,
            "plan": canonical.digest("golden/1", encode(plan)),
            "command": list(plan.command.words),
        }
    return found


def written() -> dict[str, str]:
    """The sha256 of documents that nvllm writes."""
    return {
        "lock": sha256(lockdoc.encode(locks.GOOD)),
        "manifest": sha256(manifest.encode(blessings_world.bless(blessings_world.TREE))),
        "cache tree": blessings_world.TREE.hash,
    }


def endings() -> dict[str, Any]:
    """Every code of a refusal, and the exit code that it alone comes to."""
    return {code: Refused([Refusal(code, "w", "e", "f", "c")]).exit_code for code in sorted(catalogue.CODES)}


COMMANDS = (
    "patch list v0.28.0",
    "patch list --series v0.21.0",
    "manifest list",
    "status",
    "serve cpu --profile tiny-eager --platform linux/amd64 --dry-run",
    "serve cpu --profile no-such-profile --platform linux/amd64",
    "serve no-such-image --profile tiny-eager",
    "build sm120 --platform linux/amd64 --dry-run --offline",
    "no-such-command",
)


def printed() -> dict[str, Any]:
    """Exit code and the sha256 of what each command prints as JSON, in this project, with empty cache and state."""
    found = {}
    for command in COMMANDS:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            ended = main(["--project", str(ROOT), "--json", *command.split()])
        text = out.getvalue().replace(str(ROOT), "PROJECT")
        document = json.loads(text)
        refused = sorted(one["code"] for one in document.get("refusals", []))
        found[command] = {"exit code": ended, "refused": refused, "sha256": sha256(text.encode())}
    return found


PARTS: Mapping[str, Callable[[], Any]] = {
    "builds": builds,
    "plans": plans,
    "written": written,
    "endings": endings,
    "printed": printed,
}


@contextlib.contextmanager
def fixed() -> Iterator[None]:
    """For the duration: a host of which `FACTS` hold, an engine that does not answer, empty cache and state."""
    said = {"NVLLM_HOME": HOME, "HF_HUB_CACHE": HOME, "DOCKER_HOST": f"unix://{HOME}/engine", "COLUMNS": "100"}
    absent = ("NVLLM_MODELS", "NVLLM_DEBIAN_MIRROR", "NVLLM_GITHUB_MIRROR", "HF_HOME", "XDG_CACHE_HOME")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in said.items():
            patch.setenv(name, value)
        for name in absent:
            patch.delenv(name, raising=False)
        patch.setattr(examination, "connect", lambda: PROBLEM)
        patch.setattr(survey, "host_facts", lambda *_: FACTS)
        yield


@pytest.mark.parametrize("part", PARTS)
def test_what_must_not_change_has_not_changed(part: str) -> None:
    with fixed():
        assert PARTS[part]() == json.loads(GOLDEN.read_text(encoding="utf-8"))[part]


def test_the_host_of_the_plans_is_not_this_one() -> None:
    with fixed():
        assert survey.host_facts(Places(Path(), Path()), PROBLEM).cpu == CPU
    assert not os.path.exists(HOME)


if __name__ == "__main__":
    with fixed():
        made = {part: make() for part, make in PARTS.items()}
    GOLDEN.write_text(json.dumps(made, indent=2, sort_keys=True) + "\n", encoding="utf-8")
