"""Lines to and from a worker: what is written is what is read, and nothing else is believed."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.cache.cachetree import Tree
from nvllm.core.refusal import Refusal, Refused
from nvllm.fleet import tasks
from nvllm.fleet.tasks import (
    BootTask,
    ProofAnswer,
    ReadyAnswer,
    ReadyTask,
    RefusedAnswer,
    StatusAnswer,
    StatusTask,
    Task,
)
from support.blessings_world import TREE
from support.rows import each_row
from support.task_samples import BOOT, HOST, PROOF, RECORD, SERVED, TASK, answered, booted


@each_row("task", [TASK, ReadyTask("3" * 32, SERVED), BOOT, PROOF, StatusTask()])
def test_a_task_is_read_as_it_was_written(task: Task) -> None:
    line = tasks.task_line(task)
    assert line.count(b"\n") == 1
    assert tasks.task(line) == task


def test_answers_are_read_as_they_were_written() -> None:
    refused = Refused([Refusal("NV508", "a lock", "free", "held", "wait")])
    ready = ReadyAnswer("3" * 32, HOST, SERVED.serve_hash)
    told = (
        answered(TASK),
        booted(BOOT),
        ready,
        ProofAnswer(PROOF.task, HOST, (RECORD,)),
        StatusAnswer(HOST, ("nvllm:a",), (), ("c",)),
        tasks.refused_answer("", HOST, refused),
    )
    for one in told:
        assert tasks.answer(tasks.answer_line(one), "machine") == one
    assert isinstance(told[-1], RefusedAnswer)
    assert [one.where for one in tasks.refusals(told[-1], "gb10").refusals] == ["gb10: a lock"]


def with_tree(tree: Tree) -> BootTask:
    return replace(BOOT, compiled=replace(BOOT.compiled, tree=tree))


def with_file(path: str) -> bytes:
    return tasks.task_line(with_tree(replace(TREE, files=(replace(TREE.files[0], path=path),))))


UNSEALED = tuple(replace(one, mode="0755") for one in TREE.directories)


def changed(line: bytes, **fields: Any) -> bytes:
    return json.dumps(json.loads(line) | fields).encode() + b"\n"


@each_row(
    ("line", "where"),
    [
        (b"\n", "stdin"),
        (b"{", "stdin"),
        (b"[]", "stdin: ."),
        (b"\xff\n", "stdin"),
        (b'"' + b"a" * tasks.MOST_LINE + b'"', "stdin"),
        (changed(tasks.task_line(TASK), ask="other"), "stdin: .ask"),
        (changed(tasks.task_line(TASK), task="../x"), "stdin: .task"),
        (changed(tasks.task_line(TASK), manifest="latest"), "stdin: .manifest"),
        (changed(tasks.task_line(TASK), program="AAA"), "stdin: .program"),
        (changed(tasks.task_line(TASK), more=1), "stdin: .more"),
        (changed(tasks.task_line(PROOF), tests="latest"), "stdin: .tests"),
        (changed(tasks.task_line(PROOF), nodes=[""]), "stdin: .nodes[0]"),
        (tasks.task_line(replace(BOOT, candidate="latest")), "stdin: .candidate"),
        (with_file(path="../x"), "stdin: .compiled.tree.files[0].path"),
        (with_file(path="b/model"), "stdin: 'b/model'"),
        (tasks.task_line(with_tree(replace(TREE, directories=UNSEALED))), "stdin: .compiled.tree"),
        (changed(tasks.task_line(TASK), program=base64.b64encode(b"a" * (tasks.MOST_EVIDENCE + 1)).decode()), "stdin"),
    ],
)
def test_a_line_that_is_no_task_is_refused(line: bytes, where: str) -> None:
    with pytest.raises(Refused) as caught:
        tasks.task(line)
    assert {one.code for one in caught.value.refusals} == {"NV341"}
    assert caught.value.refusals[0].where.startswith(where)


@given(st.binary(max_size=200))
def test_no_line_ends_in_a_traceback(line: bytes) -> None:
    with pytest.raises(Refused):
        tasks.task(line)
    with pytest.raises(Refused):
        tasks.answer(line, "machine")


@each_row(
    "line",
    [
        tasks.answer_line(replace(answered(TASK), evidence="0" * 64)),
        tasks.answer_line(replace(answered(TASK), evidence="")),
        tasks.answer_line(replace(answered(TASK), content="")),
        tasks.answer_line(replace(answered(TASK), outcome="untestable")),
        tasks.answer_line(replace(answered(TASK), stage="boot")),
        changed(tasks.answer_line(answered(TASK)), outcome="fine"),
        tasks.task_line(TASK),
    ],
)
def test_an_answer_without_its_evidence_is_refused(line: bytes) -> None:
    with pytest.raises(Refused) as caught:
        tasks.answer(line, "machine")
    assert {one.code for one in caught.value.refusals} == {"NV345"}


def test_no_evidence_is_none() -> None:
    silent = replace(answered(TASK), evidence="", content="")
    assert tasks.answer(tasks.answer_line(silent), "machine") == silent
