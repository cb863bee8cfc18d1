"""NV402, wrong revision: the local model is another revision than the locked one.

The cache is written by the real client, from a small hub on loopback.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.refusal import Refusal, Refused
from nvllm.models.memo import HashCache
from nvllm.models.modeltree import located, verify
from nvllm.sources import hub
from support.hubserver import FIRST, REPO, SECOND, serving


def test_an_unpinned_download_left_another_revision(tmp_path: Path) -> None:
    """This is what a user has who ran the engine, or `hf download`, without a revision."""
    with serving(FIRST) as server:
        first = server.branches["main"]
        server.fetch_unpinned("config.json", tmp_path)
        second = server.push(SECOND)
        locked = hub.resolve(REPO, "main", cache_dir=tmp_path / "lock", endpoint=server.endpoint)
    (refusal,) = verify(locked, tmp_path, HashCache.none(), cure="none")
    assert refusal == Refusal(
        "NV402",
        str(tmp_path / "models--acme--tiny"),
        f"revision {second}",
        f"only {first}; refs/main is {first}",
        f"hf download {REPO} --revision {second}",
    )
    with pytest.raises(Refused) as caught:
        located(locked, tmp_path, cure="none")
    assert list(caught.value.refusals) == [refusal]
    assert caught.value.exit_code == 3
