"""Several compiles of one profile: each has all trials of a bless, and the first one that passes is blessed.

One compile that is rejected may be bad luck of the compiler. How many are is what nobody knows from one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nvllm.bless.blessing import Bless, BlessResult
from nvllm.bless.preflight import BlessRequest
from nvllm.bless.rejected import OF_THE_COMPILE
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, Refused


@dataclass(frozen=True, slots=True)
class SeveralResult:
    """Of so many COMPILES the RESULT is the first that passed, and REJECTED are the numbers of those that did not."""

    result: BlessResult
    compiles: int
    rejected: tuple[int, ...]

    @property
    def text(self) -> str:
        passed = self.compiles - len(self.rejected)
        numbers = f": {', '.join(map(str, self.rejected))}" if self.rejected else ""
        return f"{passed} of {self.compiles} compiles passed, {len(self.rejected)} did not{numbers}"


def run(work: Callable[[], Bless], request: BlessRequest, compiles: int, progress: Progress) -> SeveralResult:
    """Compile so many times, each by a new WORK, try each as REQUEST asks, and return what became of them.

    Raises Refused with the refusals of all if none passes, and what ends a bless and is no fault of a compile.
    """
    passed: BlessResult | None = None
    rejected, refusals = list[int](), list[Refusal]()
    for number in range(1, compiles + 1):
        progress.note(f"compile {number} of {compiles}")
        try:
            result = work().run(request)
        except Refused as refused:
            if any(refusal.blame not in OF_THE_COMPILE for refusal in refused.refusals):
                raise
            rejected.append(number)
            refusals += refused.refusals
            progress.note(f"compile {number} of {compiles} is rejected: {refused.refusals[0].found.splitlines()[0]}")
            continue
        passed = passed or result
    if passed is None:
        raise Refused(refusals)
    return SeveralResult(passed, compiles, tuple(rejected))
