"""NV620, variables unread: vLLM's source has no table of the variables that it reads where nvllm looks for it."""

from __future__ import annotations

import pytest

from nvllm.core.refusal import Refused
from nvllm.lock import variables


def test_a_source_without_the_table_is_refused() -> None:
    tables = {
        "no module": {},
        "no table": {"vllm/envs.py": b"other = {'VLLM_A': 1}\n"},
        "an empty table": {"vllm/envs.py": b"environment_variables: dict[str, int] = {}\n"},
        "no Python": {"vllm/envs.py": b"environment_variables = {"},
    }
    for name, sources in tables.items():
        with pytest.raises(Refused) as refused:
            variables.known(sources, "vllm-9.9.9.tar.gz")
        (refusal,) = refused.value.refusals
        assert (refusal.code, refusal.where) == ("NV620", "vllm-9.9.9.tar.gz"), name
