"""The phases of a start, read from what the engine logs.

A phase ends where the engine says a certain thing; it began where the phase before it ended. The texts are
those of vLLM 0.21 to 0.33; they are searched for anywhere in a line, because prefixes differ between releases.
A phase that the engine never mentions (no compile in eager mode) is simply not there.
"""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import dataclass, field
from typing import Literal

PhaseName = Literal["gate", "import", "weights", "compile", "capture", "warm-up", "server", "first token"]

_ENDS: tuple[tuple[PhaseName, re.Pattern[str]], ...] = (
    ("gate", re.compile(r'^nvllm\.gate \{.*"event": "passed"')),
    ("import", re.compile(r"Starting to load model ")),
    ("weights", re.compile(r"Loading weights took [\d.]+ seconds")),
    (
        "compile",
        re.compile(
            r"torch\.compile took [\d.]+ s in total|saved AOT compiled function to |"
            r"Directly load AOT compilation from path "
        ),
    ),
    ("capture", re.compile(r"Graph capturing finished in \d+ secs")),
    ("warm-up", re.compile(r"init engine \(profile, create kv cache, warmup model\) took ")),
    ("server", re.compile(r"Application startup complete\.")),
)

_LOADED = re.compile(r"Directly load AOT compilation from path (\S+)")
_SAVED = re.compile(r"saved AOT compiled function to ")
_COMPILED = re.compile(
    r"Compiling model again due to a load failure|Compiling a graph for |Dynamo bytecode transform time|"
    r"Start compiling function"
)
_MISSED = re.compile(r"nvllm\.kernels miss (key=\S+ name=\S+)")
_KV_TOKENS = re.compile(r"KV cache size: ([0-9][0-9,]{0,30}) tokens")
_REFUSED = re.compile(r'^nvllm\.gate (\{"event": "refused".*)', re.DOTALL)
_FATAL = re.compile(r"EngineCore failed to start\.|Engine core initialization failed")
_LINE = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d) (.*)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase that ended: its length in seconds, and the second of the start at which it ended."""

    name: PhaseName
    seconds: float
    ended: float


@dataclass(slots=True)
class Timeline:
    """What one start said so far. BEGAN is the time, in seconds since 1970, at which the container started."""

    began: float
    phases: list[Phase] = field(default_factory=list)
    kv_tokens: int | None = None
    gate_findings: list[dict[str, str]] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    """Paths of compiled code that was loaded."""
    saved: list[str] = field(default_factory=list)
    """What was said of compiled code that was written."""
    compiled: list[str] = field(default_factory=list)
    """What was said of a compilation that took place."""
    missed: list[str] = field(default_factory=list)
    """Kernels, and what launches them, that no cache held, so that Triton went to compile them."""
    fatal: str | None = None

    def feed(self, when: float, text: str) -> Phase | None:
        """Take in one line and return the phase that it ended, if it ended one.

        Phases end in their order: a line of a phase that is over, or of one that was passed over, is not one.
        Only compile may end again, since several graphs are compiled one after the other.
        """
        self._note(text)
        position = max((_position(phase.name) for phase in self.phases), default=-1)
        for index, (name, pattern) in enumerate(_ENDS):
            if pattern.search(text) is None or index < position:
                continue
            if index == position:
                if name != "compile":
                    continue
                self.phases.pop()
            return self._end(name, when)
        return None

    def finish(self, when: float) -> Phase:
        """End the last phase: the first real generation came back."""
        return self._end("first token", when)

    def _end(self, name: PhaseName, when: float) -> Phase:
        before = self.phases[-1].ended if self.phases else 0.0
        ended = round(max(when - self.began, before), 3)
        phase = Phase(name, round(ended - before, 3), ended)
        self.phases.append(phase)
        return phase

    def _note(self, text: str) -> None:
        if (tokens := _KV_TOKENS.search(text)) is not None:
            self.kv_tokens = int(tokens[1].replace(",", ""))
        if (loaded := _LOADED.search(text)) is not None:
            self.loaded.append(loaded[1])
        if _SAVED.search(text):
            self.saved.append(text.strip())
        if _COMPILED.search(text):
            self.compiled.append(text.strip())
        if (missed := _MISSED.search(text)) is not None:
            self.missed.append(missed[1])
        if (refused := _REFUSED.match(text.rstrip())) is not None:
            self.gate_findings.extend(_findings(refused[1]))
        if self.fatal is None and _FATAL.search(text):
            self.fatal = text.strip()


def _findings(document: str) -> list[dict[str, str]]:
    """Return what the gate's DOCUMENT says that it found.

    One that cannot be read, such as a line that was cut off, is a finding itself: the gate did refuse.
    """
    names = ("where", "expected", "found")
    try:
        found = [{name: str(one[name]) for name in names} for one in json.loads(document)["findings"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = []
    return found or [dict(zip(names, ("the gate's report", "findings that can be read", document[:300]), strict=True))]


def _position(name: PhaseName) -> int:
    return next((index for index, (one, _) in enumerate(_ENDS) if one == name), len(_ENDS))


def stamped(line: str) -> tuple[float, str] | None:
    """Split a LINE of the engine's log into seconds since 1970 and text, or None if it carries no time."""
    found = _LINE.match(line)
    if found is None:
        return None
    try:
        whole = datetime.datetime.fromisoformat(found[1] + found[3]).timestamp()  # Podman says the host's own time
    except ValueError:  # digits in the right places, but no time
        return None
    return whole + float(f"0.{found[2] or 0}"), found[4]
