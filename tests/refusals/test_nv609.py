"""NV609, patches conflict: two patches of a spec each apply to the source, and `nvllm lock` is asked for both."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.lock import LockedFile
from nvllm.core.paths import Project
from nvllm.core.refusal import Refused
from nvllm.core.spec import PatchChoice
from nvllm.lock import project as locking
from nvllm.lock.project import LockInputs
from nvllm.patches import seriesfile
from nvllm.sources.store import Store
from nvllm.spec import specfile
from support.series_samples import ONE, SOURCE, changed, entry, patch_text, series_directory, write
from support.specs import GOOD
from support.wheels import make_sdist


def test_a_lock_refuses_them_before_it_resolves_anything(tmp_path: Path) -> None:
    directory = series_directory(tmp_path)
    other = changed(one=(ONE[0], b"another line in its place\n"))
    first = entry(directory, 1, "first", patch_text(SOURCE, changed(one=ONE)))
    series = seriesfile.load(write(directory, first, entry(directory, 2, "second", patch_text(SOURCE, other))), "v1")
    spec = replace(specfile.parse(GOOD, "images/demo.yaml"), patches=PatchChoice("v1", ("first", "second")))
    sdist = make_sdist(tmp_path / "index", "vllm", "1.2.3", {path: text.decode() for path, text in SOURCE.items()})
    store, digest = Store(tmp_path / "store"), hashlib.sha256(sdist.read_bytes()).hexdigest()
    store.adopt(sdist, digest)
    inputs = LockInputs(Project(tmp_path), spec, series)
    archive = LockedFile(sdist.name, digest, 1, "pypi")
    with pytest.raises(Refused) as refused:
        locking.check_set(inputs, archive, store)
    (refusal,) = refused.value.refusals
    assert (refusal.code, refusal.where) == ("NV609", "images/demo.yaml: .patches.enable")
    assert refusal.expected == "second applies with first"
