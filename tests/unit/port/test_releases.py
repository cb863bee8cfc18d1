"""The releases of vLLM: their order, and the first one that has a change."""

from __future__ import annotations

from math import ceil, log2

from hypothesis import given
from hypothesis import strategies as st

from nvllm.port import releases


def test_releases_after_one_in_their_order() -> None:
    versions = ("0.10.0", "0.9.2", "0.9.0", "0.10.0rc1", "0.9.2.post1", "unknown")
    assert releases.after(versions, "0.9.0") == ("0.9.2", "0.9.2.post1", "0.10.0")


@given(st.integers(1, 40).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, count - 1))))
def test_the_first_that_has_a_change_is_found_by_halving(case: tuple[int, int]) -> None:
    count, index = case
    versions = [f"0.{number}.0" for number in range(count)]
    asked: list[str] = []

    def upstream(version: str) -> tuple[str, ...]:
        asked.append(version)
        return ("drain",) if versions.index(version) >= index else ()

    assert releases.first(versions, "drain", upstream) == versions[index]
    assert len(asked) <= ceil(log2(count))
    assert versions[-1] not in asked  # the port has looked at it already
