"""NV202, lock stale: the lock was made from another spec."""

from __future__ import annotations

import dataclasses

from nvllm.lock import lockdoc
from nvllm.spec import specfile
from support import locks
from support.specs import GOOD, SHOWN, spoiled


def test_a_spec_that_changed_since() -> None:
    before = specfile.inputs(specfile.parse(GOOD, SHOWN), "linux/amd64")
    lock = dataclasses.replace(locks.GOOD, inputs=before)
    now = specfile.inputs(specfile.parse(spoiled("epoch: 1760000000", "epoch: 1760000001"), SHOWN), "linux/amd64")
    (found,) = lockdoc.fresh(lock, now, locks.GOOD_SERIES)
    assert (found.code, found.where) == ("NV202", "manifests/demo.lock.json: .inputs")
    assert found.expected == f"a lock made from images/demo.yaml as it is now (inputs {now[:12]})"
    assert found.found == f"inputs {before[:12]}"
    assert found.cure == "nvllm lock demo"


def test_a_profile_needs_no_new_lock() -> None:
    lock = dataclasses.replace(locks.GOOD, inputs=specfile.inputs(specfile.parse(GOOD, SHOWN), "linux/amd64"))
    now = specfile.inputs(specfile.parse(spoiled("port: 8000", "port: 8001"), SHOWN), "linux/amd64")
    assert lockdoc.fresh(lock, now, locks.GOOD_SERIES) == []
