"""What only the end-to-end tests share; the fixtures of the real engine are in `engine_world`."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from nvllm.core.lock import LockedFile
from nvllm.core.paths import places
from nvllm.core.progress import Silent
from nvllm.sources import fetch
from nvllm.sources.indexes import Sources
from nvllm.sources.store import Store
from support.engine_world import ROOT
from support.untar import filtered


@pytest.fixture(scope="session")
def vllm_sources(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The source of a version of vLLM, unpacked: from the user's own store, where it is fetched if it is not there."""
    pins = json.loads((ROOT / "tests/series/sources.json").read_text(encoding="utf-8"))

    @cache
    def source(version: str) -> Path:
        file, store = LockedFile(**pins[f"vllm-{version}"]), Store(places(dict(os.environ)).store)
        fetch.fetch([file], store, Sources(None, os.environ), Silent(), offline=False)
        directory = tmp_path_factory.mktemp("source")
        with tarfile.open(store.path(file.sha256)) as tar:
            tar.extractall(directory, **filtered("data"))
        (top,) = directory.iterdir()
        return top

    return source
