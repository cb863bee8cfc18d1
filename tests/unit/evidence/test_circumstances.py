"""The circumstances of a run: arms with what their containers get, the host, and the repository."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest

from nvllm.core import proc
from nvllm.core.refusal import Refused
from nvllm.engine.engine import Engine
from nvllm.evidence import circumstances
from nvllm.host.facts import EngineFacts
from nvllm.image import buildrecord
from support.evidence_samples import manifest
from support.plansamples import SPEC, build, places, project, with_profile

SAMPLE = manifest(("a",))
OF = build(with_profile(SPEC, sentinels=("a", "c")))


class QuietEngine:
    """An engine without containers."""

    def facts(self) -> EngineFacts:
        return EngineFacts("27.1", "1.46", "overlay2", rootless=False, bridge_interface=None)

    def containers(self) -> tuple[()]:
        return ()


def test_an_arm_keeps_what_the_profile_has_besides(tmp_path: Path) -> None:
    where = places(tmp_path)
    buildrecord.write(where.builds, buildrecord.Record("demo", OF.build_hash, "sha256:" + "1" * 64, ()))
    arms = ((), ("a",), ("a", "b"))
    states = circumstances.ablated_arms(OF, "eager", arms)
    found = circumstances.manifest("ablate", OF, states, 2, SAMPLE.probe, SAMPLE.host, where)
    assert [(one.name, one.present, one.on) for one in found.arms] == [
        ("none", ("c",), ()),
        ("a", ("a", "c"), ("a",)),
        ("a+b", ("a", "b", "c"), ("a", "b")),
    ]
    assert (found.ablated, found.image_id, found.build_hash) == (("a", "b"), "sha256:" + "1" * 64, OF.build_hash)
    twice = circumstances.profile_arms(OF, ["eager", "eager"])
    assert [(one.name, one.profile, one.present, one.on) for one in twice] == [
        ("eager", "eager", ("a", "c"), ()),
        ("eager-2", "eager", ("a", "c"), ()),
    ]
    assert [one.name for one in circumstances.profile_arms(OF, ["eager", "eager", "eager"])][1:] == [
        "eager-2",
        "eager-3",
    ]


def test_what_was_never_built_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        circumstances.manifest("eval", OF, [], 1, SAMPLE.probe, SAMPLE.host, places(tmp_path))
    assert [one.code for one in caught.value.refusals] == ["NV302"]


def git(root: Path, *words: str) -> None:
    named = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    assert proc.run(["git", "-C", str(root), *named, *words], env=proc.environment({}), timeout=60).returncode == 0


def test_the_host_and_the_repository(tmp_path: Path) -> None:
    of, engine = project(tmp_path), cast("Engine", QuietEngine())
    before = circumstances.host_state(of, places(tmp_path), engine)
    assert (before.commit, before.dirty, before.engine) == ("", False, "Docker 27.1")
    assert before.memory > 1 << 20
    assert before.kernel == os.uname().release
    git(of.root, "init", "-q")
    git(of.root, "add", "-A")
    git(of.root, "commit", "-qm", "all")
    clean = circumstances.host_state(of, places(tmp_path), engine)
    assert (len(clean.commit), clean.dirty) == (40, False)
    of.spec("demo").write_text("# changed\n")
    assert circumstances.host_state(of, places(tmp_path), engine).dirty
