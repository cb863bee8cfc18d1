"""NV311, no compiler for kernels: the lock names none, or none that this host runs."""

from __future__ import annotations

import pytest

from nvllm.core.refusal import Refused
from nvllm.kernels import toolchain
from support import kernel_samples, locks


def test_a_lock_whose_tools_are_for_other_hosts() -> None:
    lock = kernel_samples.lock(locks.wheel("triton", "3.6.0"), locks.wheel("ziglang", "0"))
    with pytest.raises(Refused) as caught:
        toolchain.for_host(lock)
    (found,) = caught.value.refusals
    assert found.code == "NV311"
    assert found.where == "manifests/: tools of demo"
    assert found.expected.startswith("a locked wheel of triton for cp3")
    assert found.found == "none at all"


def test_targets_for_an_image_without_triton() -> None:
    with pytest.raises(Refused) as caught:
        toolchain.resolve([locks.wheel("numpy", "2")], "demo", lambda name, version: (), len)
    (found,) = caught.value.refusals
    assert (found.code, found.where, found.found) == ("NV311", "images/demo.yaml", "none")
