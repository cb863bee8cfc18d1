"""summary.md: every number that was found is in it, as text that stays in its table."""

from __future__ import annotations

from dataclasses import replace

from nvllm.evidence import comparison, summary
from support.evidence_samples import legs, manifest

ARMS = ((), ("a",), ("b",), ("a", "b"))


def test_the_summary_has_every_arm_effect_and_finding() -> None:
    found = comparison.compare([legs(arm, lambda on, *_: ("a" in on, 10, 1.0)) for arm in ARMS])
    text = summary.markdown(manifest(*ARMS), found)
    assert text.startswith("# Ablation of demo, eager\n")
    assert "| a x b | correct | +0.0 points |" in text
    assert "| a+b | passed | 3 of 3 | 1 | 100.0 | 83.2 to 100.0 | 0 of 60 | 10.00 | 10.0 |" in text
    assert "- sentinels compared: a, b" in text


def test_a_floor_and_a_repository_with_changes_are_said() -> None:
    one = manifest((), ("a",))
    changed = replace(one, probe=replace(one.probe, floor=45.0), host=replace(one.host, dirty=True))
    facts = dict(summary.facts(changed))
    assert facts["probe"].endswith("floor 45 %")
    assert facts["project"] == "abababababab with changes"
    assert dict(summary.facts(replace(one, host=replace(one.host, commit=""))))["project"] == "no repository"
