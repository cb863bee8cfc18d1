"""NV211, hub refused: no such repository or revision, gated, or a file that does not come whole.

The real client asks a small hub on loopback, because the real one is out of reach where these tests run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nvllm.core.lock import LockedModel
from nvllm.core.refusal import Refusal, Refused
from nvllm.sources import hub
from support.hubserver import FIRST, REPO, WEIGHTS, Hub, git_hash, serving


def _refused(ask: Callable[[], object]) -> list[Refusal]:
    with pytest.raises(Refused) as caught:
        ask()
    assert caught.value.exit_code == 1
    assert {refusal.code for refusal in caught.value.refusals} == {"NV211"}
    return list(caught.value.refusals)


def _resolve(server: Hub, cache: Path, revision: str = "main", repo: str = REPO) -> LockedModel:
    return hub.resolve(repo, revision, cache_dir=cache, endpoint=server.endpoint)


def test_no_such_repository(tmp_path: Path) -> None:
    with serving(FIRST) as server:
        server.missing = True
        (refusal,) = _refused(lambda: _resolve(server, tmp_path))
    assert refusal.where == f"hub: {REPO}"
    assert refusal.expected == "access for you"
    assert refusal.found == "no repository of that name, or a private one (HTTP 404)"
    assert refusal.cure == "correct the repository in the image spec; if it is private, log in: hf auth login"


def test_a_repository_that_went_away_after_the_lock(tmp_path: Path) -> None:
    """One refusal, not one for each file."""
    with serving(FIRST) as server:
        locked = _resolve(server, tmp_path / "lock")
        server.missing = True
        (refusal,) = _refused(lambda: hub.download(locked, tmp_path / "cache", endpoint=server.endpoint))
    assert refusal.where == f"hub: {REPO}"


@pytest.mark.parametrize("revision", ["no-such-branch", "0123456789" * 4])
def test_no_such_revision(tmp_path: Path, revision: str) -> None:
    with serving(FIRST) as server:
        (refusal,) = _refused(lambda: _resolve(server, tmp_path, revision))
    assert refusal.expected == f"revision {revision}"
    assert refusal.found == "no such branch, tag or commit"
    assert refusal.cure == "correct the revision or the branch in the image spec"


def test_a_gated_repository(tmp_path: Path) -> None:
    with serving(FIRST) as server:
        server.gated = True
        (refusal,) = _refused(lambda: _resolve(server, tmp_path))
    assert refusal.found == "a gated repository (HTTP 403)"
    assert refusal.cure == "ask for access on the repository's page, and log in: hf auth login"


def test_a_name_that_no_repository_can_have(tmp_path: Path) -> None:
    with serving(FIRST) as server:
        (refusal,) = _refused(lambda: _resolve(server, tmp_path, repo="acme/tiny/extra"))
        assert server.requests == []
    assert refusal.found == "a name that no repository can have"
    assert refusal.cure == "write the repository as owner/name in the image spec"


def test_truncated_files_are_all_named(tmp_path: Path) -> None:
    """Whole sizes are announced, half of the bytes come."""
    with serving(FIRST) as server:
        locked = _resolve(server, tmp_path / "lock")
        server.truncated = {"config.json", WEIGHTS}
        refusals = _refused(lambda: hub.download(locked, tmp_path / "cache", endpoint=server.endpoint))
    assert [refusal.where for refusal in refusals] == [f"hub: {REPO}/config.json", f"hub: {REPO}/{WEIGHTS}"]
    assert {refusal.found for refusal in refusals} == {"a file that is cut short"}
    assert {refusal.cure for refusal in refusals} == {"run the command again"}
    blobs = tmp_path / "cache/models--acme--tiny/blobs"
    assert [path.name for path in blobs.iterdir()] == [git_hash(FIRST[".gitattributes"])]


def test_a_small_file_that_is_not_the_one_of_the_commit(tmp_path: Path) -> None:
    with serving(FIRST) as server:
        server.spoiled = {"config.json"}
        (refusal,) = _refused(lambda: _resolve(server, tmp_path))
    size = len(FIRST["config.json"])
    blob = tmp_path / "models--acme--tiny/blobs" / git_hash(FIRST["config.json"])
    assert refusal.where == f"hub: {REPO}/config.json"
    assert refusal.expected == f"git hash {git_hash(FIRST['config.json'])}"
    assert refusal.found == f"{git_hash(bytes([255]) * size)} ({size} bytes)"
    assert refusal.cure == f"rm {blob}"


@pytest.mark.parametrize("path", ["../outside.json", "/etc/passwd", "a/../../b.json", "a//b.json"])
def test_a_listed_file_that_lies_outside_the_repository(tmp_path: Path, path: str) -> None:
    with serving({**FIRST, path: b"{}"}) as server:
        (refusal,) = _refused(lambda: _resolve(server, tmp_path))
        assert server.asked("/resolve/") == 0
    assert refusal.found == repr(path)
    assert refusal.cure == "choose another repository"
