"""NV601, waiver missing: a profile asks for an exception that it does not name."""

from __future__ import annotations

import pytest

from support.specs import SHOWN, line_of, only, refusals, spoiled


@pytest.mark.parametrize("argument", ["trust-remote-code", "trust-remote", "tr"])
@pytest.mark.parametrize("value", ["true", "1", "'yes'"])
def test_remote_code_without_its_waiver(argument: str, value: str) -> None:
    text = spoiled("enforce-eager: true", f"{argument}: {value}")
    refusal = only(text)
    assert refusal.code == "NV601"
    assert refusal.where == f"{SHOWN}:{line_of(text, f'{argument}:')}: .profiles.eager.arguments.{argument}"
    assert refusal.expected == "the waiver trust-remote-code in the profile's `waivers:`"
    assert refusal.found == f'"{argument}" without it'
    assert "{name: trust-remote-code, reason: ...}" in refusal.cure


def test_remote_code_with_its_waiver() -> None:
    text = spoiled("enforce-eager: true", "trust-remote-code: true")
    assert refusals(text.replace("{name: host-ipc,", "{name: trust-remote-code,")) == ()


def test_remote_code_that_is_switched_off_needs_none() -> None:
    assert refusals(spoiled("enforce-eager: true", "trust-remote-code: false")) == ()
