"""NV905, bless expired: the manifest has expired, or is from the future."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.bless import blessing
from nvllm.bless import preflight as requests
from nvllm.bless.preflight import BlessRequest
from nvllm.cache import manifest, promotion
from nvllm.cache.blessings import BlessingQuery
from nvllm.core import clock
from nvllm.core.refusal import Refused
from nvllm.core.spec import BlessRules
from nvllm.serve import servehash, startup
from support.bless_world import world
from support.blessings_world import CURE, NOW, TREE, bless, blessings, query
from support.plansamples import front_end


@pytest.mark.parametrize("ago", [0, 1, 86_400])
def test_an_expired_manifest_is_not_served(tmp_path: Path, ago: int) -> None:
    held = blessings(tmp_path)
    made = bless(TREE, created=clock.stamp(NOW - 90_000), expires=clock.stamp(NOW - ago))
    place = promotion.promote(held, made)
    with pytest.raises(Refused) as caught:
        held.lookup(query())
    (one,) = caught.value.refusals
    assert (one.code, one.where, one.cure) == ("NV905", str(place), CURE)
    assert (one.expected, one.found) == (f"a time before {made.expires}", clock.stamp(NOW))


def test_the_last_second_is_still_good(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    promotion.promote(held, bless(TREE, expires=clock.stamp(NOW + 1)))
    held.lookup(query())


def test_a_clock_that_was_set_back_does_not_help(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    place = promotion.promote(held, bless(TREE, expires=clock.stamp(NOW + 1)))
    with pytest.raises(Refused) as caught:
        held.lookup(query(now=NOW - 86_400))
    (one,) = caught.value.refusals
    assert (one.code, one.where) == ("NV905", str(place))
    assert one.expected == f"a time after {bless(TREE).created}, when it was made"
    assert one.cure == "set the clock of this host (timedatectl)"


@pytest.mark.parametrize("days", [29, 30, 31])
def test_one_that_is_older_than_the_profile_allows_is_not_served(tmp_path: Path, days: int) -> None:
    """The rule may be younger than the bless, which then names no end of its own."""
    held = blessings(tmp_path)
    made = bless(TREE, created=clock.stamp(NOW - days * manifest.DAY))
    place = promotion.promote(held, made)
    if days < 30:
        assert held.lookup(query(valid_days=30)) == made
        return
    with pytest.raises(Refused) as caught:
        held.lookup(query(valid_days=30))
    (one,) = caught.value.refusals
    assert (one.code, one.where, one.cure) == ("NV905", str(place), CURE)
    assert one.expected == "a bless of the last 30 days, which the profile asks for"
    assert one.found == f"one of {made.created}"


def test_an_expired_one_is_said_once(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    created = NOW - 40 * manifest.DAY
    ends = manifest.expiry(created, None, 30)
    assert ends is not None
    promotion.promote(held, bless(TREE, created=clock.stamp(created), expires=clock.stamp(ends)))
    with pytest.raises(Refused) as caught:
        held.lookup(query(valid_days=30))
    assert [one.code for one in caught.value.refusals] == ["NV905"]


@pytest.mark.parametrize(("asked", "rule"), [("30d", None), (None, 30), ("30d", 60), ("60d", 30)])
def test_what_a_bless_was_told_is_what_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str | None, rule: int | None
) -> None:
    """From the command's words to the lookup: the engine of this world is made up, the blessing is not."""
    monkeypatch.setattr(startup, "POLL", 0.005)
    with front_end() as front, world(tmp_path, front, BlessRules(valid_days=rule)) as made:
        request = BlessRequest(2, unsafe=True, expires=manifest.parse_expiry(asked, NOW) if asked is not None else None)
        if asked == "60d":
            with pytest.raises(Refused) as caught:
                requests.preflight(made.found, made.held, request, None, NOW)
            assert [(one.code, one.where) for one in caught.value.refusals] == [("NV108", "--expires")]
            return
        requests.preflight(made.found, made.held, request, None, NOW)
        new = blessing.new_manifest(made.found, made.held, made.work.run(request), request, NOW)
        blessing.promote(made.held, new, None, None)
        plan = made.found.plan
        asking = [
            BlessingQuery(
                plan.image, plan.profile, plan.serve_hash, servehash.factors(plan), True, NOW + days * manifest.DAY
            )
            for days in (29, 31)
        ]
        assert made.held.lookup(asking[0]) == new
        with pytest.raises(Refused) as refused:
            made.held.lookup(asking[1])
        assert [one.code for one in refused.value.refusals] == ["NV905"]


def test_an_end_that_comes_before_the_trials_are_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "POLL", 0.005)
    with front_end() as front, world(tmp_path, front) as made:
        request = BlessRequest(1, unsafe=True, expires=manifest.parse_expiry("1h", NOW))
        proof = made.work.run(request)
        with pytest.raises(Refused) as caught:
            blessing.new_manifest(made.found, made.held, proof, request, NOW + 3600)
        (one,) = caught.value.refusals
        assert (one.code, one.where) == ("NV905", "--expires")
