"""The evaluation of a bless: what is asked, of which trial, and what the manifest says of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.bless import blessing, evaluation
from nvllm.bless.preflight import BlessRequest
from nvllm.cache import manifest
from nvllm.cache.manifest import Manifest
from nvllm.core import canonical
from nvllm.core.evaluation import Evaluation, ProgramEvaluation, QuestionEvaluation
from nvllm.core.paths import Project
from nvllm.core.refusal import Refused
from nvllm.core.spec import BlessRules
from support import blessings_world, evaluated
from support.bless_world import World, world
from support.plansamples import FrontEnd


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return evaluated.project(tmp_path)


@pytest.fixture
def asking(tmp_path: Path, root: Path, front: FrontEnd) -> Iterator[World]:
    """A bless with an evaluation by ten questions, of which nine are answered correctly."""
    with world(tmp_path, front, evaluated.TEN) as made:
        front.at_request = evaluated.answering(front, root, right=9)
        made.work.asker, problems = evaluation.prepared(Project(root), made.places, made.found)
        assert problems == []
        yield made


def blessed(made: World) -> Manifest:
    request = BlessRequest(boots=5)
    return blessing.new_manifest(made.found, made.held, made.work.run(request), request, time.time())


def test_the_first_trial_is_asked_and_the_manifest_names_it(asking: World, root: Path, front: FrontEnd) -> None:
    new = blessed(asking)
    path = blessing.promote(asking.held, new, None, None)
    assert manifest.read(path, str(path)) == new
    assert [one.evaluation is not None for one in new.trials] == [True, False, False, False, False]
    assert evaluated.questions_asked(front) == 10
    (record,) = new.evaluations
    assert (record.correct, record.asked, record.timeouts, record.floor) == (9, 10, 0, "9/10")
    assert (record.file, record.sha256) == (evaluated.FILE, canonical.sha256_file(root / evaluated.FILE))
    assert (record.prompt, record.stop[0], record.extraction) == (
        "Question: {question}\nAnswer:",
        "Question:",
        "flexible",
    )
    assert record.answers == canonical.sha256_file(asking.work.evidence / "trial-1/answers.jsonl")


def test_a_candidate_is_asked_too(asking: World, front: FrontEnd) -> None:
    tree = asking.work.store.adopt(blessings_world.cache(asking.places.cache / "sent"), "cure")
    result = asking.work.prove(5, blessings_world.bless(tree, asking.found.plan))
    assert [one.evaluation is not None for one in result.trials] == [True, False, False, False, False]
    assert evaluated.questions_asked(front) == 10


def test_a_manifest_below_its_own_floor_is_damaged(asking: World, tmp_path: Path) -> None:
    new = blessed(asking)
    (record,) = new.evaluations
    for name, changed in {
        "fewer correct": replace(record, correct=8),
        "more correct than asked": replace(record, correct=11),
        "no floor": replace(record, floor="60/50"),
    }.items():
        wrong = replace(new, trials=(replace(new.trials[0], evaluation=changed), *new.trials[1:]))
        path = tmp_path / name / new.filename
        path.parent.mkdir()
        path.write_bytes(manifest.encode(wrong))
        with pytest.raises(Refused) as caught:
            manifest.read(path, str(path))
        assert "NV908" in {one.code for one in caught.value.refusals}, name


@pytest.mark.parametrize(("body", "found"), [("exit 0", None), ("exit 3", "0 of 1 correct")])
def test_a_program_asks(tmp_path: Path, front: FrontEnd, body: str, found: str | None) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (root / "ask.sh").write_text(f'#!/bin/sh\ntest -n "$NVLLM_ADDRESS" && {body}\n')
    (root / "ask.sh").chmod(0o755)
    with world(tmp_path, front, BlessRules(evaluation=ProgramEvaluation("program", "ask.sh"))) as made:
        made.work.asker, _ = evaluation.prepared(Project(root), made.places, made.found)
        if found is None:
            (record,) = blessed(made).evaluations
            assert (record.kind, record.correct, record.asked, record.prompt) == ("program", 1, 1, "")
            return
        with pytest.raises(Refused) as caught:
            blessed(made)
        assert [(one.code, one.found) for one in caught.value.refusals] == [("NV918", found)]


def test_what_cannot_be_asked_is_known_before_the_first_container(made: World, tmp_path: Path) -> None:
    project = Project(tmp_path)
    (tmp_path / "bad.jsonl").write_text("no question\n")
    (tmp_path / "not-executable").write_text("#!/bin/sh\n")
    rows: dict[Evaluation, str] = {
        QuestionEvaluation("questions", "missing.jsonl", "90%"): "NV109",
        QuestionEvaluation("questions", "bad.jsonl", "90%"): "NV851",
        ProgramEvaluation("program", "not-executable"): "NV802",
    }
    codes: dict[Evaluation, str] = {}
    for rules in rows:
        changed = replace(made.found, profile=replace(made.found.profile, bless=BlessRules(evaluation=rules)))
        asker, problems = evaluation.prepared(project, made.places, changed)
        assert asker is None
        codes[rules] = ",".join(one.code for one in problems)
    assert codes == rows
    assert evaluation.prepared(project, made.places, made.found) == (None, [])
