"""NV602, unknown sentinel: the image's set lacks the patch of that sentinel, or the one that reads them."""

from __future__ import annotations

from dataclasses import replace

from nvllm.host import checks
from support.host_samples import HOST, PLAN, refusals


def test_each_sentinel_that_nobody_reads() -> None:
    plan = replace(PLAN, sentinels=("zeroer", "zeroed", "drain"))
    found = refusals(checks.Subject(plan, HOST, (), frozenset({"zeroer", "aot-guard"})))
    assert [(refusal.code, refusal.found) for refusal in found] == [("NV602", "drain"), ("NV602", "zeroed")]
    assert {refusal.where for refusal in found} == {"images/sm120.yaml: .profiles.lower8.sentinels"}
    assert {refusal.expected for refusal in found} == {"sentinels that the image's patch set reads: aot-guard, zeroer"}
    assert found[0].cure == ("take drain out of the profile, or enable its patch and the one that reads sentinels")


def test_a_patch_set_that_reads_none() -> None:
    (found,) = refusals(checks.Subject(replace(PLAN, sentinels=("zeroer",)), HOST))
    assert found.expected == "sentinels that the image's patch set reads: it reads none"
