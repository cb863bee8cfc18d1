"""NV912, bless rejected: a bootstrap that saved nothing, and trials that are not as good as they look."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nvllm.bless.preflight import BlessRequest
from nvllm.core.plan import CACHE
from nvllm.core.refusal import Refusal, Refused
from nvllm.serve import startup
from support.bless_world import LOADED, READY, SAVED, TOKENS, World, answer, world
from support.plansamples import FrontEnd

GATE = 'nvllm.gate {"event": "passed", "seconds": 0.001}'


@pytest.fixture
def made(tmp_path: Path, front: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(startup, "POLL", 0.005)
    with world(tmp_path, front) as found:
        yield found


def rejected(made: World) -> list[Refusal]:
    """Bless, which must be rejected at the first trial: no manifest, no copy, and the evidence is kept."""
    with pytest.raises(Refused) as caught:
        made.work.run(BlessRequest(boots=5))
    assert made.held.all() == ()
    assert list((made.places.staged / made.found.plan.instance).iterdir()) == []
    assert not (made.work.evidence / "trial-2").exists()
    assert {one.cure for one in caught.value.refusals} == {
        f"ls {made.work.evidence} && nvllm bless demo --profile eager"
    }
    return list(caught.value.refusals)


def test_an_engine_that_saves_nothing(made: World) -> None:
    made.engine.cold = READY
    (refusal,) = rejected(made)
    assert (refusal.code, refusal.where) == ("NV912", f"{made.found.plan.instance}: bootstrap")
    assert refusal.expected == "an engine that saves what it compiled"
    assert made.work.store.list() == []


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        (READY, ["a line in the log that compiled code was loaded"]),
        ((LOADED, SAVED, *READY), ["nothing saved"]),
        ((LOADED, "Compiling model again due to a load failure from x", *READY), ["nothing compiled"]),
        ((LOADED.replace(CACHE, "/tmp"), *READY), ["only compiled code of the blessed cache"]),
    ],
    ids=["nothing loaded", "saved again", "compiled again", "loaded from elsewhere"],
)
def test_a_trial_without_a_signal_of_reuse(made: World, says: tuple[str, ...], expected: list[str]) -> None:
    made.engine.warm = says
    found = rejected(made)
    assert {(one.code, one.where) for one in found} == {("NV912", f"{made.found.plan.instance}: trial 1")}
    assert [one.expected for one in found] == expected


def test_a_trial_that_answers_otherwise_than_the_bootstrap(made: World, front: FrontEnd) -> None:
    def otherwise() -> None:
        front.body = answer([9, *TOKENS[1:]])

    made.engine.in_trial = otherwise
    (refusal,) = rejected(made)
    assert refusal.code == "NV912"
    assert refusal.expected.startswith("the answer of the bootstrap, 0 1 2")
    assert refusal.found.startswith("9 1 2")


def test_a_trial_that_touches_the_cache(made: World) -> None:
    def touched() -> None:
        (copy,) = [mount.source for mount in made.engine.plans[-1].mounts if mount.target == CACHE]
        Path(copy, "modelinfos").chmod(0o755)
        Path(copy, "modelinfos/extra").touch()

    made.engine.in_trial = touched
    assert {one.code for one in rejected(made)} == {"NV907"}


def test_a_trial_that_took_as_much_as_the_compile(made: World) -> None:
    """Its log and its scratch say that it loaded; the processor and the clock say that it did not."""
    made.engine.cold = (GATE, SAVED, *READY)
    made.engine.warm = (GATE, LOADED, *READY)
    made.engine.late = 40.0
    made.engine.used = (80.0, 72.0)
    (refusal,) = rejected(made)
    assert (refusal.code, refusal.where) == ("NV912", f"{made.found.plan.instance}: trial 1")
    assert refusal.expected == "a start that loads the cache, in a fraction of the time of compiling"
    assert refusal.found == "72.0 processor seconds; the bootstrap, which compiled, took 80.0"


def test_a_trial_that_leaves_compiled_code(made: World) -> None:
    made.engine.scratch = ("/tmp/torchinductor_nvllm/c4/c45.so",)
    (refusal,) = rejected(made)
    assert (refusal.code, refusal.found) == ("NV912", "/tmp/torchinductor_nvllm/c4/c45.so")
