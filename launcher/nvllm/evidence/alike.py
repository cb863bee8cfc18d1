"""What has to be alike in the arms of a comparison: the compiled code that they ran, and how an answer is graded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from nvllm.evidence.comparison import ArmLegs
from nvllm.evidence.records import ArmArtifact, Comparison
from nvllm.trials.probing import KEPT

_NAMED = 10
"""Questions that are named in a note."""


def noted(compared: Comparison, arms: Sequence[ArmLegs], pairs: Mapping[str, Sequence[ArmLegs]]) -> Comparison:
    """Return COMPARED, the comparison of ARMS, with what they loaded, and beside each finding whether it was the same.

    PAIRS has for a factor the arms that it compares; a factor that is not in it compares all ARMS.
    """
    findings = [replace(finding, artifacts=text(pairs.get(finding.factor, arms))) for finding in compared.findings]
    loaded = tuple(artifact(arm) for arm in arms)
    notes = (*compared.notes, *_blessed(arms), *_cold(arms), *_evaluated(arms), *_graded(arms))
    return replace(compared, findings=tuple(findings), artifacts=loaded, notes=notes)


def artifact(arm: ArmLegs) -> ArmArtifact:
    """Return what the valid legs of ARM loaded."""
    keys = sorted({verdict.compile_key for verdict, _ in arm.valid if verdict.tree})
    trees = sorted({verdict.tree for verdict, _ in arm.valid if verdict.tree})
    return ArmArtifact(arm.name, keys[0] if keys else "", tuple(trees))


def text(arms: Sequence[ArmLegs]) -> str:
    """Return whether ARMS loaded the same artifact, in words; empty for one arm, and if none of them loaded any."""
    loaded = [artifact(arm) for arm in arms if arm.valid]
    with_tree = [record for record in loaded if record.trees]
    if len(loaded) < 2 or not with_tree:
        return ""
    trees, keys = {record.trees for record in with_tree}, {record.compile_key for record in with_tree}
    without = ", ".join(record.arm for record in loaded if not record.trees)
    if without:
        return f"{', '.join(record.arm for record in with_tree)} loaded what was compiled before, {without} did not"
    if len(trees) == 1 and len(with_tree[0].trees) == 1:
        return f"all loaded one artifact, tree {with_tree[0].trees[0][:12]}"
    each = ", ".join(f"{record.arm} {' and '.join(tree[:12] for tree in record.trees)}" for record in with_tree)
    if len(keys) > 1:
        return f"their compile keys differ, so what was compiled is a part of the difference: trees {each}"
    return f"they loaded different artifacts of one compile key: trees {each}"


def _blessed(arms: Sequence[ArmLegs]) -> Iterator[str]:
    """Yield which of ARMS ran what is blessed, and which did not, if that is not the same for all of them."""
    legs = [(arm.name, verdict) for arm in arms for verdict, _ in arm.valid]
    trees = {verdict.tree for _, verdict in legs if verdict.tree and not verdict.dev}
    blessed = dict.fromkeys(name for name, verdict in legs if verdict.tree in trees)
    others = dict.fromkeys(name for name, verdict in legs if verdict.tree not in trees)
    if blessed and others:
        yield f"blessed: {', '.join(blessed)}; not blessed: {', '.join(others)}; that is a part of their difference"


def _evaluated(arms: Sequence[ArmLegs]) -> Iterator[str]:
    """Yield for each of ARMS that answers as another profile which one that is, and what it loaded."""
    for arm in arms:
        engines = {verdict.evaluation for verdict, _ in arm.valid} - {None}
        for profile, tree in sorted({(engine.profile, engine.tree) for engine in engines if engine is not None}):
            of = f", tree {tree[:12]}" if tree else ""
            yield f"{arm.name} was asked the questions as profile {profile}{of}, in an engine of its own"


def _graded(arms: Sequence[ArmLegs]) -> Iterator[str]:
    """Yield which questions have an answer that was graded as right and as wrong: then a grader is wrong."""
    grades: dict[tuple[int, str, str], set[bool]] = {}
    for answer in (answer for arm in arms for _, answers in arm.valid for answer in answers):
        if 0 < len(answer.text) < KEPT and not answer.problem:  # of a longer one only the end is known
            grades.setdefault((answer.id, answer.expected, answer.text), set()).add(answer.correct)
    questions = sorted({question for (question, _, _), grade in grades.items() if len(grade) > 1})
    if questions:
        named = ", ".join(map(str, questions[:_NAMED]))
        more = f" and {len(questions) - _NAMED} more" if len(questions) > _NAMED else ""
        yield f"a grader is wrong: the same answer was graded as right and as wrong, to the questions {named}{more}"


def _cold(arms: Sequence[ArmLegs]) -> Iterator[str]:
    """Yield that legs of ARMS compiled for themselves, if they did: then arms differ in that too."""
    names = [
        arm.name
        for arm in arms
        if any(
            not verdict.tree and any(phase.name == "compile" for phase in verdict.phases) for verdict, _ in arm.valid
        )
    ]
    if names and len(arms) > 1:
        yield f"each leg compiled for itself in {', '.join(names)}: two compiles of one key can answer differently"
