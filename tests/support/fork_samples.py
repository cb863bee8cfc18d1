"""A manifest of the nvllm fork in both schemas, and the cache that it lists."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

IMAGE = "sha256:a3f3f609a8ec873b0c8f6ddeb71573514eb84bf41b814ac82303d998a6ac5b88"
GOLDEN = "e6d32b41c46842c97f877339e86c79d6cc11004a238bef32f2cd3fdb73ce28db"
CONFIG: dict[str, Any] = {
    "model_id": "ig1/Qwen3.5-27B-NVFP4",
    "kv_cache_dtype": "fp8_e4m3",
    "attention_backend": "CUTE_PAGED",
    "cudagraph_mode": "FULL_AND_PIECEWISE",
    "cudagraph_capture_sizes": [1],
    "max_num_seqs": 1,
    "max_model_len": 16384,
    "max_num_batched_tokens": 65536,
    "cute_phase_e_fusion": 1,
    "cute_phase_e_layers": "0,1,2,3,4,5,6,7",
    "cute_phase_e_fallback_raise": 1,
    "cute_full_graph_probe": 0,
    "cute_wo_reset_log": 0,
    "cute_dispatch_audit": 0,
    "cute_mlp_fusion": 1,
    "cute_attn_fusion": 1,
    "model_revision_resolved": "4c546624f1fa8b77f5b7cfb3b6c96bf46d25c3a9",
}
CONTENT = {"model": b"an artefact", "graph/graph.py": b"code", "kernels/07/a.o": b"object"}
HOST = "/home/somebody/.cache/blessed/e6d32b4"


def entry(path: str, data: bytes, **more: str) -> dict[str, Any]:
    sha256 = hashlib.sha256(data).hexdigest()
    return {"relative_path": path, "sha256": sha256, "size_bytes": len(data), "role": "aot_model", **more}


def document(schema: int) -> dict[str, Any]:
    """Return a manifest of the fork with SCHEMA over CONTENT."""
    mount = {"host_path": HOST, "container_path": "/root/.cache/vllm", "mode": "ro"}
    made: dict[str, Any] = {
        "schema_version": schema,
        "config_hash": GOLDEN,
        "human_label": "lower8",
        "blessed_at": "2026-05-01T18:22:45Z",
        "blessed_by": "somebody@somewhere",
        "blessed_image_id": IMAGE,
        "config": copy.deepcopy(CONFIG),
        "validation": {
            "trials": 5, "trials_passed": 5, "c2_replay_n_replays_per_trial": 8, "unsafe_dev_trials": False,
        },
        "replaces_manifest": None,
    }  # fmt: skip
    if schema == 1:
        return made | {"mount": mount, "files": [entry(path, data) for path, data in CONTENT.items()]}
    kernels = {"id": "kernels", "host_path": f"{HOST}/kernels", "container_path": "/opt/kernels", "mode": "ro"}
    files = [
        entry(path.removeprefix("kernels/"), data, mount_id="kernels" if path.startswith("kernels/") else "cache")
        for path, data in CONTENT.items()
    ]
    return made | {"mounts": [{"id": "cache", **mount}, kernels], "files": files}


def fork_cache(root: Path) -> Path:
    for path, data in CONTENT.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    for place in (root, *root.rglob("*")):
        place.chmod(0o755 if place.is_dir() else 0o644)
    return root
