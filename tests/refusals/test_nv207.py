"""NV207, source is not the commit: the source archive records another commit than the spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.refusal import Refusal, Refused
from support import locks
from support.locking import World


def refusal(world: World) -> Refusal:
    with pytest.raises(Refused) as refused:
        world.lock()
    (found,) = refused.value.refusals
    assert (found.code, found.where) == ("NV207", "vllm-0.28.0.tar.gz: vllm/_version.py")
    assert found.expected == f"commit {locks.COMMIT} (images/demo.yaml: .vllm.commit)"
    assert found.cure == (
        "write the last id that `git ls-remote https://github.com/vllm-project/vllm v0.28.0 'v0.28.0^{}'` prints into "
        ".vllm.commit of images/demo.yaml"
    )
    return found


def test_an_archive_of_another_commit(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.source = {**world.source, "vllm/_version.py": "__commit_id__ = commit_id = 'gdeadbeef1'\n"}
    assert refusal(world).found == "commit deadbeef1"


def test_an_archive_that_does_not_say(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.source = {path: text for path, text in world.source.items() if path != "vllm/_version.py"}
    assert refusal(world).found == "no recorded commit"


def test_it_is_said_before_anything_else_is_resolved(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.source = {**world.source, "vllm/_version.py": "__commit_id__ = commit_id = 'gdeadbeef1'\n"}
    refusal(world)
    assert not {"debs", "wheels"} & set(world.asked)
