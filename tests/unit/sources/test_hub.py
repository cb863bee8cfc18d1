"""The hub's client against a small hub on loopback: the real one is out of reach where these tests run."""

from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import set_client_factory

from nvllm.core.lock import LockedModel
from nvllm.core.progress import Silent, Task, Unit
from nvllm.core.refusal import Refused
from nvllm.models.memo import HashCache
from nvllm.models.modeltree import located, tree_hash, verify
from nvllm.sources import fetch, hub
from support.hubserver import FIRST, REPO, SECOND, WEIGHTS, Hub, serving


def _locked(server: Hub, tmp_path: Path, revision: str = "main") -> LockedModel:
    follow = None if revision in server.commits else revision
    found = hub.resolve(REPO, revision, cache_dir=tmp_path / "lock", endpoint=server.endpoint)
    return replace(found, follow=follow)


def _refusals(locked: LockedModel, cache: Path) -> list[str]:
    return [refusal.code for refusal in verify(locked, cache, HashCache.none(), cure="none")]


def test_resolving_a_branch_states_every_file_and_downloads_the_small_ones_only(tmp_path: Path) -> None:
    with serving(FIRST) as server:
        found = hub.resolve(REPO, "main", cache_dir=tmp_path, endpoint=server.endpoint)
        assert server.asked(f"GET /{REPO}/resolve") == 2
        assert server.asked(WEIGHTS) == 0
    assert found.repo == REPO
    assert found.revision == server.branches["main"]
    assert [(file.path, file.size, file.sha256) for file in found.files] == [
        (path, len(content), hashlib.sha256(content).hexdigest()) for path, content in sorted(FIRST.items())
    ]


def test_resolving_a_commit_is_that_commit(tmp_path: Path) -> None:
    with serving(FIRST) as server:
        first = server.branches["main"]
        server.push(SECOND)
        assert hub.resolve(REPO, first, cache_dir=tmp_path, endpoint=server.endpoint).revision == first


def test_a_snapshot_as_the_lock_pins_it(tmp_path: Path) -> None:
    with serving(FIRST) as server:
        locked = _locked(server, tmp_path)
    assert (locked.kind, locked.repo, locked.follow) == ("huggingface", REPO, "main")
    assert locked.revision == server.branches["main"]
    assert locked.tree == tree_hash(locked.files)


def test_what_was_downloaded_verifies_and_is_found_file_by_file(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with serving(FIRST) as server:
        locked = _locked(server, tmp_path)
        hub.download(locked, cache, endpoint=server.endpoint)
    assert _refusals(locked, cache) == []
    found = dict(located(locked, cache, cure="none"))
    assert {path: place.read_bytes() for path, place in found.items()} == FIRST
    assert {place.parent for place in found.values()} == {cache / "models--acme--tiny" / "blobs"}


def test_the_user_of_a_container_can_read_what_a_strict_umask_left_to_us_alone(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    before = os.umask(0o077)
    try:
        with serving(FIRST) as server:
            locked = _locked(server, tmp_path)
            hub.download(locked, cache, endpoint=server.endpoint)
    finally:
        os.umask(before)
    assert {place.stat().st_mode & 0o777 for _, place in located(locked, cache, cure="none")} == {0o644}
    assert (cache / "models--acme--tiny").stat().st_mode & 0o077 == 0  # on the host nobody else gets to them


def test_nothing_but_the_locked_files_is_downloaded(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with serving({**FIRST, "a[1].bin": b"pattern", "a1.bin": b"not asked for"}) as server:
        locked = _locked(server, tmp_path)
        few = tuple(file for file in locked.files if file.path in {"a[1].bin", "config.json"})
        locked = replace(locked, files=few, tree=tree_hash(few))
        hub.download(locked, cache, endpoint=server.endpoint)
    assert _refusals(locked, cache) == []


def test_what_the_cache_holds_is_not_asked_for_again(tmp_path: Path) -> None:
    with serving(FIRST) as server:
        locked = _locked(server, tmp_path)
        hub.download(locked, tmp_path / "cache", endpoint=server.endpoint)
        before = server.asked("/resolve/")
        hub.download(locked, tmp_path / "cache", endpoint=server.endpoint)
        assert server.asked("/resolve/") == before


def test_a_branch_that_moves_changes_the_next_lock_and_nothing_else(tmp_path: Path) -> None:
    """Serving with the old lock asks the hub for nothing; with the new lock it refuses the old snapshot."""
    cache = tmp_path / "cache"
    with serving(FIRST) as server:
        old = _locked(server, tmp_path)
        hub.download(old, cache, endpoint=server.endpoint)
        second = server.push(SECOND)
        new = _locked(server, tmp_path)
        assert new.revision == second != old.revision
        assert new.tree != old.tree

        asked = len(server.requests)
        assert _refusals(old, cache) == []
        (refusal,) = verify(new, cache, HashCache.none(), cure="none")
        assert (refusal.code, refusal.expected) == ("NV402", f"revision {second}")
        assert len(server.requests) == asked

        hub.download(new, cache, endpoint=server.endpoint)
        assert _refusals(new, cache) == _refusals(old, cache) == []


def test_a_branch_that_moves_while_it_is_resolved_gives_no_mixture(tmp_path: Path) -> None:
    with serving(FIRST) as server:
        first = server.branches["main"]
        server.next = SECOND
        found = hub.resolve(REPO, "main", cache_dir=tmp_path, endpoint=server.endpoint)
        assert server.branches["main"] != first
        assert found == hub.resolve(REPO, first, cache_dir=tmp_path / "again", endpoint=server.endpoint)


def test_wrong_bytes_of_a_large_file_pass_the_client_and_not_the_verification(tmp_path: Path) -> None:
    with serving(FIRST) as server:
        locked = _locked(server, tmp_path)
        server.spoiled = {WEIGHTS}
        hub.download(locked, tmp_path / "cache", endpoint=server.endpoint)
    (refusal,) = verify(locked, tmp_path / "cache", HashCache.none(), cure="none")
    assert refusal.code == "NV403"
    assert refusal.where.endswith(WEIGHTS)
    assert refusal.cure == f"hf download {REPO} --revision {locked.revision} --force-download"


class Counting(Silent):
    """Progress that remembers its totals."""

    def __init__(self) -> None:
        self.total = self.done = 0

    @contextmanager
    def task(self, label: str, total: int | None, unit: Unit) -> Iterator[Task]:
        self.total += total or 0
        yield self

    def advance(self, amount: int) -> None:
        self.done += amount


def test_progress_ends_at_its_total_whether_files_come_or_are_there(tmp_path: Path) -> None:
    with serving(FIRST) as server:
        locked = _locked(server, tmp_path)
        for _ in range(2):
            progress = Counting()
            hub.download(locked, tmp_path / "cache", endpoint=server.endpoint, progress=progress)
            assert progress.done == progress.total == sum(map(len, FIRST.values()))


def test_the_client_writes_nothing_to_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(FIRST) as server:
        hub.download(_locked(server, tmp_path), tmp_path / "cache", endpoint=server.endpoint)
    assert capfd.readouterr() == ("", "")


def test_a_token_goes_to_the_hub_and_into_no_message(tmp_path: Path) -> None:
    with serving(FIRST) as server:
        server.gated = True
        with pytest.raises(Refused) as caught:
            hub.resolve(REPO, "main", cache_dir=tmp_path, endpoint=server.endpoint, token="hf_secret")
    assert "hf_secret" in server.tokens
    assert "hf_secret" not in repr(caught.value.refusals) + str(caught.value)


def test_a_closed_hub_cannot_resolve(tmp_path: Path) -> None:
    with serving(FIRST) as server:
        locked = _locked(server, tmp_path)
    for ask in (
        lambda: hub.resolve(REPO, "main", cache_dir=tmp_path, endpoint=server.endpoint),
        lambda: hub.download(locked, tmp_path / "cache", endpoint=server.endpoint),
    ):
        with pytest.raises(Refused) as caught:
            ask()
        (refusal,) = caught.value.refusals
        assert (refusal.code, refusal.where) == ("NV209", f"hub: {REPO}")
        assert (refusal.expected, refusal.found) == ("an answer of the hub", "none (ConnectError)")
        assert refusal.cure == "check the network and the proxy, then run the command again"


def test_a_hub_that_is_down_cannot_resolve(tmp_path: Path) -> None:
    with serving(FIRST) as server:
        server.broken = True
        with pytest.raises(Refused) as caught:
            hub.resolve(REPO, "main", cache_dir=tmp_path, endpoint=server.endpoint)
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.found) == ("NV209", "HTTP 500")
    assert refusal.cure == "wait a little, then run the command again"


def test_offline_mode_is_respected_and_named(tmp_path: Path) -> None:
    """In a process of its own: the client reads its switch once, when it is imported."""
    program = (
        "import sys, pathlib\n"
        "from nvllm.sources import hub\n"
        "from nvllm.core.refusal import Refused\n"
        "try:\n"
        "    hub.resolve(sys.argv[1], 'main', cache_dir=pathlib.Path(sys.argv[2]), endpoint=sys.argv[3])\n"
        "except Refused as refused:\n"
        "    print(*[(r.code, r.found, r.cure) for r in refused.refusals])\n"
    )
    with serving(FIRST) as server:
        done = subprocess.run(
            [sys.executable, "-c", program, REPO, tmp_path, server.endpoint],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert server.requests == []
    cure = "unset HF_HUB_OFFLINE TRANSFORMERS_OFFLINE"
    assert done.stdout.strip() == str(("NV209", "the environment says to stay offline", cure))


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the cache should be")
    with serving(FIRST) as server, pytest.raises(Refused) as caught:
        hub.resolve(REPO, "main", cache_dir=tmp_path / "cache", endpoint=server.endpoint)
    for refusal in caught.value.refusals:
        assert refusal.code == "NV209"
        assert refusal.expected.startswith(f"to write {tmp_path / 'cache'}")
        assert refusal.found == "Not a directory"


@pytest.mark.parametrize(
    "answer",
    [b"", b"[" * 20_000, b"5", b"{}", b'{"id": "x", "siblings": 5}', b'{"id": "x", "sha": 5}', b"9" * 5000],
)
def test_an_answer_of_another_form(tmp_path: Path, answer: bytes) -> None:
    assert _refused_for(tmp_path, answer, {}) == "NV211"


def test_an_answer_with_a_content_coding_or_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(b" " * 10**6)
    assert _refused_for(tmp_path, packed, {"Content-Encoding": "gzip"}) == "NV211"
    monkeypatch.setattr(fetch, "PAGE", 1000)
    assert _refused_for(tmp_path, b" " * 2000, {}) == "NV211"


def _refused_for(tmp_path: Path, answer: bytes, headers: dict[str, str]) -> str:
    """Return the code with which a hub is refused that answers with the body ANSWER and HEADERS."""
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, stream=httpx2.ByteStream(answer), headers=headers))
    set_client_factory(lambda: httpx2.Client(transport=transport))
    try:
        with pytest.raises(Refused) as caught:
            hub.resolve(REPO, "main", cache_dir=tmp_path, endpoint="http://hub")
    finally:
        set_client_factory(httpx2.Client)
    (refusal,) = caught.value.refusals
    return refusal.code
