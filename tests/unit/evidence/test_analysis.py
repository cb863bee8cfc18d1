"""ANALYSIS.md: every finding and every note is in it once, in the section where it belongs."""

from __future__ import annotations

from dataclasses import replace

from nvllm.evidence import analysis, comparison, conclusion
from nvllm.evidence.records import ArmState, Comparison, FactorFinding, RunManifest
from support.evidence_samples import benched, legs, manifest

FAILS = "What nobody knows yet, and what does not hold"
ARMS = ((), ("a",), ("b",), ("a", "b"))


def sections(wanted: RunManifest, found: Comparison) -> dict[str, str]:
    _, *parts = analysis.markdown(wanted, found).split("\n## ")
    return {title: text.strip() for title, _, text in (part.partition("\n") for part in parts)}


def test_what_holds_what_does_not_and_the_limits() -> None:
    arms = [legs(arm, lambda on, *_: ("a" in on, 10, 1.0)) for arm in ARMS]
    found = comparison.compare([*arms[:3], replace(arms[3], legs=())])
    assert len(found.flipped) == 20
    found = replace(found, flipped=())
    unknown = (*found.findings, FactorFinding("c", "unknown", "no two valid arms differ in it alone"))
    found = replace(found, findings=unknown)
    said = sections(manifest(*ARMS), found)
    assert [*said] == ["What was asked", "What holds", FAILS, "Limits"]
    assert said["What was asked"].startswith("- What does the sentinel of each of these patches change: a, b? 4")
    assert "- **a**: win; more correct answers: correct +100.0 points (" in said["What holds"]
    assert "**c**: unknown; no two valid arms differ in it alone." in said[FAILS]
    assert "a+b is invalid" in said[FAILS]
    assert "3 of 12 legs were not run." in said["Limits"]
    assert "20 questions; other questions were not asked" in said["Limits"]
    assert "GenuineIntel 6 143, 8 processors); another one was not tried" in said["Limits"]
    text = "\n".join(said.values())
    assert all(text.count(f"- {note}.") == 1 for note in found.notes)
    assert all(text.count(one.text) == 1 for one in found.findings)


def test_profiles_are_held_against_the_first() -> None:
    arms = tuple(ArmState(name, name, (), ()) for name in "ABC")
    wanted = replace(manifest(()), kind="sweep", ablated=(), arms=arms)
    found = conclusion.of(wanted, [benched(name, [{}]) for name in "ABC"])
    said = sections(wanted, found)
    assert said["What was asked"] == "- How fast, and how often right, is B and C, held against A?"
    alone = replace(wanted, kind="bench", arms=arms[:1])
    assert sections(alone, found)["What was asked"] == "- How fast is A?"


def test_one_profile_alone_passed_or_failed() -> None:
    wanted = replace(manifest(()), kind="eval", ablated=())
    arm = legs((), lambda *_: (True, 10, 1.0))
    said = sections(wanted, conclusion.of(wanted, [arm]))
    assert (said["What was asked"], said["What holds"]) == (
        "- How often is none right?",
        "- none passed in all of 3 runs.",
    )
    assert said[FAILS] == "Nothing."
    failed = legs((), lambda *_: (False, 10, 1.0), outcome="failed")
    said = sections(wanted, conclusion.of(wanted, [failed]))
    assert said[FAILS] == "- none failed: 0.0 % correct, which is below the floor."
