"""A LoRA adapter in the real engine of the default image: whose log-probabilities a prompt gets.

The adapter adapts the head too, so that a score tells which adapter made it. What is asked alone is alone in its step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nvllm.runtime import tiny_models
from support import lora
from support.series_trees import ENGINE, Printed, Tree, carried

pytestmark = [
    pytest.mark.series,
    pytest.mark.nvllm_host,
    pytest.mark.nvllm_error("LookupError", "TypeError", "FileNotFoundError"),
]

PATHS = ("vllm/v1/worker/gpu_model_runner.py", "vllm/lora/ops/torch_ops/lora_ops.py")
SITE = "/opt/venv/lib/python3.11/site-packages"
NEAR = 0.02
"""How much of a log-probability it may be off: the batch decides how bfloat16 is rounded."""


@pytest.fixture(scope="module")
def scored(
    trees: Callable[..., Tree], container: Callable[..., Printed], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What `probes/lora.py` finds on the image's own files, those that adapters need as the series has them."""
    given = tmp_path_factory.mktemp("lora")
    for name in ("model", "adapter"):
        (given / name).mkdir()
    tiny_models.write(tiny_models.ARCHITECTURES["tiny-llama"], given / "model")
    lora.write(given / "adapter", {**lora.ATTENTION, **lora.HEAD})
    # poison changes files that the image has as upstream made them
    tree = trees(ENGINE, *(patch for patch in carried(ENGINE) if patch != "poison"))
    mounts = {given: "/given", **{tree.root / path: f"{SITE}/{path}" for path in PATHS}}
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    return container("lora.py", mounts, environment, ["/given/model", "/given/adapter"]).result


def test_prompts_that_are_scored_together_end_no_engine(scored: dict[str, Any]) -> None:
    assert "ended" not in scored, scored["ended"]
    for alone, together in zip(scored["alone"][::2], scored["together"][::2], strict=True):
        assert together == pytest.approx(alone, rel=NEAR)  # those with the adapter


def test_a_request_without_an_adapter_gets_none(scored: dict[str, Any]) -> None:
    together = scored["together"][1::2] if "together" in scored else []  # another fault may have ended the engine
    for scores in (scored["alone"][1::2], *([together] if together else [])):
        for before, after in zip(scored["before"], scores, strict=True):
            assert after == pytest.approx(before, rel=NEAR)
