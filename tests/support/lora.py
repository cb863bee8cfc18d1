"""LoRA adapters of random weights for the tiny Llama, in the form of peft: `write`."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvllm.runtime.tiny_models import HIDDEN, VOCABULARY

RANK = 8
ATTENTION: Mapping[str, tuple[int, int]] = {
    f"model.layers.{layer}.self_attn.{part}": (HIDDEN, HIDDEN) for layer in range(2) for part in ("q_proj", "v_proj")
}
"""What an adapter may adapt: outputs and inputs of each."""
HEAD: Mapping[str, tuple[int, int]] = {"lm_head": (VOCABULARY, HIDDEN)}


def write(directory: Path, adapted: Mapping[str, tuple[int, int]] = ATTENTION) -> None:
    """Write into DIRECTORY an adapter of the parts ADAPTED of the tiny Llama."""
    values = random.Random(1)
    head: dict[str, Any] = {}
    body = b""
    for part, (outputs, inputs) in adapted.items():
        for name, shape in (("lora_A", (RANK, inputs)), ("lora_B", (outputs, RANK))):
            count = shape[0] * shape[1]
            data = struct.pack(f"<{count}f", *(values.uniform(-1, 1) for _ in range(count)))
            tensor = f"base_model.model.{part}.{name}.weight"
            head[tensor] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
            body += data
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    (directory / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    modules = sorted({part.rpartition(".")[2] for part in adapted})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 32, "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps({**config, "target_modules": modules}))
