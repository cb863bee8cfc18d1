"""What gives a container GPUs without NVIDIA's container toolkit: a specification, and a runtime that reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu import cdi

CARD, OTHER = cdi.Node("/dev/nvidia0", 195, 0), cdi.Node("/dev/nvidia1", 195, 1)
SHARED = [cdi.Node("/dev/nvidiactl", 195, 255), cdi.Node("/dev/nvidia-uvm", 510, 0)]
DRIVER = "/usr/local/nvidia"


def specification() -> dict[str, Any]:
    return cdi.specification({"GPU-1": CARD, "GPU-2": OTHER}, SHARED, [DRIVER])


def config(*environment: str) -> dict[str, Any]:
    """The configuration of a container as Docker writes it."""
    hooks = [{"path": "/proc/7/exe", "args": ["libnetwork-setkey"]}, {"path": f"/usr/local/bin/{cdi.HOOK}"}]
    return {
        "process": {"env": ["PATH=/bin", *environment]},
        "mounts": [{"destination": "/proc"}],
        "hooks": {"prestart": hooks},
        "linux": {"resources": {"devices": [{"allow": False, "access": "rwm"}], "memory": {"limit": 1}}},
    }


def test_the_specification_names_each_gpu_by_its_uuid_and_all_of_them() -> None:
    made = specification()
    nodes = {one["name"]: [node["path"] for node in one["containerEdits"]["deviceNodes"]] for one in made["devices"]}
    assert nodes == {"GPU-1": ["/dev/nvidia0"], "GPU-2": ["/dev/nvidia1"], "all": ["/dev/nvidia0", "/dev/nvidia1"]}
    assert made["kind"] == "nvidia.com/gpu"
    shared = made["containerEdits"]
    assert [node["path"] for node in shared["deviceNodes"]] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert [(one["hostPath"], one["containerPath"], one["options"][0]) for one in shared["mounts"]] == [
        (DRIVER, DRIVER, "ro")
    ]


def test_the_nodes_are_the_character_devices(tmp_path: Path) -> None:
    (tmp_path / "nvidia-caps").mkdir()
    (tmp_path / "nvidia0").touch()
    assert cdi.nodes([Path("/dev/null"), *sorted(tmp_path.iterdir())]) == [cdi.Node("/dev/null", 1, 3)]


def test_a_container_gets_the_gpus_that_its_variable_names_and_no_others() -> None:
    before = config(f"{cdi.REQUEST}GPU-2")
    after = cdi.with_gpus(before, specification())
    assert [node["path"] for node in after["linux"]["devices"]] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia1",
    ]
    rules = after["linux"]["resources"]["devices"]
    assert rules[0] == {"allow": False, "access": "rwm"}
    assert [(rule["major"], rule["minor"], rule["access"]) for rule in rules[1:]] == [
        (195, 255, "rw"),
        (510, 0, "rw"),
        (195, 1, "rw"),
    ]
    assert after["linux"]["resources"]["memory"] == {"limit": 1}
    assert [one["destination"] for one in after["mounts"]] == ["/proc", DRIVER]
    assert [Path(one["path"]).name for one in after["hooks"]["prestart"]] == ["exe"]
    assert before == config(f"{cdi.REQUEST}GPU-2")


@pytest.mark.parametrize("asked", [(), (cdi.REQUEST,), (f"{cdi.REQUEST}void",)])
def test_a_container_that_asks_for_no_gpu_stays_as_it_is(asked: tuple[str, ...]) -> None:
    assert cdi.with_gpus(config(*asked), specification()) == config(*asked)


def test_a_gpu_that_is_not_there_is_an_error() -> None:
    with pytest.raises(LookupError):
        cdi.with_gpus(config(f"{cdi.REQUEST}GPU-3"), specification())
