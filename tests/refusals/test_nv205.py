"""NV205, wrong bytes: a file does not have the sha256 that the lock names."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from nvllm.core.lock import LockedFile
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refusal, Refused
from nvllm.sources.fetch import fetch
from nvllm.sources.indexes import Sources
from nvllm.sources.store import Store
from support.loopback import Page, Site

GOOD = b"the locked bytes"
NAME = "demo-1.0-py3-none-any.whl"
LOCKED = LockedFile(NAME, hashlib.sha256(GOOD).hexdigest(), len(GOOD), "pypi")


def fetched(site: Site, store: Store, *, hashes: bool, body: bytes) -> Refusal:
    url = site.index("demo", {NAME: body}, hashes=hashes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("PIP_INDEX_URL", url)
        with pytest.raises(Refused) as refused:
            fetch([LOCKED], store, Sources(None, {}), Silent(), offline=False)
    (found,) = refused.value.refusals
    assert (found.code, found.where) == ("NV205", f"index pypi: {NAME}")
    assert LOCKED.sha256 in found.expected
    assert found.cure.startswith("do not use this index")
    assert store.list() == []
    return found


def test_an_index_that_says_another_hash_is_refused_before_the_download(site: Site, tmp_path: Path) -> None:
    found = fetched(site, Store(tmp_path), hashes=True, body=b"evil bytes here!")
    assert found.found == f"the index says sha256 {hashlib.sha256(b'evil bytes here!').hexdigest()}"
    assert site.bytes_of(f"/files/{NAME}") == 0


def test_other_bytes_of_the_same_length(site: Site, tmp_path: Path) -> None:
    store = Store(tmp_path)
    found = fetched(site, store, hashes=False, body=b"evil bytes here!")
    assert found.found == f"sha256 {hashlib.sha256(b'evil bytes here!').hexdigest()}"
    assert not store.partial(LOCKED.sha256).exists()


def test_a_server_that_sends_more_is_cut_off(site: Site, tmp_path: Path) -> None:
    huge = GOOD + b"x" * 30_000_000
    found = fetched(site, Store(tmp_path), hashes=False, body=huge)
    assert found.found == f"more than {len(GOOD)} bytes"
    assert site.bytes_of(f"/files/{NAME}") < len(huge)


def test_wrong_bytes_after_a_resumed_download_are_tried_once_from_the_start(site: Site, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.partial(LOCKED.sha256).write_bytes(GOOD[:4])
    fetched(site, store, hashes=False, body=b"evil bytes here!")
    assert [start for path, start, _ in site.served if path.startswith("/files/")] == [4, 0]


def test_a_file_that_was_damaged_in_the_store(site: Site, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.partial(LOCKED.sha256).write_bytes(GOOD)
    place = store.adopt(store.partial(LOCKED.sha256), LOCKED.sha256)
    place.chmod(0o644)
    place.write_bytes(GOOD[:-1] + b"!")
    with pytest.raises(Refused) as refused:
        store.verify(LOCKED.sha256)
    (found,) = refused.value.refusals
    assert (found.code, found.where, found.expected) == ("NV205", str(place), f"sha256 {LOCKED.sha256}")
    assert found.found.endswith("; the damaged file was removed")
    site.pages["/again"] = Page(GOOD)
    assert not place.exists()


def test_bytes_that_may_not_enter_the_store(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.partial(LOCKED.sha256).write_bytes(b"evil bytes here!")
    with pytest.raises(Refused) as refused:
        store.adopt(store.partial(LOCKED.sha256), LOCKED.sha256)
    (found,) = refused.value.refusals
    assert (found.code, found.expected) == ("NV205", f"sha256 {LOCKED.sha256}")
    assert found.cure.startswith("fetch again")
    assert not store.partial(LOCKED.sha256).exists()
    assert store.list() == []
