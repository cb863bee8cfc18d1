"""NV805: a bisect never tried that set of patches, or never would."""

from __future__ import annotations

import pytest

from nvllm.bisect import records
from nvllm.bisect.combinations import Combinations
from nvllm.cli.bisect_journals import lookup
from nvllm.core.refusal import Refused
from support.bisect_world import start


def test_a_set_that_the_search_never_comes_to() -> None:
    state = records.fold([start(Combinations(("a", "b", "c"), {"b": frozenset({"a"})}, {}))])
    assert lookup(state, "a,b") == {"a", "b"}
    assert lookup(state, "none") == frozenset()
    for text, near in (("b", "a,b"), ("d", "none"), ("0123abc", "none")):
        with pytest.raises(Refused) as caught:
            lookup(state, text)
        (found,) = caught.value.refusals
        assert (found.code, found.where, found.found, caught.value.exit_code) == ("NV805", "SET", text, 2)
        assert found.expected == "a closed set between the ends of the search"
        assert found.cure == f"`nvllm bisect status` shows the sets; the nearest is {near}"
