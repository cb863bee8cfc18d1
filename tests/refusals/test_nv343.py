"""NV343, no machine: no machine of a cluster is of the class that trials count for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from nvllm.bisect.driver import dispatch
from nvllm.bisect.journal import Log
from nvllm.bisect.records import BisectStart
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.fleet.machines import ClusterNode, RemoteMachines
from nvllm.fleet.registry import Repository, RepositoryName
from nvllm.trials.bench import EngineBench
from support.bisect_world import free, start
from support.task_samples import PlayedMachines


def test_a_class_that_no_machine_has(tmp_path: Path) -> None:
    log = Log.of(start(free(2)))
    carrier = PlayedMachines([ClusterNode("1", "spark", "gpu-aarch64-1")], lambda *_: b"")
    repository = Repository(RepositoryName("http", "127.0.0.1:5000", "nvllm"), None, Silent())
    machines = RemoteMachines(
        cast("EngineBench", SimpleNamespace(progress=Silent())), log.state.start, carrier, repository, tmp_path, 8
    )
    with pytest.raises(Refused) as caught:
        dispatch(log, machines)
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV343", "the cluster")
    assert (refusal.expected, refusal.found) == ("a machine of class cpu-x86_64", "spark: gpu-aarch64-1")
    assert refusal.cure
    assert [type(one.record) for one in log.entries] == [BisectStart]
