"""The evaluation that a profile demands of its blessing: what was asked, how, and how many answers were right.

It decides nothing that is compiled or served, so it is not in the serve hash. The manifest names it; a blessing without
the evaluation that the profile demands now is not served.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from nvllm.core import canonical, parts, reading
from nvllm.core.evaluation import Evaluation, Floor
from nvllm.core.fields import Count, Positive, Rule, Sha256, Word
from nvllm.core.paths import Project
from nvllm.core.refusal import Refusal

_DOMAIN = "nvllm.evaluation/1"


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """An evaluation that the engine of a trial was asked: by which FILE, how, and what came out."""

    kind: Annotated[Literal["questions", "program"], Rule(choices=("questions", "program"))]
    file: Word
    """The path of the file in the project."""
    sha256: Sha256
    """The file's."""
    asked_as: Sha256
    """The hash of the file and of all that the profile says of the evaluation but its floor."""
    prompt: str
    """What stands around each question; empty for a program."""
    stop: tuple[str, ...]
    """The texts that end an answer."""
    extraction: str
    """How a number is taken from an answer: strict or flexible; empty for a program."""
    length: Count
    """The most tokens of an answer; 0 for a program."""
    floor: Floor
    asked: Positive
    correct: Count
    timeouts: Count
    """Answers that ran into their timeout. They count as wrong."""
    answers: Sha256
    """That of ``answers.jsonl``, which has every answer; it is kept beside the log of the trial."""

    @property
    def passed(self) -> bool:
        try:
            floor = parts.part(self.floor)
        except ValueError:  # of a manifest that nvllm did not write
            return False
        return self.correct <= self.asked and parts.reached(self.correct, self.asked, floor)

    @property
    def summary(self) -> str:
        """Return in a line what was asked and what came out."""
        return f"{self.text}, at least {self.floor} asked for; {self.file}, sha256 {self.sha256[:12]}"

    @property
    def text(self) -> str:
        """Return what came out, in words."""
        late = f", {self.timeouts} ran into the timeout" if self.timeouts else ""
        return f"{self.correct} of {self.asked} correct{late}"


@dataclass(frozen=True, slots=True)
class Demand:
    """The evaluation that a profile demands: its FILE, the hash of what is asked and how, and the FLOOR."""

    file: str
    sha256: str
    asked_as: str
    floor: str

    def unmet(self, records: list[EvaluationRecord]) -> str | None:
        """Return why none of RECORDS is what is demanded; None if one is."""
        same = [record for record in records if record.asked_as == self.asked_as]
        if any(parts.reached(record.correct, record.asked, parts.part(self.floor)) for record in same):
            return None
        if same:
            return same[0].text
        if not records:
            return "none"
        changed = "another file" if records[0].sha256 != self.sha256 else "the same file, asked in another way"
        return f"{records[0].file}: {changed}, sha256 {records[0].sha256[:12]}"


def demanded(project: Project, rules: Evaluation) -> Demand:
    """Return what RULES of a profile of PROJECT demand. Raises Refused NV109 if their file cannot be read."""
    content = reading.required(project.root / rules.file, reading.LOG, rules.file)
    sha256 = hashlib.sha256(content).hexdigest()
    how = {name: value for name, value in asdict(rules).items() if name not in {"file", "floor"}}
    return Demand(rules.file, sha256, canonical.digest(_DOMAIN, [sha256, how]), rules.floor)


def against(path: Path, demand: Demand, records: list[EvaluationRecord], cure: str) -> list[Refusal]:
    """Return NV919 with CURE if none of RECORDS, of the manifest at PATH, is what DEMAND asks for."""
    unmet = demand.unmet(records)
    if unmet is None:
        return []
    expected = f"at least {demand.floor} correct by {demand.file}, sha256 {demand.sha256[:12]}"
    return [Refusal("NV919", str(path), expected, unmet, cure)]
