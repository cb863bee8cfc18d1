"""The README's commands for a card, as they are typed there, on a host without card, toolkit, hub and index.

`tests/e2e/test_sm120.py` types them where the image was built.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.cli.main import main
from nvllm.core.lock import LockedModel
from nvllm.core.paths import Project
from nvllm.core.spec import HubModel
from nvllm.image import identity
from nvllm.lock import lockdoc
from support import engine_socket, readme
from support.engine_socket import Answer

ENDS = {
    "build sm120": {"NV204"},  # the first file that no store has
    "model make sm120 tiny-lfm2": set[str](),
    "serve sm120 --profile tiny-eager --detach": {"NV302", *readme.CARD},
    "stop nvllm-sm120-tiny-eager": {"NV107"},
    "lock sm120": {"NV209"},
    "model fetch sm120 qwen35-27b-nvfp4": {"NV202"},
    "bless sm120 --profile qwen35-27b": {"NV202", "NV302"},
    "serve sm120 --profile qwen35-27b": {"NV202", "NV302", "NV401", "NV901", *readme.CARD},
}
"""What each command comes to here, in the README's order."""


def empty(method: str, path: str, body: bytes) -> Answer:
    """Answer as an engine without images and containers: this host may have none, or one with the image."""
    if path.endswith("/info"):
        return 200, {"Driver": "overlay2", "SecurityOptions": ["name=seccomp"]}, {}
    if path.endswith("/networks/bridge"):
        return 200, {"Options": {}}, {}
    if path.partition("?")[0].endswith(("/containers/json", "/images/json")):
        return 200, [], {}
    return 404, {"message": "No such image"}, {}


def test_each_command_ends_where_the_card_the_hub_or_the_index_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    project, found = readme.project(tmp_path / "project"), {}
    with engine_socket.answering(tmp_path / "docker.sock", empty):
        for words in readme.commands("sm120"):
            main(["--project", str(project), "--platform", "linux/amd64", "--json", "--offline", *words])
            codes = {one["code"] for one in json.loads(capsys.readouterr().out).get("refusals", [])}
            found[" ".join(words)] = codes - readme.OF_THE_HOST
    assert found == ENDS
    assert [*found] == [*ENDS]


def test_the_image_stays_when_the_lock_gets_the_model_of_the_hub(tmp_path: Path) -> None:
    """Who locks the model after the build needs no other build."""
    project = Project(readme.project(tmp_path / "project"))
    before, _ = identity.load_build(project, "sm120", None)
    name, model = next((name, one) for name, one in before.spec.models.items() if isinstance(one, HubModel))
    assert name not in before.lock.models
    locked = LockedModel("huggingface", f"sha256:{'0' * 64}", (), model.repo, None, model.revision)
    lockdoc.write(project.lock("sm120"), replace(before.lock, models={**before.lock.models, name: locked}))
    after, stale = identity.load_build(project, "sm120", None)
    assert (after.build_hash, stale) == (before.build_hash, [])
