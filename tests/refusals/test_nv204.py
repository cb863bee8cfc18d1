"""NV204, not in the store: offline, and a locked file is not in the content store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import httpx2
import pytest

from nvllm.core.lock import LockedFile
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refusal, Refused, counted
from nvllm.sources.fetch import Answer, fetch
from nvllm.sources.store import Store
from support import locks


class Unasked:
    """A source that must not be asked anything."""

    def locate(self, file: LockedFile) -> Sequence[str]:
        raise AssertionError(f"asked for {file.path}")

    def archived(self, file: LockedFile) -> Sequence[str]:
        raise AssertionError(f"asked for {file.path}")

    def client(self) -> httpx2.Client:
        raise AssertionError("asked for a client")

    def not_offered(self, file: LockedFile, answers: Sequence[Answer]) -> Refusal:
        raise AssertionError(f"refused {file.path}")


def test_all_that_is_missing_is_named_before_any_byte_moves(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    here = LockedFile("here.whl", locks.sha("here"), 4, "pypi")
    store.partial(here.sha256).write_text("here")
    store.adopt(store.partial(here.sha256), here.sha256)
    with pytest.raises(Refused) as refused:
        fetch([here, *locks.GOOD.files], store, Unasked(), Silent(), offline=True)
    (found,) = counted(refused.value.refusals)  # one cause
    files = locks.GOOD.files
    assert (found.code, found.where) == ("NV204", str(store.root))
    assert found.found == f"not in the store, and --offline, {len(files)} times"
    named = sorted(f"{file.filename} (sha256 {file.sha256})" for file in files)
    assert found.expected.split("; ")[:5] == named[:5]
    assert found.cure == "run the command once without --offline"


def test_a_file_that_is_to_be_verified_and_is_not_here(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        Store(tmp_path).verify(locks.sha("x"))
    (found,) = refused.value.refusals
    assert (found.code, found.where, found.found) == ("NV204", str(Store(tmp_path).path(locks.sha("x"))), "no file")
