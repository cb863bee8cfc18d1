"""`nvllm status --metrics` of an engine that is served: phases of its start, and the KV cache by its own metrics.

`test_signals.py` has those of one that has ended.
"""

from __future__ import annotations

import pytest

from support.engine_world import Served

pytestmark = pytest.mark.engine


def test_an_instance_that_is_served(served: Served) -> None:
    world = served.world
    page = world.nvllm("status", "--metrics").out
    labels = f'instance_name="{world.instance()}",image="cpu",profile="{world.profile()}"'
    assert f"nvllm_instance_up{{{labels}}} 1.0\n" in page
    assert f"nvllm_instance_supervised{{{labels}}} 1.0\n" in page
    assert f'nvllm_instance_start_phase_seconds{{{labels},phase="weights"}} ' in page
    assert f'nvllm_instance_kv_cache_usage_ratio{{{labels},engine="0"}} 0.0\n' in page
