"""The models of the probes: what a GPU's kernels need of their shapes."""

from __future__ import annotations

import sys

import pytest

from nvllm.runtime import tiny_models


def test_a_gated_delta_net_has_more_value_heads_than_key_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiny_models", tiny_models)  # as an image has it on its path
    monkeypatch.syspath_prepend("tests/series/probes")
    import small_models

    model = small_models.qwen3_next()
    values, keys = (model.settings[f"linear_num_{kind}_heads"] for kind in ("value", "key"))
    size = model.settings["linear_key_head_dim"]
    assert values > keys
    assert values % keys == 0
    shapes = {name.partition("linear_attn.")[2]: shape for name, shape in model.shapes.items() if "linear_attn" in name}
    assert shapes["conv1d.weight"][0] == (2 * keys + values) * size
    assert shapes["in_proj_qkvz.weight"][0] == 2 * (keys + values) * size
    assert shapes["in_proj_ba.weight"][0] == 2 * values
    assert shapes["A_log"] == shapes["dt_bias"] == (values,)
    assert shapes["out_proj.weight"][1] == values * size
