"""The arguments of ``vllm serve`` in a source, and the profiles that have others."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from nvllm.core.refusal import Refused
from nvllm.lock import arguments
from nvllm.spec import specfile
from support.specs import GOOD, SHOWN

ENGINE = """
class EngineArgs:
    model: str
    @staticmethod
    def add_cli_args(parser):
        group = parser.add_argument_group("model", "--not-one")
        group.add_argument("--tensor-parallel-size", "-tp", **kwargs["--neither"])
        group.add_argument("--max-model-len")
        print("--nor-this")
"""
SERVER = """
class BaseFrontendArgs:
    chat_template: str | None = None
    plain = 1
class FrontendArgs(BaseFrontendArgs):
    host: str | None = None
def make_arg_parser(parser):
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--headless")
    parser.add_argument(f"--{key}")
"""
SOURCES = {"vllm/engine/arg_utils.py": ENGINE.encode(), "vllm/entrypoints/openai/cli_args.py": SERVER.encode()}
NAMES = ("chat-template", "headless", "host", "max-model-len", "tensor-parallel-size")


def test_the_names_are_those_of_calls_and_of_fields() -> None:
    assert arguments.known(SOURCES, "vllm.tar.gz") == NAMES
    other = {"vllm/entrypoints/cli/openai.py": b'parser.add_argument("--not-of-serve")'}
    for directory in ("openai", "launchers", "common"):
        moved = {
            "vllm/engine/arg_utils.py": ENGINE.encode(),
            f"vllm/entrypoints/{directory}/cli_args.py": SERVER.encode(),
        }
        assert arguments.known({**moved, **other}, "vllm.tar.gz") == NAMES


def test_another_layout_is_refused() -> None:
    for path, data in itertools.product(SOURCES, (None, b"def (", b"\0", b"class FrontendArgs: ...")):
        others = {name: content for name, content in SOURCES.items() if name != path}
        with pytest.raises(Refused) as refused:
            arguments.known(others if data is None else {**SOURCES, path: data}, "vllm.tar.gz")
        (refusal,) = refused.value.refusals
        assert (refusal.code, refusal.where) == ("NV606", "vllm.tar.gz"), (path, data)


def found(given: Mapping[str, Any], names: tuple[str, ...] = NAMES) -> list[tuple[str, str, str]]:
    """The place, what was found and the cure of each refusal of a profile with the arguments GIVEN."""
    spec = specfile.parse(GOOD, SHOWN)
    name, profile = next(iter(spec.profiles.items()))
    spec = replace(spec, profiles={name: replace(profile, arguments=given)})
    place = f"{SHOWN}: .profiles.{name}.arguments."
    return [(one.where.removeprefix(place), one.found, one.cure) for one in arguments.unknown(spec, names, SHOWN)]


def test_what_is_known_passes_with_its_negation_and_its_parts() -> None:
    assert found({"max-model-len": 1, "no-headless": True, "chat-template.a_b.c": "x"}) == []


def test_an_unknown_argument_is_refused_with_what_was_meant() -> None:
    assert found({"max-model-length": 1, "zzz.part": 2, "max-model": 3}) == [
        ("max-model-length", "max-model-length", "write max-model-len"),
        ("zzz.part", "zzz", "remove it"),
        ("max-model", "max-model", "write max-model-len"),
    ]


def test_the_opposite_of_a_switch_is_cured_by_the_switch() -> None:
    """From 0.33 on vLLM makes disable-x of enable-x: what is nearest to it says the contrary."""
    names = (*NAMES, "enable-lora")
    assert found({"disable-lora": True}, names) == [("disable-lora", "disable-lora", "write enable-lora: false")]
    assert found({"disable-lora": False}, names) == [("disable-lora", "disable-lora", "write enable-lora: true")]


def test_a_drain_needs_a_vllm_that_has_one() -> None:
    spec = specfile.parse(GOOD, SHOWN)
    name, profile = next(iter(spec.profiles.items()))
    limits = replace(profile.limits, drain_timeout=30)
    spec = replace(spec, profiles={name: replace(profile, arguments={}, limits=limits)})
    (refusal,) = arguments.unknown(spec, NAMES, SHOWN)
    assert (refusal.code, refusal.where) == ("NV603", f"{SHOWN}: .profiles.{name}.limits.drain-timeout")
    assert (refusal.found, refusal.cure) == ("30", "remove it")
    assert list(arguments.unknown(spec, (*NAMES, "shutdown-timeout"), SHOWN)) == []


def test_nothing_is_refused_where_nothing_is_known() -> None:
    assert found({"max-model-length": 1}, ()) == []
