"""What only the end-to-end tests share; the fixtures of the real engine are in `engine_world`."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from nvllm.core.paths import Project, places
from nvllm.core.progress import Silent
from nvllm.lock import lockdoc
from nvllm.sources import fetch
from nvllm.sources.indexes import Sources
from nvllm.sources.store import Store
from support.engine_world import IMAGE, ROOT
from support.untar import filtered


@pytest.fixture(scope="session")
def vllm_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the pinned vLLM, unpacked: from the user's own store, where it is fetched if it is not there."""
    project = Project(ROOT)
    lock = lockdoc.read(project.lock(IMAGE), project.show(project.lock(IMAGE)))
    store = Store(places(dict(os.environ)).store)
    fetch.fetch([lock.vllm.source], store, Sources(None, os.environ), Silent(), offline=False)
    directory = tmp_path_factory.mktemp("source")
    with tarfile.open(store.path(lock.vllm.source.sha256)) as tar:
        tar.extractall(directory, **filtered("data"))
    (top,) = directory.iterdir()
    return top
