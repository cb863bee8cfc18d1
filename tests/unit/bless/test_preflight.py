"""What is asked of a bless: how many trials, and all that speaks against it before anything is started.

The engine of these worlds is made up; see `bless_world`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.bless import blessing, preflight
from nvllm.bless.preflight import BlessRequest
from nvllm.core.refusal import Refused
from support.bless_world import World
from support.rows import each_row

# How many


@each_row(
    ("trials", "rate", "unsafe", "expected"),
    [
        (None, None, None, (5, False)),
        (7, None, None, (7, False)),
        (None, 0.9, None, (29, False)),
        (None, 0.1, None, (5, False)),
        (None, None, 2, (2, True)),
    ],
)
def test_how_many_trials(trials: int | None, rate: float | None, unsafe: int | None, expected: object) -> None:
    assert preflight.boots(trials, rate, unsafe) == expected


@each_row(("trials", "rate", "unsafe"), [(4, None, None), (5, 0.9, None), (None, 0.9, 1)])
def test_how_many_trials_there_cannot_be(trials: int | None, rate: float | None, unsafe: int | None) -> None:
    with pytest.raises(Refused) as caught:
        preflight.boots(trials, rate, unsafe)
    assert [one.code for one in caught.value.refusals] == ["NV108"]


# Before anything is started


def test_a_profile_that_is_not_blessed_and_what_was_found_are_said_together(made: World) -> None:
    found = replace(made.found, profile=replace(made.found.profile, blessed=False))
    with pytest.raises(Refused) as caught:
        preflight.preflight(found, made.held, BlessRequest(5), None, time.time())
    assert [(one.code, one.where) for one in caught.value.refusals] == [("NV108", "--profile")]


def test_a_second_bless_has_to_say_so(made: World) -> None:
    asked = BlessRequest(boots=5)
    assert preflight.preflight(made.found, made.held, asked, None, time.time()) is None
    proof = made.work.run(asked)
    blessing.promote(made.held, blessing.new_manifest(made.found, made.held, proof, asked, time.time()), None, None)
    with pytest.raises(Refused) as caught:
        preflight.preflight(made.found, made.held, asked, None, time.time())
    assert [one.code for one in caught.value.refusals] == ["NV902"]
    again = replace(asked, replace=True)
    old = preflight.preflight(made.found, made.held, again, None, time.time())
    assert old is not None
    new = blessing.new_manifest(made.found, made.held, proof, again, time.time())
    assert new.version == 2
    blessing.promote(made.held, new, old, None)
    assert [path.name for path in (made.held.directory / "archive").iterdir()] == [
        f"demo-eager_{new.serve_hash[:7]}_v1.json"
    ]


def test_a_key_that_does_not_sign_is_found_before_the_trials(made: World, tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        preflight.preflight(made.found, made.held, BlessRequest(5, key=tmp_path / "no-key"), None, time.time())
    assert [(one.code, one.where) for one in caught.value.refusals] == [("NV909", "--sign")]
