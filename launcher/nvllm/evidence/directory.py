"""The directory of an evidence run, written as the run goes.

::

    runner_manifest.json               what is run, on what, with which questions
    arms/<arm>/run-<n>/                one leg: the run directory of its instance (`serve/rundir.py`), and beside it
        metrics-before.txt, ...-between.txt, ...-after.txt      /metrics of the engine
        timeline.json                  the phases of its start
        perq.jsonl                     every answer
        verdict.json                   written last: a leg with a verdict is complete
        evaluation/                    the run directory of a second engine, if another one is asked the questions
    artifacts/<compile key>/           what legs load, see `bless/compiled.py`; <compile key>-<n>/ if there are several
    arms/<arm>/trace/, trace-2/ ...    the legs under a profiler, if there are any: kernels.json, trace.json.gz
    comparison.json, ANALYSIS.md, summary.md, report.html       once every leg is complete
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

from nvllm.bless import compiled
from nvllm.cache import staging
from nvllm.core import canonical, documents, durable, reading
from nvllm.core.canonical import Json
from nvllm.core.fields import Form
from nvllm.core.refusal import Refusal, refuse, refuse_any
from nvllm.evidence.comparison import ArmLegs
from nvllm.evidence.records import (
    FORM_COMPARISON,
    FORM_KERNELS,
    FORM_LEG,
    FORM_RUN,
    Comparison,
    HostState,
    KernelTable,
    LegVerdict,
    RunManifest,
)
from nvllm.serve import memoryseries, rundir
from nvllm.serve.memoryseries import MemorySample
from nvllm.serve.rundir import private_directory
from nvllm.trials.answers import FORM_ANSWER, Answered, lines

T = TypeVar("T")

_MANIFEST = "runner_manifest.json"
_FILES = frozenset({_MANIFEST, "arms", "artifacts", "comparison.json", "ANALYSIS.md", "summary.md", "report.html"})
EVALUATION = "evaluation"
"""Below a leg, the run directory of a second engine, which was asked the questions."""
_LONGEST = 255
"""Bytes of the longest name of a directory."""


class EvidenceDirectory:
    """The evidence directory at PATH."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, manifest: RunManifest, *, force: bool, anyway: bool = False) -> RunManifest:
        """Make the directory for MANIFEST, or go on with the same run, and return the manifest that holds.

        With ANYWAY a run goes on on another host, and the manifest names it. Raises Refused NV852 if it holds another
        run, or a part of this one from another host, unless FORCE, and always if it holds or is something else; NV853
        if its manifest is not one of nvllm's.
        """
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise refuse("NV852", str(self.path), "a new directory", "something else than a directory", _OTHER)
        if (self.path / _MANIFEST).exists():
            before = self.manifest()  # others write files of that name too: what is not ours is never removed
            if not force:
                if anyway:
                    before = self._mixed(before, manifest)
                refuse_any(self._another(before, manifest))
                return before
        foreign = {path.name for path in self.path.iterdir()} if self.path.exists() else set()
        foreign -= _FILES if (self.path / _MANIFEST).exists() else set()
        if foreign:
            content = f"{len(foreign)} files that are no evidence of nvllm, such as {min(foreign)}"
            raise refuse("NV852", str(self.path), "a new directory", content, _OTHER)
        if force and (self.path / _MANIFEST).exists():
            staging.discard(self.path.resolve())  # the trees of its artifacts are read-only
        private_directory(self.path.resolve())
        self.keep(self.path, _MANIFEST, documents.encode(FORM_RUN, manifest).decode())
        return manifest

    def _another(self, before: RunManifest, now: RunManifest) -> Iterable[Refusal]:
        force = "--force, which removes what is there"
        anyway = f"{_OTHER}; or --anyway, which marks the run as mixed; or {force}"
        old, new = _identity(before), _identity(now)
        host = _host_identity(now.host)
        known = any(_host_identity(state) == host for state in (before.host, *before.other_hosts))
        changed = {} if known else {name: (_host_identity(before.host)[name], host[name]) for name in host}
        changed |= {name: (old[name], new[name]) for name in old}
        for name, (first, second) in sorted(changed.items()):
            if first != second:
                cure = anyway if name in host else f"{_OTHER}; or {force}"
                yield Refusal("NV852", f"{self.path}: {name}", _short(second), _short(first), cure)

    def _mixed(self, before: RunManifest, now: RunManifest) -> RunManifest:
        """Return BEFORE with the host of NOW as another one, once that is written; as it is if it is another run."""
        mixed = replace(before, other_hosts=(*before.other_hosts, now.host))
        if not any(self._another(before, now)) or any(self._another(mixed, now)):
            return before
        self.keep(self.path, _MANIFEST, documents.encode(FORM_RUN, mixed).decode())
        return mixed

    def manifest(self) -> RunManifest:
        """Return what is run. Raises Refused NV853 if there is no manifest that nvllm wrote."""
        manifest = self._read(self.path / _MANIFEST, FORM_RUN)
        where, expected = f"{self.path / _MANIFEST}: .arms", "names of arms, which are names of directories"
        refuse_any(
            Refusal("NV853", where, expected, ascii(arm.name)[:200], CURE)
            for arm in manifest.arms
            if "/" in arm.name or arm.name.startswith(".") or len(arm.name.encode()) > _LONGEST
        )
        return manifest

    def leg(self, arm: str, run: int) -> Path:
        return self.path / "arms" / arm / f"run-{run}"

    def verdict(self, arm: str, run: int) -> LegVerdict | None:
        """Return the verdict of RUN of ARM, None if that leg is not complete."""
        path = self.leg(arm, run) / "verdict.json"
        return self._read(path, FORM_LEG) if path.exists() else None

    def verdicts(self, arm: str) -> list[LegVerdict]:
        """Return the verdicts of the legs of ARM that are complete. Raises Refused NV853 for another's file."""
        verdicts = (self.verdict(arm, run) for run in self._runs(arm, self.manifest().runs))
        return [verdict for verdict in verdicts if verdict is not None]

    def artifact(self, compile_key: str, number: int = 0) -> Path:
        """Return the directory of what was compiled for COMPILE_KEY, the compile NUMBER if there are several."""
        return self.path / "artifacts" / compiled.directory_of(compile_key, number)

    def keep(self, directory: Path, name: str, text: str) -> None:
        """Write TEXT as the file NAME in DIRECTORY, a leg or the whole. Raises Refused NV920 if that fails."""
        durable.replace(directory / name, text.encode(), 0o600, code="NV920")

    def log(self, leg: Path) -> str:
        """Return the engine's log of LEG. Raises Refused NV853 if it cannot be read."""
        return compiled.content(leg / "engine.log", CURE).decode("utf-8", "replace")

    def series(self) -> dict[str, tuple[MemorySample, ...]]:
        """Return the series of memory of every leg that has one, by arm and run. Raises Refused NV853."""
        manifest = self.manifest()
        legs = [(arm.name, run) for arm in manifest.arms for run in self._runs(arm.name, manifest.runs)]
        every = [
            (f"{arm}, {run}{name}", self.memory(self.leg(arm, run) / below))
            for arm, run in legs
            for name, below in (("", ""), (f", {EVALUATION}", EVALUATION))
        ]
        return {name: samples for name, samples in every if samples}

    def memory(self, leg: Path) -> tuple[MemorySample, ...]:
        """Return the series of memory of LEG, empty without one. Raises Refused NV853 for another's file."""
        path = leg / rundir.MEMORY
        if not path.exists():
            return ()
        *lines, _ = compiled.content(path, CURE).split(b"\n")  # a run that was killed may have left a part of a line
        return tuple(
            self._structured(f"{path}:{number}", line, memoryseries.FORM) for number, line in enumerate(lines, 1)
        )

    def finish(self, verdict: LegVerdict, answers: Iterable[Answered]) -> None:
        """Write the ANSWERS of a leg, then its VERDICT. Raises Refused NV920 if that fails."""
        leg = self.leg(verdict.arm, verdict.run)
        self.keep(leg, "perq.jsonl", lines(answers).decode())
        # Last: a leg with a verdict is complete, and is not run again.
        self.keep(leg, "verdict.json", documents.encode(FORM_LEG, verdict).decode())

    def arms(self) -> tuple[ArmLegs, ...]:
        """Return every arm with the legs that are complete. Raises Refused NV853 for another's file."""
        manifest = self.manifest()
        compared = []
        for arm in manifest.arms:
            legs = []
            for run in self._runs(arm.name, manifest.runs):
                verdict = self.verdict(arm.name, run)
                if verdict is not None:
                    legs.append((verdict, self._answers(self.leg(arm.name, run) / "perq.jsonl")))
            compared.append(ArmLegs(arm.name, arm.on, tuple(legs)))
        return tuple(compared)

    def _runs(self, arm: str, most: int) -> list[int]:
        """Return the numbers of the runs of ARM, at most MOST, that have a directory. A manifest may say any number."""
        names = [path.name.removeprefix("run-") for path in reading.listed(self.path / "arms" / arm, "run-*")]
        numbers = {int(name) for name in names if re.fullmatch("[1-9][0-9]{0,8}", name)}
        return sorted(number for number in numbers if number <= most)

    def trace(self, arm: str, run: int = 1) -> Path:
        return self.path / "arms" / arm / ("trace" if run == 1 else f"trace-{run}")

    def kernels(self) -> tuple[KernelTable, ...]:
        """Return what the traces of the arms add up to, of those that were taken."""
        manifest = self.manifest()
        runs = range(1, manifest.trace.runs + 1)
        paths = [self.trace(arm.name, run) / "kernels.json" for arm in manifest.arms for run in runs]
        return tuple(self._read(path, FORM_KERNELS) for path in paths if path.exists())

    def keep_trace(self, table: KernelTable, trace: bytes) -> None:
        """Write TRACE, if it is not empty, and then what it adds up to. Raises Refused NV920 if that fails."""
        directory = self.trace(table.arm, table.run)
        if table.trace:
            durable.replace(directory / table.trace, trace, 0o600, code="NV920")
        self.keep(directory, "kernels.json", documents.encode(FORM_KERNELS, table).decode())

    def compared(self, comparison: Comparison, analysis: str, summary: str, page: str) -> None:
        """Write the COMPARISON of all arms, and for people its ANALYSIS, its SUMMARY and its web PAGE."""
        self.keep(self.path, "comparison.json", documents.encode(FORM_COMPARISON, comparison).decode())
        self.keep(self.path, "ANALYSIS.md", analysis)
        self.keep(self.path, "summary.md", summary)
        self.keep(self.path, "report.html", page)

    def _answers(self, path: Path) -> tuple[Answered, ...]:
        lines = compiled.content(path, CURE).splitlines()
        return tuple(self._structured(f"{path}:{number}", line, FORM_ANSWER) for number, line in enumerate(lines, 1))

    def _read(self, path: Path, form: Form[T]) -> T:
        return self._structured(str(path), compiled.content(path, CURE), form)

    def _structured(self, where: str, data: bytes, form: Form[T]) -> T:
        return documents.parse(form, data, lambda _: (), code="NV853", label=where, cure=CURE)


_OTHER = "name another directory: --output DIR"
CURE = "name the directory of a run, as `nvllm ablate` printed it"


def document(form: Form[T], value: T) -> dict[str, Json]:
    """Return VALUE as a document of FORM."""
    return cast("dict[str, Json]", documents.unstructure(form, value))


def _identity(manifest: RunManifest) -> dict[str, Json]:
    """Return the parts of MANIFEST, but those of its host, that are the same in every leg of a run."""
    parts = document(FORM_RUN, manifest)
    return {name: part for name, part in parts.items() if name not in {"created", "host", "other_hosts"}}


def _host_identity(host: HostState) -> dict[str, Json]:
    """Return the parts of HOST, as ``host.PART``, that are the same in every leg of a run that is not mixed.

    A run may go on after a boot of the host into another kernel, and beside files of the project that have changed.
    """
    return {
        "host.machine": host.machine,
        "host.processor": host.processor,
        "host.gpus": list(host.gpus),
        "host.engine": host.engine,
        "host.commit": host.commit,
    }


def _short(value: Json) -> str:
    return canonical.encode(value).decode()[:200]
