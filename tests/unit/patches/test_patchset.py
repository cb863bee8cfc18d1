"""Choosing patch sets: the order is the series', and what cannot be together is said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.refusal import Refusal, Refused
from nvllm.patches import patchset
from nvllm.patches.series import Patch, Sentinel, Series, Status, Upstream


def _patch(
    name: str, status: Status = "carried", requires: tuple[str, ...] = (), conflicts: tuple[str, ...] = ()
) -> Patch:
    since = "0.26.0" if status == "upstream" else None
    reason = "it writes outside the tensor" if status == "rejected" else None
    return Patch(
        name, status, name, Upstream("none", since=since), requires=requires, conflicts=conflicts, reason=reason
    )


_SERIES = Series(
    "nvllm.series/1",
    "v1",
    "1.0",
    "0" * 40,
    (
        _patch("zeroer"),
        _patch("drain", "upstream"),
        _patch("padding", "rejected"),
        _patch("mamba-zeroer", requires=("zeroer", "drain")),
        _patch("other-zeroer", conflicts=("zeroer",)),
    ),
)


def _refusals(*enable: str) -> tuple[Refusal, ...]:
    with pytest.raises(Refused) as caught:
        patchset.choose(_SERIES, enable, where="images/x.yaml:3: .patches.enable")
    assert {refusal.where for refusal in caught.value.refusals} == {"images/x.yaml:3: .patches.enable"}
    return tuple(caught.value.refusals)


@given(st.permutations(["mamba-zeroer", "zeroer", "mamba-zeroer"]))
def test_the_order_is_the_series(enable: list[str]) -> None:
    assert [patch.id for patch in patchset.choose(_SERIES, enable)] == ["zeroer", "mamba-zeroer"]


def test_nothing_enabled_is_an_empty_set() -> None:
    assert patchset.choose(_SERIES, []) == ()


def test_what_the_source_holds_already_is_not_missing() -> None:
    assert len(patchset.choose(_SERIES, ["zeroer", "mamba-zeroer"])) == 2


def test_an_unknown_id_is_told_with_its_nearest() -> None:
    (refusal,) = _refusals("mamba-zeror")
    assert (refusal.code, refusal.found) == ("NV107", "mamba-zeror")
    assert refusal.cure.startswith("write mamba-zeroer")
    assert _refusals("qqqqqq")[0].cure.startswith("nvllm patch list --series ")


def test_everything_wrong_is_told_at_once() -> None:
    found = [(refusal.code, refusal.expected, refusal.found) for refusal in _refusals("nope", "drain", "mamba-zeroer")]
    assert found == [
        ("NV106", "patches that the series carries", "drain, which is already upstream since 0.26.0"),
        ("NV106", "zeroer, which mamba-zeroer requires", "not in it"),
        ("NV107", "a patch of the series v1: zeroer, mamba-zeroer, other-zeroer", "nope"),
    ]


# Sentinels

_SWITCHED = tuple(replace(_patch(name), sentinel=Sentinel(f"{name}-file")) for name in ("one", "two"))
_READER = replace(_patch("reader"), reads_sentinels=True)
_WITH = Series("nvllm.series/1", "v1", "1.0", "0" * 40, (_patch("plain"), *_SWITCHED, _READER))


def test_a_sentinel_is_read_where_its_patch_and_the_reader_are() -> None:
    one, two = _SWITCHED
    assert patchset.sentinels([one, two, _READER]) == {"one-file", "two-file"}
    assert patchset.sentinels([one, _READER]) == {"one-file"}
    assert patchset.sentinels([one, two]) == frozenset()
    assert patchset.sentinels([_patch("plain"), _READER]) == frozenset()


@given(st.sets(st.sampled_from(_WITH.patches)), st.lists(st.sampled_from(["one-file", "two-file", "nobody"])))
def test_what_a_smaller_set_does_not_read_is_left_out_and_a_mistake_is_not(
    patches: set[Patch], names: list[str]
) -> None:
    kept = patchset.narrowed(names, _WITH, list(patches))
    read = patchset.sentinels(list(patches))
    assert kept == tuple(name for name in names if name in read or name == "nobody")
