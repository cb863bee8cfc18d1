"""A user's own directory, adapter, chat template and key: what is planned, what is hashed, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from nvllm.core.plan import ACCESS_ARGUMENTS, KEY_FILE, decode, encode
from nvllm.serve import health, planner, servehash
from support import own_files
from support.own_files import KEY, OwnFiles
from support.plansamples import FrontEnd, edit


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner_is_the_engine: None) -> OwnFiles:
    return own_files.make(tmp_path, monkeypatch)


@pytest.fixture
def owner_is_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine of root runs as user 1000; the test's files are the test's own."""
    monkeypatch.setattr(planner, "container_user", lambda uid, gid: f"{uid}:{gid or 1000}")


def test_everything_is_mounted_and_nothing_is_refused(own: OwnFiles) -> None:
    assert own.codes() == []
    plan = own.examined().plan
    mounts = {mount.target: mount.source for mount in plan.mounts[1:]}
    run = own.places.run(plan.instance)
    assert mounts == {
        "/models/mine/config.json": str(own.model / "config.json"),
        "/adapters/pirate/adapter_config.json": str(own.adapter / "adapter_config.json"),
        "/templates/mine.jinja": str(own.project.root / own_files.TEMPLATE),
        "/access/nvllm_access.py": str(run / "nvllm_access.py"),
        KEY_FILE: str(own.key_file),
    }
    assert plan.addresses == ("0.0.0.0",)
    command = " ".join(plan.command.words)
    assert "--chat-template /templates/mine.jinja --enable-lora" in command
    assert command.endswith("--lora-modules pirate=/adapters/pirate --middleware nvllm_access.ApiKey")


def test_the_key_is_in_no_plan_and_in_no_expectation(own: OwnFiles) -> None:
    found = own.examined()
    text = json.dumps(encode(found.plan)) + planner.expectations(found.plan, found.models).decode()
    assert KEY not in text
    assert decode(encode(found.plan)) == found.plan
    assert [mount.target for mount in found.plan.mounts if mount.source == str(own.key_file)] == [KEY_FILE]


def test_a_trial_needs_no_key_and_has_the_serve_hash(own: OwnFiles) -> None:
    served, tried = own.examined().plan, own.tried().plan
    assert tried.addresses == ("127.0.0.1",)
    assert tried.access.key_file is None
    assert ACCESS_ARGUMENTS[1] not in tried.command.words
    assert KEY_FILE not in {mount.target for mount in tried.mounts}
    assert tried.serve_hash == served.serve_hash == servehash.serve_hash(served)


def test_what_is_answered_with_is_in_the_serve_hash(own: OwnFiles) -> None:
    before = own.examined().plan.serve_hash
    for path in (own.model / "config.json", own.adapter / "adapter_config.json", own.project.root / own_files.TEMPLATE):
        path.write_text("{ }")
        own.lock()
        after = own.examined().plan.serve_hash
        assert after != before, path
        before = after


def test_who_asks_and_by_which_name_is_not(own: OwnFiles) -> None:
    before = own.examined().plan.serve_hash
    own.key_file.write_text(KEY[::-1])
    edit(own.project.spec("demo"), "publish: 0.0.0.0", "publish: 127.0.0.1")
    edit(own.project.spec("demo"), "    model: mine\n", "    model: mine\n    served-name: my/Model\n")
    plan = own.examined().plan
    assert (plan.request_name, plan.serve_hash) == ("my/Model", before)
    assert plan.command.words[plan.command.words.index("--served-model-name") + 1] == "my/Model"


def test_a_directory_that_changed_is_refused_and_can_be_pinned(own: OwnFiles) -> None:
    (own.model / "config.json").write_text("changed")
    (own.adapter / "more").write_text("")
    found = [(one.code, one.cure) for one in own.examined().refusals if one.code == "NV403"]
    assert found == [("NV403", "nvllm lock demo --model mine"), ("NV403", "nvllm lock demo --model pirate")]


def test_a_directory_that_moved_needs_no_new_lock(own: OwnFiles, tmp_path: Path) -> None:
    own.model.rename(tmp_path / "moved")
    (gone,) = [one for one in own.examined().refusals if one.code == "NV401"]
    assert gone.cure == f"put the model's files into {own.model}, or correct its `path:` in images/demo.yaml"
    edit(own.project.spec("demo"), f"path: {own.model}\n", f"path: {tmp_path / 'moved'}\n")
    assert own.codes() == []


def test_an_unfit_key_file_is_refused_before_anything_starts(own: OwnFiles) -> None:
    own.key_file.chmod(0o644)
    assert own.codes() == ["NV604"]


def test_files_that_the_engines_user_cannot_read_are_refused_together(
    own: OwnFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root with umask 077 writes them: the gate found it after the start, and its cure did not help."""
    for path in (own.model / "config.json", own.adapter / "adapter_config.json", own.project.root / own_files.TEMPLATE):
        path.chmod(0o600)
    monkeypatch.setattr(planner, "container_user", lambda uid, gid: f"{uid + 1}:{gid + 1}")
    assert own.codes() == ["NV604", "NV526", "NV526", "NV526"]


def test_the_probe_shows_the_key_and_uses_the_served_name(own: OwnFiles, front: FrontEnd) -> None:
    plan = dataclasses.replace(own.examined().plan, port=front.port, served_name="my/Model")
    health.generate(plan, 5.0)
    health.ask(plan, {"prompt": "x"}, 5.0)
    assert [one["Authorization"] for one in front.headers] == [f"Bearer {KEY}"] * 2
    assert [json.loads(one)["model"] for one in front.asked] == ["my/Model"] * 2
