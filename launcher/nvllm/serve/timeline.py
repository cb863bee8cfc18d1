"""The phases of a start, read from the log of the engine.

A phase ends at a certain line of the log, and begins where the phase before it ended. The lines are those of vLLM 0.21
to 0.33; they are searched for anywhere in a line, because prefixes differ between releases. A phase that the engine
does not log (compile, in eager mode) is left out.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal

from nvllm.core import canonical

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

_POSITIONS: Mapping[PhaseName, int] = {name: at for at, name in enumerate([*dict(_ENDS), "first token"])}

_LOADED = re.compile(r"Directly load AOT compilation from path (\S+)")
_SAVED = re.compile(r"saved AOT compiled function to ")
_TRACED = re.compile(r"Dynamo bytecode transform time")
"""On a GPU vLLM says so also when it only loads: it gives its backend the stored graph, as Dynamo would a new one."""
_COMPILED = re.compile(
    rf"Compiling model again due to a load failure|Compiling a graph for |Start compiling function|{_TRACED.pattern}"
)
_MISSED = re.compile(r"nvllm\.kernels miss (key=(\S+) name=(\S+))")
_MADE = re.compile(r"nvllm\.kernels compiled (\{.*\})")
_KV_TOKENS = re.compile(r"KV cache size: ([0-9][0-9,]{0,30}) tokens")
_REFUSED = re.compile(r'^nvllm\.gate (\{"event": "refused".*)', re.DOTALL)
_EVIDENCE = re.compile(r"nvllm\.(?:gate \{|kernels (?:miss key=|compiled \{)|sentinel name=)")
"""In the lines that the gate, the cache manager and the sentinels write. They are evidence, and no cause of an end."""
_FATAL = re.compile(r"EngineCore failed to start\.|Engine core initialization failed")
_LINE = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d) (.*)$", re.DOTALL)

_MOST = 10_000
"""Most lines of each kind, and kernels, that are kept: an engine may print without end."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase that ended: how many seconds it took, and how many seconds after the start it ended."""

    name: PhaseName
    seconds: float
    ended: float


@dataclass(frozen=True, slots=True)
class MissingKernel:
    """A kernel or graph that was compiled because it was in no cache: its KEY there and its NAME.

    WHEN is in seconds since 1970. ARGUMENTS are those that it was compiled for, empty until it is. A graph has its path
    there. REQUESTS are the ids of those that waited for it, which the step computed: none while the engine starts.
    """

    key: str
    name: str
    when: float
    arguments: str = ""
    requests: tuple[str, ...] = ()


@dataclass(slots=True)
class Timeline:
    """What the log of one start has shown so far. BEGAN is when the container started, in seconds since 1970."""

    began: float
    phases: list[Phase] = field(default_factory=list)
    kv_tokens: int | None = None
    gate_findings: list[dict[str, str]] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    """Paths of compiled code that was loaded."""
    saved: list[str] = field(default_factory=list)
    """Lines that report that compiled code was saved."""
    compiled: list[str] = field(default_factory=list)
    """Lines that report a compilation."""
    missed: list[str] = field(default_factory=list)
    """Kernels that were in no cache, so that Triton compiled them."""
    kernels: dict[str, MissingKernel] = field(default_factory=dict)
    """The same by their keys, with what is known of each."""
    fatal: str | None = None

    def feed(self, when: float, text: str) -> Phase | None:
        """Parse one line, and return the phase that it ended, if any.

        Phases end in their order, so the line of an earlier phase is ignored. Only compile may end again, because
        several graphs are compiled one after the other.
        """
        self._note(text)
        self._note_kernel(when, text)
        position = max((_POSITIONS[phase.name] for phase in self.phases), default=-1)
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
        """End the last phase: the engine has answered with its first generation."""
        return self._end("first token", when)

    def _end(self, name: PhaseName, when: float) -> Phase:
        before = self.phases[-1].ended if self.phases else 0.0
        ended = round(max(when - self.began, before), 3)
        phase = Phase(name, round(ended - before, 3), ended)
        self.phases.append(phase)
        return phase

    def _note_kernel(self, when: float, text: str) -> None:
        if (missed := _MISSED.search(text)) is not None:
            _keep(self.missed, missed[1])
            self._keep_kernel(self.kernels.get(missed[2]) or MissingKernel(missed[2], missed[3], when))
        if (made := _MADE.search(text)) is not None:
            kernel = _kernel(made[1], when)
            if kernel is not None:
                self._keep_kernel(kernel)

    def note_graph(self, when: float, path: str) -> None:
        """Note that at WHEN the graph at PATH was there, which Inductor compiled; Inductor logs nothing of it."""
        key = PurePosixPath(path).stem
        if key not in self.kernels:
            self._keep_kernel(MissingKernel(key, "a graph of Inductor", when, path))

    def _keep_kernel(self, kernel: MissingKernel) -> None:
        if kernel.key in self.kernels or len(self.kernels) < _MOST:
            self.kernels[kernel.key] = kernel

    def _note(self, text: str) -> None:
        if (tokens := _KV_TOKENS.search(text)) is not None:
            self.kv_tokens = min(int(tokens[1].replace(",", "")), canonical.EXACT)
        if (loaded := _LOADED.search(text)) is not None:
            _keep(self.loaded, loaded[1])
            while self.compiled and _TRACED.search(self.compiled[-1]):  # nothing was compiled since
                self.compiled.pop()
        if _SAVED.search(text):
            _keep(self.saved, text.strip())
        if _COMPILED.search(text):
            _keep(self.compiled, text.strip())
        if (refused := _REFUSED.match(text.rstrip())) is not None and len(self.gate_findings) < _MOST:
            self.gate_findings.extend(_findings(refused[1]))
        if self.fatal is None and _FATAL.search(text):
            self.fatal = text.strip()


def _keep(lines: list[str], line: str) -> None:
    if len(lines) < _MOST:
        lines.append(line)


def _kernel(document: str, when: float) -> MissingKernel | None:
    """Return the kernel in DOCUMENT, or None if that is not what the cache manager writes, such as a line cut off."""
    try:
        kernel = canonical.mapping(canonical.decode(document.encode()))
        requests = kernel.get("requests", [])  # a cache manager of before they were told has none
        if not isinstance(requests, list):
            return None
        key, name, arguments = (str(kernel[field]) for field in ("key", "name", "arguments"))
        return MissingKernel(key, name, when, arguments, tuple(map(str, requests)))
    except (ValueError, KeyError):
        return None


def _findings(document: str) -> list[dict[str, str]]:
    """Return the findings in the gate's DOCUMENT.

    A document that cannot be read, such as a line that was cut off, counts as a finding: the gate did refuse.
    """
    names = ("where", "expected", "found")
    try:
        entries = canonical.mapping(canonical.decode(document.encode()))["findings"]
        listed = [canonical.mapping(entry) for entry in entries] if isinstance(entries, list) else []
        findings = [{name: str(entry[name]) for name in names} for entry in listed]
    except (ValueError, KeyError):
        findings = []
    unreadable = ("the gate's report", "findings that can be read", document[:300])
    return findings or [dict(zip(names, unreadable, strict=True))]


def of_log(log: bytes) -> Timeline:
    """Return the timeline of a whole LOG of an engine, with the times that Docker gave it."""
    timeline: Timeline | None = None
    for line in log.decode("utf-8", "replace").split("\n"):
        entry = stamped(line)
        if entry is not None:
            timeline = timeline or Timeline(entry[0])
            timeline.feed(*entry)
    return timeline or Timeline(0.0)


def without_evidence(lines: Sequence[str]) -> list[str]:
    """Return the LINES of an engine's log that are not nvllm's own evidence; all of them if there are no others."""
    return [line for line in lines if _EVIDENCE.search(line) is None] or [*lines]


def stamped(line: str) -> tuple[float, str] | None:
    """Split a LINE of the engine's log into seconds since 1970 and text, or None if it carries no time."""
    stamp = _LINE.match(line)
    if stamp is None:
        return None
    try:
        # Podman writes the time zone of the host.
        whole = datetime.datetime.fromisoformat(stamp[1] + stamp[3]).timestamp()
    except ValueError:  # digits in the right places, but no time
        return None
    return whole + float(f"0.{stamp[2] or 0}"), stamp[4]
