"""Models that only probes need, as the recipes make theirs. The directory with `tiny_models` must be mounted."""

from __future__ import annotations

import sys

sys.path.insert(0, "/nvllm-test/runtime")

from tiny_models import COMMON, Architecture

KEY_HEADS, VALUE_HEADS, GDN_HEAD = 2, 4, 128
"""Of a gated delta net. With one value head for each key head a GPU's kernel of vLLM 0.21.0 refuses a compiled decode
("`a`/`b` must be contiguous in the last dim"); models have more value heads. CPU and GPU know a dimension of 128."""


def qwen3_next() -> Architecture:
    """Return a Qwen3-Next: three layers with a gated delta net and a convolution 4 wide, and one with attention."""
    hidden, inner, experts = COMMON["hidden_size"], COMMON["intermediate_size"], 2
    small, key, value = hidden, KEY_HEADS * GDN_HEAD, VALUE_HEADS * GDN_HEAD
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    shapes: dict[str, tuple[int, ...]] = {
        "lm_head.weight": (COMMON["vocab_size"], hidden),
        "model.embed_tokens.weight": (COMMON["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }

    def feed_forward(at: str, width: int) -> dict[str, tuple[int, ...]]:
        return {
            f"{at}.gate_proj.weight": (width, hidden),
            f"{at}.up_proj.weight": (width, hidden),
            f"{at}.down_proj.weight": (hidden, width),
        }

    for number, kind in enumerate(kinds):
        at = f"model.layers.{number}"
        shapes |= {f"{at}.{norm}.weight": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")}
        if kind == "linear_attention":
            net = f"{at}.linear_attn"
            shapes |= feed_forward(f"{at}.mlp", inner)
            shapes |= {
                f"{net}.A_log": (VALUE_HEADS,),
                f"{net}.dt_bias": (VALUE_HEADS,),
                f"{net}.conv1d.weight": (2 * key + value, 1, 4),
                f"{net}.in_proj_ba.weight": (2 * VALUE_HEADS, hidden),
                f"{net}.in_proj_qkvz.weight": (2 * key + 2 * value, hidden),
                f"{net}.norm.weight": (GDN_HEAD,),
                f"{net}.out_proj.weight": (hidden, value),
            }
        else:
            attention = f"{at}.self_attn"
            shapes |= {f"{attention}.{name}.weight": (hidden, hidden) for name in ("k_proj", "v_proj", "o_proj")}
            shapes |= {f"{attention}.q_proj.weight": (2 * hidden, hidden)}  # and a gate for each of its values
            shapes |= {f"{attention}.{name}.weight": (COMMON["head_dim"],) for name in ("q_norm", "k_norm")}
            # vLLM's class takes no model without an expert layer; Qwen3.5, which has none, needs torchvision.
            for expert in range(experts):
                shapes |= feed_forward(f"{at}.mlp.experts.{expert}", small)
            shapes |= feed_forward(f"{at}.mlp.shared_expert", small)
            shapes |= {f"{at}.mlp.gate.weight": (experts, hidden), f"{at}.mlp.shared_expert_gate.weight": (1, hidden)}
    settings = {
        "architectures": ["Qwen3NextForCausalLM"],
        "decoder_sparse_step": 1,
        "layer_types": kinds,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": GDN_HEAD,
        "linear_num_key_heads": KEY_HEADS,
        "linear_num_value_heads": VALUE_HEADS,
        "linear_value_head_dim": GDN_HEAD,
        "mlp_only_layers": [0, 1, 2],
        "model_type": "qwen3_next",
        "moe_intermediate_size": small,
        "num_experts": experts,
        "num_experts_per_tok": 1,
        "num_hidden_layers": len(kinds),
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "shared_expert_intermediate_size": small,
        "tie_word_embeddings": False,
    }
    return Architecture(settings, shapes)
