"""The objects for Kubernetes: names, mounts for each version of the server, and what they keep of the hardening."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvllm.cache import cachetree
from nvllm.cache.cachetree import TreeDirectory, TreeFile
from nvllm.core.plan import PlannedGpu
from nvllm.export import export, kubernetes
from nvllm.export.export import ExportSource
from nvllm.serve import planner
from support import export_world
from support.export_world import BLESSED, BLESSING, REPOSITORY, UNBLESSED
from support.plansamples import PLAN
from support.rows import each_row, samples

EXECUTABLE, COPIED = (1, 36), (1, 35)


def objects(source: ExportSource, server: tuple[int, int]) -> dict[str, Any]:
    """Return the objects of the export of SOURCE by their kind."""
    (file,) = kubernetes.exported(source, server).files
    return {one["kind"]: one for one in yaml.safe_load_all(file.data)}


def pod(source: ExportSource, server: tuple[int, int]) -> Any:
    return objects(source, server)["Deployment"]["spec"]["template"]["spec"]


def mounts(container: Any) -> dict[str, tuple[str, str, bool]]:
    """Return volume, path in it and whether it is read-only, of each mount of CONTAINER by its path."""
    return {
        one["mountPath"]: (one["name"], one.get("subPath", ""), one.get("readOnly", False))
        for one in container["volumeMounts"]
    }


@each_row(
    ("text", "found"),
    [("1.31", (1, 31)), ("v1.36.2", (1, 36)), ("1.37.0", (1, 37)), ("1.30", None), ("2.0", None), ("latest", None)],
)
def test_a_version_is_one_that_mounts_images(text: str, found: tuple[int, int] | None) -> None:
    assert kubernetes.version(text) == found


@each_row("instance", ["nvllm-gb10-phaseE-off", "nvllm-a_b.c", "n" * 90])
def test_a_name_is_a_label_of_dns(instance: str) -> None:
    found = kubernetes.name(dataclasses.replace(PLAN, instance=instance))
    assert len(found) <= 56  # a ConfigMap's is nine longer, and a Pod's is taken from its Deployment's
    assert found == found.lower()
    assert set(found) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert found.endswith(f"-{PLAN.serve_hash[:7]}")


def test_an_image_is_mounted_where_its_code_can_be_executed() -> None:
    found = pod(BLESSED, EXECUTABLE)
    target = BLESSED.plan.cache.target if BLESSED.plan.cache is not None else ""
    (engine,), (placing,) = found["containers"], found["initContainers"]
    assert mounts(engine)[target] == ("blessing", "", True)
    assert placing["command"][-1] == "/placed"
    assert {"name": "blessing", "image": {"reference": f"{REPOSITORY}@{BLESSING}", "pullPolicy": "IfNotPresent"}} in (
        found["volumes"]
    )


def test_a_cache_is_copied_where_it_cannot() -> None:
    found = pod(BLESSED, COPIED)
    target = BLESSED.plan.cache.target if BLESSED.plan.cache is not None else ""
    (engine,), (placing,) = found["containers"], found["initContainers"]
    assert mounts(engine)[target] == ("placed", "cache", True)
    assert mounts(placing)["/blessing"] == ("blessing", "", True)
    assert placing["command"][-2:] == ["/placed", "/blessing"]
    (old,) = kubernetes.exported(BLESSED, (1, 31)).files
    assert b"# A server 1.31 mounts images only with the feature gate ImageVolume.\n" in old.data


def test_a_cache_with_a_directory_that_the_engine_writes_into_is_mounted_twice() -> None:
    tree = cachetree.of(
        [TreeFile("a/inductor_cache/x.so", 4, "0555", "d" * 64)],
        [TreeDirectory(".", "0555"), TreeDirectory("a", "0555"), TreeDirectory("a/inductor_cache", "0755")],
    )
    plan = planner.mounting(planner.loading(PLAN, tree), Path("/host/staged/cache"))
    source = dataclasses.replace(BLESSED, plan=plan, tree=tree)
    for server, volume, path in ((EXECUTABLE, "blessing", ""), (COPIED, "placed", "cache")):
        (engine,) = pod(source, server)["containers"]
        assert mounts(engine)["/blessed"] == (volume, path, True)


def test_nothing_is_writable_but_scratch() -> None:
    found = pod(BLESSED, EXECUTABLE)
    (engine,) = found["containers"]
    writable = {path for path, (_, _, read_only) in mounts(engine).items() if not read_only}
    assert writable == {"/dev/shm", *(one.target for one in BLESSED.plan.scratch)}
    sizes = {one["name"]: one["emptyDir"].get("sizeLimit") for one in found["volumes"] if "emptyDir" in one}
    assert sizes["shm"] == str(BLESSED.plan.limits.shared_memory)
    assert all(sizes[f"scratch-{at}"] == str(one.size) for at, one in enumerate(BLESSED.plan.scratch))


def test_scratch_is_in_memory_but_over_a_directory_of_the_cache() -> None:
    """Podman gives an emptyDir in memory the mode and the owner of the directory below it, which nobody may write."""
    volumes = {one["name"]: one.get("emptyDir", {}) for one in pod(BLESSED, EXECUTABLE)["volumes"]}
    cache = BLESSED.plan.cache.target if BLESSED.plan.cache is not None else ""
    over = [one.target.startswith(f"{cache}/") for one in BLESSED.plan.scratch]
    assert set(over) == {True, False}
    on_disk = ["medium" not in volumes[f"scratch-{number}"] for number in range(len(over))]
    assert on_disk == over


def test_the_hardening_of_the_plan() -> None:
    found = pod(BLESSED, COPIED)
    assert found["enableServiceLinks"] is False
    assert found["automountServiceAccountToken"] is False
    assert found["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1234,
        "runAsGroup": 1235,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for one in (*found["containers"], *found["initContainers"]):
        assert one["image"] == f"{REPOSITORY}@{PLAN.manifest_id}"
        assert one["resources"]["limits"] == one["resources"]["requests"]
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }


def test_gpus_are_asked_for_by_number() -> None:
    gpus = (PlannedGpu("GPU-1", "NVIDIA GB10", "12.1", "580.95.05"),) * 2
    (engine,) = pod(export_world.blessed(gpus=gpus), EXECUTABLE)["containers"]
    assert engine["resources"]["limits"]["nvidia.com/gpu"] == "2"


def test_models_come_from_the_node_or_from_a_claim() -> None:
    assert {"name": "model-0", "hostPath": {"path": "/var/lib/nvllm/models/tiny", "type": "Directory"}} in (
        pod(UNBLESSED, EXECUTABLE)["volumes"]
    )
    claimed = pod(dataclasses.replace(UNBLESSED, models_at="pvc:models"), EXECUTABLE)
    assert mounts(claimed["containers"][0])["/models/tiny"] == ("models", "tiny", True)
    assert claimed["volumes"][-1] == {
        "name": "models",
        "persistentVolumeClaim": {"claimName": "models", "readOnly": True},
    }


def test_other_content_is_another_config_map() -> None:
    one, other = (objects(source, EXECUTABLE)["ConfigMap"] for source in (BLESSED, export_world.blessed(sentinels=())))
    assert one["immutable"] is True
    assert one["metadata"]["name"] != other["metadata"]["name"]
    assert one["data"]["launch.json"] != other["data"]["launch.json"]


def test_kubernetes_replaces_nothing_in_a_value() -> None:
    source = export_world.blessed(environment={"A": "$(PATH) $$"})
    (engine,) = pod(source, EXECUTABLE)["containers"]
    assert engine["env"] == [{"name": "A", "value": "$$(PATH) $$$$"}]


def test_a_start_has_as_many_probes_as_it_may_take() -> None:
    (engine,) = pod(BLESSED, EXECUTABLE)["containers"]
    probe = engine["startupProbe"]
    assert probe["exec"]["command"][-1] == "/nvllm/generation.py"
    assert probe["failureThreshold"] * probe["periodSeconds"] >= BLESSED.plan.limits.start_timeout
    assert export.tries(BLESSED.plan) == probe["failureThreshold"]


def test_a_config_map_has_a_largest_size() -> None:
    files = [TreeFile(f"a/{number:05}/model", 8, "0444", "c" * 64) for number in range(9000)]
    source = dataclasses.replace(BLESSED, tree=cachetree.of(files, BLESSED.tree.directories if BLESSED.tree else ()))
    (refusal,) = kubernetes.refusals(source)
    assert (refusal.code, refusal.expected) == ("NV333", f"a ConfigMap of at most {1 << 20} bytes")
    assert kubernetes.refusals(BLESSED) == []


def test_only_labelled_pods_reach_the_engine_and_it_reaches_nothing() -> None:
    policy = objects(BLESSED, EXECUTABLE)["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["egress"] == []
    assert [one["from"] for one in policy["ingress"]] == [
        [{"podSelector": {"matchLabels": {"nvllm.access": kubernetes.name(BLESSED.plan)}}}]
    ]


@pytest.mark.parametrize("minor", samples([31, 37], [35, 36]))
@pytest.mark.parametrize("source", [BLESSED, UNBLESSED, dataclasses.replace(BLESSED, models_at="pvc:models")])
def test_the_schemas_of_kubernetes_take_every_object(source: ExportSource, minor: int) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    for document in objects(source, (1, minor)).values():
        validate(document, f"1.{minor}", strict=True)
