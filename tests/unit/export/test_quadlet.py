"""The unit for Quadlet; `tests/fleet` gives it to Podman's own generator."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from nvllm.cache import cachetree
from nvllm.cache.cachetree import TreeDirectory, TreeFile
from nvllm.core.plan import CACHE, PlannedGpu
from nvllm.export import export, quadlet
from nvllm.export.export import ExportSource
from nvllm.serve import planner
from support import export_world
from support.export_world import BLESSED, BLESSING, REPOSITORY, UNBLESSED
from support.plansamples import PLAN


def settings(source: ExportSource) -> dict[str, list[str]]:
    """Return the settings of the unit of SOURCE, each with its texts in order."""
    found: dict[str, list[str]] = {}
    for line in quadlet.exported(source).files[0].data.decode().splitlines():
        name, separator, text = line.partition("=")
        if separator and not line.startswith("#"):
            found.setdefault(name, []).append(text)
    return found


def test_the_unit_is_the_plan() -> None:
    found, limits = settings(BLESSED), BLESSED.plan.limits
    assert (found["Image"], found["Pull"]) == ([f"{REPOSITORY}@{PLAN.manifest_id}"], ["missing"])
    assert (found["User"], found["Group"]) == (["1234"], ["1235"])
    assert found["PublishPort"] == [f"127.0.0.1:{PLAN.port}:8000"]
    assert (found["PidsLimit"], found["ShmSize"]) == ([str(limits.pids)], [str(limits.shared_memory)])
    assert found["Ulimit"] == ["core=0:0", "nofile=16384:16384"]
    assert (found["ReadOnly"], found["DropCapability"], found["NoNewPrivileges"]) == (["true"], ["all"], ["true"])
    assert found["TimeoutStartSec"] == [str(limits.start_timeout)]
    assert [one.partition(":")[0] for one in found["Tmpfs"]] == [one.target for one in BLESSED.plan.scratch]


def test_what_is_mounted_is_read_only() -> None:
    found = settings(BLESSED)
    assert all(one.endswith(":ro") for one in found["Volume"])
    assert [one.split(":")[1] for one in found["Volume"]] == [
        "/run/nvllm",
        "/nvllm",
        "/models/tiny/config.json",
        "/models/tiny/sub/weights",
    ]
    cache = BLESSED.plan.cache.target if BLESSED.plan.cache is not None else ""
    assert found["Mount"] == [f"type=image,source={REPOSITORY}@{BLESSING},destination={cache},rw=false"]
    assert "Mount" not in settings(UNBLESSED)


def test_a_gpu_is_asked_for_by_uuid() -> None:
    gpus = (PlannedGpu("GPU-1", "NVIDIA GB10", "12.1", "580.95.05"),)
    assert settings(export_world.blessed(gpus=gpus))["AddDevice"] == ["nvidia.com/gpu=GPU-1"]


def test_systemd_replaces_nothing_in_a_value() -> None:
    source = export_world.blessed(environment={"A": "50% of $HOME"})
    assert settings(source)["Environment"] == ['"A=50%% of $$HOME"']


def test_a_cache_with_a_directory_that_the_engine_writes_into_is_mounted_twice() -> None:
    tree = cachetree.of(
        [TreeFile("a/inductor_cache/x.so", 4, "0555", "d" * 64)],
        [TreeDirectory(".", "0555"), TreeDirectory("a", "0555"), TreeDirectory("a/inductor_cache", "0755")],
    )
    plan = planner.mounting(planner.loading(PLAN, tree), Path("/host/staged/cache"))
    source = dataclasses.replace(BLESSED, plan=plan, tree=tree)
    assert export.refusals(source, "quadlet") == []
    mounts = [one.split(",") for one in settings(source)["Mount"]]
    assert [one[2] for one in mounts] == [f"destination={CACHE}", "destination=/blessed"]
    assert mounts[0][:2] == mounts[1][:2]
