"""A serve as Kubernetes objects: ConfigMap, Deployment, Service and NetworkPolicy, in one file.

An init container writes what the gate expects and, where the server mounts images without the right to execute, copies
the blessed cache, hashing it. The engine's container first compares the machine (`runtime/machine.py`), then the gate
hashes cache and model through their mounts.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping
from typing import Any

from nvllm.core.plan import CONTAINER_PORT, KEY_FILE, RUN_DIRECTORY, SEEDS, LaunchPlan, Scratch
from nvllm.core.refusal import Refusal
from nvllm.export import export, mounted, texts
from nvllm.export.export import PROGRAMS_AT, Export, ExportFile, ExportSource, Guarantee, kept, not_kept

DEFAULT_SERVER = "1.36"
EXECUTABLE_IMAGES = (1, 36)
"""The first version of the server that mounts images with the right to execute what is in them."""
IMAGES_BY_DEFAULT = (1, 35)
"""The first version in which the feature gate ImageVolume is on by default."""
OLDEST = (1, 31)
"""The first version that mounts images at all, behind the feature gate ImageVolume."""

MOST = 1 << 20
"""Bytes of a ConfigMap at most."""

_PLACED, _BLESSING = "/placed", "/blessing"
_NAME = re.compile(r"[^a-z0-9-]+")


def version(text: str) -> tuple[int, int] | None:
    """Return the version of a server in TEXT, such as ``1.36``; None if it is none that images can be mounted in."""
    match = re.fullmatch(r"v?(1)\.([0-9]{1,3})(?:\.[0-9]+)?", text)
    numbers = (int(match[1]), int(match[2])) if match is not None else (0, 0)
    return numbers if numbers >= OLDEST else None


def name(plan: LaunchPlan) -> str:
    """Return the name of the objects of PLAN: a label of DNS, with the beginning of the serve hash."""
    readable = _NAME.sub("-", plan.instance.lower()).strip("-")[:48].rstrip("-")
    return f"{readable}-{plan.serve_hash[:7]}"


def guarantees(source: ExportSource, server: tuple[int, int]) -> Mapping[str, Guarantee]:
    """Return what of `export.GUARANTEES` the objects of SOURCE keep on a SERVER of that version."""
    hashing = "the gate" if server >= EXECUTABLE_IMAGES else "the init container while it copies, and the gate"
    return {
        "image": kept("by digest"),
        "cache": kept(hashing),
        "blessing": not_kept("checked when it was exported; export and apply again after a revocation"),
        "model": kept("the gate, and runtime/machine.py for files above 64 MiB"),
        "processor": kept("runtime/machine.py, before the gate"),
        "gpu": kept("runtime/machine.py asks nvidia-smi, before the gate"),
        "gpu-uuid": not_kept("the device plugin chooses; the kind of GPU is compared"),
        "gpu-alone": not_kept("one replica and strategy Recreate; time-slicing or a second Deployment voids it"),
        "memory": kept("limit equal to request, which also keeps the container from swapping"),
        "memory-available": kept("runtime/machine.py; the request reserves it"),
        "pids": not_kept(f"a Pod has no such limit; set podPidsLimit of the kubelet to {source.plan.limits.pids}"),
        "ulimits": not_kept(
            f"a Pod has no such limits; set LimitNOFILE={source.plan.limits.open_files} and LimitCORE=0 of the runtime"
        ),
        "shm": kept("emptyDir in memory with a size limit"),
        "scratch": not_kept(
            "emptyDir with a size limit, but with mode 0777, and on disk over directories of the cache"
        ),
        "hardening": kept("securityContext; the gate reads it in /proc"),
        "seccomp": kept("RuntimeDefault; the gate reads it in /proc"),
        "secrets": kept("no service account token; none is in the plan"),
        "environment": kept("the gate; the variables of the API server are removed before it"),
        "address": not_kept(
            "a Service of the cluster; the NetworkPolicy lets in Pods with the label "
            "nvllm.access of this name, if the cluster's network obeys policies",
        ),
        "key": export.key(source.plan, "a Secret of the cluster, which the comment makes"),
        "ready": kept("startupProbe by one real generation"),
        "blessed-start": not_kept("nobody reads the log; loading is forced, and nothing can be saved in the cache"),
        "start-timeout": kept(f"{export.tries(source.plan)} probes, one every {export.PROBE_EVERY} s"),
        "stall-timeout": not_kept("nobody watches the metrics"),
        "restart": not_kept(
            "a Deployment always restarts, with growing pauses and without a limit; the gate checks each"
        ),
        "drain": kept("terminationGracePeriodSeconds"),
        "log": not_kept("containerLogMaxSize of the kubelet"),
    }


def refusals(source: ExportSource) -> list[Refusal]:
    """Return why SOURCE cannot be exported as a faithful copy."""
    refused = export.refusals(source, "kubernetes")
    size = sum(len(data) for data in _data(source).values())
    if size > MOST:
        plan = source.plan
        where = f"profile {plan.profile} of image {plan.image}: launch.json"
        cure = f"nvllm export systemd {plan.image} --profile {plan.profile}"
        refused.append(Refusal("NV333", where, f"a ConfigMap of at most {MOST} bytes", f"{size} bytes", cure))
    return refused


def exported(source: ExportSource, server: tuple[int, int]) -> Export:
    """Return the export of SOURCE for SERVER. There are no `refusals`."""
    guaranteed = guarantees(source, server)
    objects = [_config_map(source), _deployment(source, server), _service(source), _policy(source)]
    key_file = source.plan.access.key_file
    made = ["kubectl", "create", "secret", "generic", _secret(source.plan), f"--from-file={_KEY}={key_file}"]
    lines = export.remarks(
        source, guaranteed, [f"Before it is applied: {shlex.join(made)}"] if key_file is not None else []
    )
    if source.tree is not None and server < IMAGES_BY_DEFAULT:
        lines += f"# A server {server[0]}.{server[1]} mounts images only with the feature gate ImageVolume.\n"
    text = lines + texts.yaml_documents(objects)
    return Export((ExportFile(f"{name(source.plan)}.yaml", text.encode()),), guaranteed)


def _meta(source: ExportSource, name_: str) -> dict[str, Any]:
    selector = {"app.kubernetes.io/name": name(source.plan)}
    return {"name": name_, "labels": selector, "annotations": export.labels(source.plan)}


def _data(source: ExportSource) -> dict[str, bytes]:
    """Return what the ConfigMap holds: the programs, and the plan's own files."""
    own = {_own(path): data for path, data in mounted.own_files(source.plan).items()}
    return {**mounted.programs(source), **own}


def _own(path: str) -> str:
    """Return the name in the ConfigMap of the file at PATH in the container."""
    return path.strip("/").replace("/", ".")


_KEY = "key"
"""The name of the API key in its Secret."""


def _secret(plan: LaunchPlan) -> str:
    return f"{name(plan)}-api-key"


def _config_name(source: ExportSource) -> str:
    """Return the name of the ConfigMap: other content has another name, so no Pod gets what it was not made for."""
    digest = hashlib.sha256(b"".join(data for _, data in sorted(_data(source).items()))).hexdigest()
    return f"{name(source.plan)}-{digest[:8]}"


def _config_map(source: ExportSource) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _meta(source, _config_name(source)),
        "immutable": True,
        "data": {path: data.decode() for path, data in sorted(_data(source).items())},
    }


def _deployment(source: ExportSource, server: tuple[int, int]) -> dict[str, Any]:
    plan = source.plan
    selector = {"app.kubernetes.io/name": name(plan)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _meta(source, name(plan)),
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},  # a rolling update would start a second engine beside the first
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": selector, "annotations": export.labels(plan)},
                "spec": _pod(source, server),
            },
        },
    }


def _pod(source: ExportSource, server: tuple[int, int]) -> dict[str, Any]:
    container = source.container
    system, _, architecture = source.platform.partition("/")
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # variables of each Service of the namespace, which the gate would refuse
        "nodeSelector": {"kubernetes.io/os": system, "kubernetes.io/arch": architecture},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": int(container.uid),
            "runAsGroup": int(container.gid),
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": source.stop_timeout,
        "initContainers": [_placing(source, server)],
        "containers": [_engine(source, server)],
        "volumes": _volumes(source),
    }


_HARDENED: Mapping[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def _mount(volume: str, path: str, sub_path: str = "", **more: Any) -> dict[str, Any]:
    return {"name": volume, "mountPath": path, **({"subPath": sub_path} if sub_path else {}), **more}


def _read_only(volume: str, path: str, sub_path: str = "") -> dict[str, Any]:
    return _mount(volume, path, sub_path, readOnly=True)


def _copied(source: ExportSource, server: tuple[int, int]) -> bool:
    return source.tree is not None and server < EXECUTABLE_IMAGES


def _placing(source: ExportSource, server: tuple[int, int]) -> dict[str, Any]:
    copied = _copied(source, server)
    return {
        "name": "place",
        "image": source.image_reference,
        "imagePullPolicy": "IfNotPresent",
        "command": export.program(source.plan, "placing.py", _PLACED, *([_BLESSING] if copied else [])),
        "resources": _resources({"memory": str(source.plan.limits.memory)}),
        "securityContext": dict(_HARDENED),
        "volumeMounts": [
            _mount("placed", _PLACED),
            _read_only("programs", PROGRAMS_AT),
            *([_read_only("blessing", _BLESSING)] if copied else []),
        ],
    }


def _resources(limits: Mapping[str, str]) -> dict[str, Any]:
    return {"requests": dict(limits), "limits": dict(limits)}


def _engine(source: ExportSource, server: tuple[int, int]) -> dict[str, Any]:
    plan, container = source.plan, source.container
    limits = {"memory": str(container.memory)}
    if container.gpus:
        limits["nvidia.com/gpu"] = str(len(container.gpus))
    return {
        "name": "engine",
        "image": source.image_reference,
        "imagePullPolicy": "IfNotPresent",  # its name is a digest, which stands for the same bytes for ever
        "command": [_literal(word) for word in container.command],
        "env": [{"name": name_, "value": _literal(text)} for name_, text in container.environment.items()],
        "ports": [{"name": "http", "containerPort": CONTAINER_PORT, "protocol": "TCP"}],
        "resources": _resources(limits),
        "securityContext": dict(_HARDENED),
        "startupProbe": {
            "exec": {"command": export.program(plan, "generation.py")},
            "periodSeconds": export.PROBE_EVERY,
            "timeoutSeconds": export.PROBE_TIMEOUT,
            "failureThreshold": export.tries(plan),
        },
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10},
        "volumeMounts": _engine_mounts(source, server),
    }


def _literal(text: str) -> str:
    """Return TEXT so that Kubernetes, which replaces ``$(NAME)``, leaves it as it is."""
    return text.replace("$", "$$")


def _engine_mounts(source: ExportSource, server: tuple[int, int]) -> list[dict[str, Any]]:
    plan = source.plan
    mounts = [
        _read_only("placed", RUN_DIRECTORY, "run"),
        _read_only("programs", PROGRAMS_AT),
        _mount("shm", "/dev/shm"),  # noqa: S108 - inside the container
        *(_mount(f"scratch-{number}", scratch.target) for number, scratch in enumerate(plan.scratch)),
    ]
    if plan.cache is not None:
        volume, top = ("placed", "cache") if _copied(source, server) else ("blessing", "")
        mounts.append(_read_only(volume, plan.cache.target, top))
        mounts += [_read_only(volume, SEEDS, top)] if plan.cache.seeds else []
    # A file by itself: the directory of a ConfigMap or a Secret also holds links, which the gate refuses.
    mounts += [_read_only("programs", path, _own(path)) for path in sorted(mounted.own_files(plan))]
    if plan.access.key_file is not None:
        mounts.append(_read_only("api-key", KEY_FILE, _KEY))
    claimed = source.models_at.startswith("pvc:")
    mounts += [
        _read_only("models", model.path, model.name) if claimed else _read_only(f"model-{number}", model.path)
        for number, model in enumerate(plan.models)
    ]
    return sorted(mounts, key=lambda mount: str(mount["mountPath"]))


def _memory(volume: str, size: int) -> dict[str, Any]:
    return {"name": volume, "emptyDir": {"medium": "Memory", "sizeLimit": str(size)}}


def _scratch(plan: LaunchPlan, volume: str, scratch: Scratch) -> dict[str, Any]:
    """Return the volume of SCRATCH.

    Over a directory of the cache it is on disk: Podman gives one in memory the mode and the owner of that directory.
    """
    if plan.cache is not None and scratch.target.startswith(f"{plan.cache.target}/"):
        return {"name": volume, "emptyDir": {"sizeLimit": str(scratch.size)}}
    return _memory(volume, scratch.size)


def _volumes(source: ExportSource) -> list[dict[str, Any]]:
    plan = source.plan
    volumes: list[dict[str, Any]] = [
        {"name": "placed", "emptyDir": {}},
        {"name": "programs", "configMap": {"name": _config_name(source), "defaultMode": 0o444}},
        _memory("shm", source.container.shared_memory),
        *(_scratch(plan, f"scratch-{number}", scratch) for number, scratch in enumerate(plan.scratch)),
    ]
    if plan.access.key_file is not None:
        # Readable by the Pod's user, as whom only the engine runs; the file's owner is root.
        volumes.append({"name": "api-key", "secret": {"secretName": _secret(plan), "defaultMode": 0o444}})
    if source.tree is not None:
        image = {"reference": source.blessing_reference, "pullPolicy": "IfNotPresent"}
        volumes.append({"name": "blessing", "image": image})
    if source.models_at.startswith("pvc:"):
        claim = {"claimName": source.models_at.removeprefix("pvc:"), "readOnly": True}
        volumes.append({"name": "models", "persistentVolumeClaim": claim})
    else:
        volumes += [
            {"name": f"model-{number}", "hostPath": {"path": f"{source.models_at}/{model.name}", "type": "Directory"}}
            for number, model in enumerate(plan.models)
        ]
    return volumes


def _service(source: ExportSource) -> dict[str, Any]:
    plan = source.plan
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(source, name(plan)),
        "spec": {
            "selector": {"app.kubernetes.io/name": name(plan)},
            "ports": [{"name": "http", "port": plan.port, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def _policy(source: ExportSource) -> dict[str, Any]:
    """Return the policy that lets in Pods of this namespace with the label ``nvllm.access``, and nothing out."""
    plan = source.plan
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _meta(source, name(plan)),
        "spec": {
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": name(plan)}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {
                    "from": [{"podSelector": {"matchLabels": {"nvllm.access": name(plan)}}}],
                    "ports": [{"port": "http", "protocol": "TCP"}],
                }
            ],
            "egress": [],
        },
    }
