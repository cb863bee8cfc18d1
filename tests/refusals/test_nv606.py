"""NV606, arguments unread: vLLM's source keeps the parser of `vllm serve` where nvllm does not look for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from support.locking import PARSER, SOURCE, WHEEL, World


def test_a_lock_refuses_a_source_without_the_parser(tmp_path: Path) -> None:
    for path in PARSER:
        source = {name: text for name, text in SOURCE.items() if name != path}
        wheel = {name: text for name, text in WHEEL.items() if name != path}
        world = World(tmp_path / path.replace("/", "-"), source, wheel)
        with pytest.raises(Refused) as refused:
            world.lock()
        assert [refusal.code for refusal in refused.value.refusals] == ["NV606"]
