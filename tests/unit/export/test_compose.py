"""The project for Compose; `tests/fleet` gives it to docker-compose."""

from __future__ import annotations

from typing import Any

import yaml

from nvllm.core.plan import PlannedGpu
from nvllm.engine import container, containers
from nvllm.export import compose
from nvllm.export.export import ExportSource
from support import export_world
from support.export_world import BLESSED, REPOSITORY, UNBLESSED
from support.plansamples import PLAN


def service(source: ExportSource) -> Any:
    return yaml.safe_load(compose.exported(source).files[0].data)["services"]["engine"]


def test_the_service_is_what_nvllm_asks_docker_for() -> None:
    found, asked = service(BLESSED), containers.options(container.of_plan(BLESSED.plan, {}), "Docker")
    for ours, theirs in {
        "user": "user",
        "read_only": "read_only",
        "cap_drop": "cap_drop",
        "security_opt": "security_opt",
        "shm_size": "shm_size",
        "mem_limit": "mem_limit",
        "memswap_limit": "memswap_limit",
        "pids_limit": "pids_limit",
        "environment": "environment",
    }.items():
        assert found[ours] == asked[theirs], ours
    assert found["ulimits"] == {one["Name"]: one["Hard"] for one in asked["ulimits"]}
    assert found["tmpfs"] == [f"{path}:{options}" for path, options in asked["tmpfs"].items()]
    assert found["image"] == f"{REPOSITORY}@{PLAN.manifest_id}"
    assert found["ports"] == [f"127.0.0.1:{PLAN.port}:8000"]
    assert found["restart"] == "no"


def test_every_mount_is_read_only_and_has_to_be_there() -> None:
    binds = {one["target"]: one for one in service(BLESSED)["volumes"]}
    assert all(one["read_only"] and one["bind"] == {"create_host_path": False} for one in binds.values())
    cache = BLESSED.plan.cache.target if BLESSED.plan.cache is not None else ""
    assert set(binds) == {"/run/nvllm", "/nvllm", cache, "/models/tiny/config.json", "/models/tiny/sub/weights"}
    assert binds[cache]["source"] == "./cache"


def test_an_older_compose_gets_what_it_knows() -> None:
    """Compose 1.29 refuses two keys; `tests/fleet` gives both files to Debian's."""
    newer, older = (yaml.safe_load(one.data) for one in compose.exported(BLESSED).files[:2])
    assert [one.path for one in compose.exported(BLESSED).files[:2]] == ["compose.yaml", "docker-compose.yaml"]
    del newer["name"]
    for mount in newer["services"]["engine"]["volumes"]:
        del mount["bind"]
    assert older == newer


def test_the_cache_is_copied_beside_it() -> None:
    assert compose.exported(BLESSED).copies_cache
    assert not compose.exported(UNBLESSED).copies_cache


def test_gpus_are_asked_for_by_uuid() -> None:
    gpus = (PlannedGpu("GPU-1", "NVIDIA GB10", "12.1", "580.95.05"),)
    (device,) = service(export_world.blessed(gpus=gpus))["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": ["GPU-1"], "capabilities": ["gpu"]}


def test_compose_replaces_nothing_in_a_value() -> None:
    assert service(export_world.blessed(environment={"A": "$HOME"}))["environment"] == {"A": "$$HOME"}
