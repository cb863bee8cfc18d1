"""What `python -m gpu.everything` starts is what each of its programs takes; what comes of it is seen on GPUs alone."""

from __future__ import annotations

import importlib.util
import os

import pytest

from gpu import everything, run

VALUES = {name: f"/{name}" for name in ("place", "image", "output", "commit", "machine")}
LANES = (*everything.LANES.values(), everything.TIMED)
COMMANDS = {name: words for lane in LANES for name, words in lane.commands.items()}


def test_the_lanes_share_out_all_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    shares = everything.processors([lane.share for lane in everything.LANES.values()])
    assert [processor for share in shares for processor in share] == [*range(64)]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_one_that_its_program_takes(name: str) -> None:
    words = [word.format(**VALUES) for word in COMMANDS[name]]
    module = words[words.index("-m") + 1]
    assert importlib.util.find_spec(module) is not None
    if module == "gpu.run":
        asked = run.parser().parse_args(words[words.index(module) + 1 :])
        assert asked.only == [name]
        assert asked.commit == "/commit"
