"""NV603, unknown argument: a profile has an argument that vLLM's source at the pinned commit does not have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.image import identity
from nvllm.lock import lockdoc
from support.locking import SOURCE, SPEC, WHEEL, World
from support.plansamples import project

NAMES = ("enforce-eager", "host", "max-model-len")


def test_a_lock_reads_the_names_and_refuses_others(tmp_path: Path) -> None:
    world = World(tmp_path, SOURCE, WHEEL)
    assert world.lock().vllm.arguments == NAMES
    (name, profile), *_ = SPEC.profiles.items()
    other = replace(SPEC, profiles={name: replace(profile, arguments={"max-model-length": 128})})
    with pytest.raises(Refused) as refused:
        world.lock(other)
    (refusal,) = refused.value.refusals
    assert (refusal.code, refusal.found, refusal.cure) == ("NV603", "max-model-length", "write max-model-len")
    assert refusal.where.endswith(f": .profiles.{name}.arguments.max-model-length")


def test_a_build_and_a_serve_refuse_what_the_lock_does_not_know(tmp_path: Path) -> None:
    demo = project(tmp_path)
    path, shown = demo.lock("demo"), demo.show(demo.lock("demo"))
    lock = lockdoc.read(path, shown)
    lockdoc.write(path, replace(lock, vllm=replace(lock.vllm, arguments=NAMES)))
    assert identity.load_build(demo, "demo", None)[1] == []
    spec = demo.spec("demo")
    spec.write_text(spec.read_text().replace("enforce-eager:", "enforce-eagerly:", 1))
    (refusal,) = identity.load_build(demo, "demo", None)[1]
    assert (refusal.code, refusal.found, refusal.cure) == ("NV603", "enforce-eagerly", "write enforce-eager")
