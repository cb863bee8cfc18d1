"""Documents that were judged become frozen values: sizes are bytes, kinds are classes, names of fields are Python's."""

from __future__ import annotations

from typing import Any

import yaml

from nvllm import specvalue
from nvllm.spec import CommitSource, DebianBase, DirectoryModel, HubModel, Limits, RegistryBase
from specs import GOOD


def document() -> Any:
    return yaml.safe_load(GOOD)


def test_sizes_are_bytes_however_they_were_written() -> None:
    limits = specvalue.spec(document()).profiles["eager"].limits
    assert limits == Limits(6 * 2**30, 512 * 2**20, 64 * 2**10, 512, 300)
    assert specvalue.spec(document()).profiles["eager"].host.memory_available == 3221225472


def test_a_kind_decides_the_class() -> None:
    made = specvalue.spec(document())
    assert isinstance(made.base, DebianBase)
    assert isinstance(made.models["tiny"], DirectoryModel)
    assert isinstance(made.models["hub"], HubModel)
    changed = document()
    interpreter = "/usr/bin/python3.12"
    changed["base"] = {"kind": "registry", "image": "a@sha256:0", "python": "3.12", "interpreter": interpreter}
    assert isinstance(specvalue.spec(changed).base, RegistryBase)


def test_keys_of_the_users_own_stay_as_they_are() -> None:
    made = specvalue.spec(document())
    assert made.profiles["eager"].arguments == {"max-model-len": 128, "enforce-eager": True}
    assert made.profiles["eager"].probe.max_tokens == 16


def test_a_source_is_none_unless_it_is_said() -> None:
    assert specvalue.spec(document()).vllm.source is None
    changed = document()
    changed["vllm"]["source"] = {"kind": "github", "repository": "owner/name", "tree": "a" * 40}
    assert specvalue.spec(changed).vllm.source == CommitSource("github", "owner/name", "a" * 40)
