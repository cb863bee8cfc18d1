"""NV203, lock not matching series: the lock names other patches than the series holds."""

from __future__ import annotations

import dataclasses

from nvllm.lock import lockdoc
from nvllm.patches.series import Series
from support import locks


def refusals(series: Series) -> list[tuple[str, str, str]]:
    found = lockdoc.fresh(locks.GOOD, locks.INPUTS, series)
    assert {refusal.code for refusal in found} == {"NV203"}
    assert {refusal.cure for refusal in found} == {"nvllm lock demo"}
    return [(refusal.where, refusal.expected, refusal.found) for refusal in found]


def test_a_patch_that_changed() -> None:
    guard = dataclasses.replace(locks.patch("guard"), sha256=locks.sha("new text"))
    assert refusals(locks.series(guard, locks.patch("key"), locks.patch("drain", "upstream"))) == [
        (
            "manifests/demo.lock.json: patch guard",
            f"carried, sha256 {locks.sha('new text')}",
            f"carried, sha256 {locks.sha('guard')}",
        )
    ]


def test_a_patch_that_came_and_one_that_went() -> None:
    assert refusals(locks.series(locks.patch("guard"), locks.patch("key"), locks.patch("new", "rejected"))) == [
        ("manifests/demo.lock.json: patch drain", "no such patch", "upstream"),
        ("manifests/demo.lock.json: patch new", "rejected", "no such patch"),
    ]


def test_another_order() -> None:
    guard, key, drain = locks.GOOD_SERIES.patches
    assert refusals(locks.series(key, guard, drain)) == [
        ("manifests/demo.lock.json: .series.patches", "order key, guard, drain", "guard, key, drain")
    ]


def test_another_series() -> None:
    other = dataclasses.replace(locks.GOOD_SERIES, base="v0.29.0")
    assert refusals(other) == [("manifests/demo.lock.json: .series.series", "series v0.29.0", "series v0.28.0")]
