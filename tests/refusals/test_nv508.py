"""NV508, lock held: another nvllm holds the lock of this profile, GPU or port, or a container already serves it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import nvllm
from nvllm.core.refusal import Refused
from nvllm.host import checks
from nvllm.host.facts import INSTANCE_LABEL, ContainerFact
from nvllm.host.locks import Holder, Key, acquire_all
from support.host_samples import HOST, PLAN, refusals

_OTHER = """
import os, sys, time
from pathlib import Path
from nvllm.host.locks import Holder, Key, acquire_all
holder = Holder(os.getpid(), "2026-11-20T10:00:00Z", "nvllm serve cpu --profile tiny-eager", "nvllm-cpu-tiny-eager")
acquire_all(Path(sys.argv[1]), [Key("port", "8000"), Key("serve", "ab12")], holder)
print("held", flush=True)
time.sleep(60)
"""


def test_every_lock_that_another_process_holds(tmp_path: Path) -> None:
    assert nvllm.__file__ is not None
    env = {**os.environ, "PYTHONPATH": str(Path(nvllm.__file__).parents[1])}
    argv = [sys.executable, "-c", _OTHER, str(tmp_path)]
    holder = Holder(os.getpid(), "2026-11-20T10:00:05Z", "nvllm serve cpu")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=env) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"held\n"
            with pytest.raises(Refused) as caught:
                acquire_all(tmp_path, [Key("gpu", "0"), Key("port", "8000"), Key("serve", "ab12")], holder)
        finally:
            other.kill()
    assert caught.value.exit_code == 3
    port, serve = caught.value.refusals
    assert (port.code, serve.code) == ("NV508", "NV508")
    assert (port.where, serve.where) == (f"{tmp_path}/port-8000.lock", f"{tmp_path}/serve-ab12.lock")
    assert (port.expected, serve.expected) == ("a free lock of port 8000", "a free lock of serve ab12")
    assert port.found == f"pid {other.pid} (nvllm serve cpu --profile tiny-eager) since 2026-11-20T10:00:00Z"
    assert port.cure == "nvllm stop nvllm-cpu-tiny-eager"


def test_a_container_of_ours_that_already_runs() -> None:
    """On facts; with a real container it is the end-to-end suite's."""
    ours = ContainerFact(PLAN.instance, {INSTANCE_LABEL: PLAN.instance}, True, "ab" * 32)
    (found,) = refusals(checks.Subject(PLAN, replace(HOST, containers=(ours,))))
    assert (found.code, found.where) == ("NV508", "docker engine: container nvllm-sm120-lower8")
    assert found.expected == "a profile that is not being served yet"
    assert found.found == "container abababababab running"
    assert found.cure == "nvllm stop nvllm-sm120-lower8"
