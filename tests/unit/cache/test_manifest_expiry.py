"""Expiry: what may be said of an end, and which of two ends counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.cache import manifest
from nvllm.cache.manifest import DAY
from nvllm.core import clock
from nvllm.core.refusal import Refused

NOW = 1_790_000_000.7


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30d", int(NOW) + 30 * DAY),
        ("12h", int(NOW) + 12 * 3600),
        ("2w", int(NOW) + 14 * DAY),
        ("2027-01-31", clock.seconds("2027-01-31T00:00:00Z")),
        ("2027-01-31T12:00:01Z", clock.seconds("2027-01-31T12:00:01Z")),
    ],
)
def test_what_may_be_said(text: str, expected: int) -> None:
    assert manifest.parse_expiry(text, NOW) == expected


@pytest.mark.parametrize(
    "text",
    ["", "30", "0d", "-1d", "30 d", "1m", "1.5d", "99999999d", "2027-02-30", "2027-1-31", "2027-01-31T12:00Z", "never"],
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(Refused) as caught:
        manifest.parse_expiry(text, NOW)
    (one,) = caught.value.refusals
    assert (one.code, one.where, one.found, one.cure) == (
        "NV108",
        "--expires",
        text or "an empty text",
        "write --expires 30d",
    )


@pytest.mark.parametrize("text", ["2020-01-01", clock.stamp(NOW)])
def test_what_is_over(text: str) -> None:
    with pytest.raises(Refused, match="which is over"):
        manifest.parse_expiry(text, NOW)


@given(st.one_of(st.none(), st.integers(1, 10**9)), st.one_of(st.none(), st.integers(1, 10**4)))
def test_the_earlier_end_counts(asked: int | None, days: int | None) -> None:
    found = manifest.expiry(NOW, asked, days)
    ends = {one for one in (asked, None if days is None else int(NOW) + days * DAY) if one is not None}
    assert found == (min(ends) if ends else None)
