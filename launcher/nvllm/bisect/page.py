"""The report of a bisect for other people: a web page, and Markdown for an upstream issue.

Both are made from the journal alone, so they are the same on every machine, and show no path of this one.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvllm.bisect import judge, records, report
from nvllm.bisect.answer import Done
from nvllm.bisect.combinations import PatchSet, set_hash
from nvllm.bisect.records import BisectState, JournalEntry, Tried
from nvllm.bisect.search import beliefs, concluded
from nvllm.core.refusal import Refused
from nvllm.pages import plots
from nvllm.pages.page import printable, rendered
from nvllm.trials.trial import TrialOutcome

_MOST = 50_000
"""Characters of Markdown after which no further set is listed: GitHub takes 65,536."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A set on which the answer rests: its ROLE, VERDICT and TRIALS, and the OUTPUT of the last trial that says so.

    HOLDS is None for an end of a search that is not finished.
    """

    role: str
    chosen: PatchSet
    verdict: str
    trials: str
    holds: bool | None
    output: str


def proofs(state: BisectState, done: Done | None) -> list[Proof]:
    """Return the sets that the answer of DONE rests on; without an answer, the ends."""
    rows = []
    lines = () if done is None else (*done.certificate, *([] if done.rest is None else [done.rest]))
    for line in lines:
        output, counted = _last_output(state, line.chosen, line.verdict.outcome), str(line.verdict.tally)
        rows.append(Proof(line.role, line.chosen, str(line.verdict), counted, line.holds, output))
    if lines:
        return rows
    for name, chosen in state.problem.ends.items():
        verdict = concluded(state.problem, state.evidence, chosen)
        output = _last_output(state, chosen, None if verdict is None else verdict.outcome)
        counted = str(state.evidence.tally(chosen))
        rows.append(Proof(f"the {name} end", chosen, str(verdict or "open"), counted, None, output))
    return rows


def _last_output(state: BisectState, chosen: PatchSet, outcome: TrialOutcome | None) -> str:
    """Return the last lines of the last trial of CHOSEN, or of a set with the same source, that had OUTCOME."""
    trees = {patch_set: built.tree for patch_set, built in state.builds.items() if built.tree}
    alike = [patch_set for patch_set, tree in trees.items() if tree == trees.get(chosen)] or [chosen]
    tried = [
        trial for patch_set in alike for trial in state.trials.get(patch_set, ()) if outcome in (None, trial.outcome)
    ]
    return printable(tried[-1].said) if tried else ""


def facts(entries: Sequence[JournalEntry]) -> list[tuple[str, str]]:
    """Return what was searched, where, when and at what cost: names and texts. Times are those of the journal."""
    state = records.fold(entry.record for entry in entries)
    start, test = state.start, state.start.probe
    words = [f"…/{shlex.quote(Path(arg).name)}" if arg.startswith("/") else shlex.quote(arg) for arg in test.command]
    probe = [printable(" ".join(words)), f"sha256 {test.sha256[:12]}"]
    probe += [f"only {printable(test.regress)} is bad"] if test.regress else []
    probe += ["without an engine"] if test.build_only else []
    probe += report.corrections_text(state).splitlines()
    first, last = entries[0].when, entries[-1].when
    cost = f"{len(state.builds)} images, {len(state.sequence)} trials"
    effect = "break" if start.find == "break" else "repair"
    what = f"the patch that {effect}s it" if start.mode == "ordered" else f"a 1-minimal set of patches that {effect} it"
    sure = f"confidence {start.confidence:g}, {start.repeats} repeats, at most {start.problem.most_trials} trials"
    return [
        *([("vLLM", f"{start.version}, commit {start.commit}")] if start.version else []),
        ("series", f"{start.series}, {len(start.order)} patches"),
        ("image", f"{start.image}, profile {start.profile}"),
        ("searched for", f"{what} ({sure})"),
        ("probe", ", ".join(probe)),
        ("host", start.host),
        ("started", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(first))),
        ("duration", f"{_took(last - first)} to the last record; {_took(state.spent)} of builds and trials"),
        ("cost", cost),
    ]


def _took(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def belief_curves(entries: Sequence[JournalEntry]) -> list[tuple[str, tuple[float, ...]]]:
    """Return each patch with its probability to be a culprit, before the first trial and after each one."""
    first, *others = [entry.record for entry in entries]
    state = records.fold([first])
    rows = [beliefs(state.problem, state.evidence)]
    for record in others:
        state = state.after(record)
        if isinstance(record, Tried):
            rows.append(beliefs(state.problem, state.evidence))
    return [(column[0][0], tuple(chance for _, chance in column)) for column in zip(*rows, strict=True)]


@dataclass(frozen=True, slots=True)
class PatchRow:
    """A patch in a report: its part in what was found, what it does, and where it is upstream."""

    name: str
    part: str
    summary: str
    upstream: str
    link: str


def patches(state: BisectState, done: Done | None) -> list[PatchRow]:
    """Return the patches of the series, in its order."""
    parts = {} if done is None else dict(_parts(done))
    rows = []
    for name in state.start.order:
        known = state.start.summaries.get(name)
        summary, upstream = (known.summary, known.upstream) if known else ("", "")
        repository, _, number = upstream.partition("#")
        link = f"https://github.com/{repository}/issues/{number}" if upstream else ""
        rows.append(PatchRow(name, parts.get(name, ""), printable(summary), upstream, link))
    return rows


def _parts(done: Done) -> Iterator[tuple[str, str]]:
    for further in done.further:
        yield from ((name, "another cause") for name in further.culprits)
    for name, by in done.along:
        yield name, f"comes along, required by {', '.join(by)}"
    for name in done.culprits:
        yield name, "cause" if done.exact and not done.stopped else "candidate"


def html(entries: Sequence[JournalEntry], done: Done | None, refused: Refused | None = None) -> str:
    """Return the report as one HTML page without external resources. REFUSED says why nothing was found, if so."""
    state = records.fold(entry.record for entry in entries)
    tried = [entry for entry in entries if isinstance(entry.record, Tried)]
    curves = sorted(belief_curves(entries), key=lambda curve: -curve[1][-1])
    return rendered(
        Path(__file__).with_name("page.html.jinja"),
        title=f"Bisect of {state.start.image}, series {state.start.series}",
        report=report.data(state, done),
        facts=facts(entries),
        patches=patches(state, done),
        proofs=[(proof, _ids(state, proof.chosen), set_hash(proof.chosen)) for proof in proofs(state, done)],
        bigger_end=state.start.high,
        marks=report.MARKS,
        legend=report.LEGEND,
        curves=curves,
        plot=plots.curves("Probability of each patch after each trial", curves, "trials", "probability"),
        tried=[(entry.when, entry.record, number in state.numbers) for number, entry in enumerate(tried)],
        clock=lambda when: time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(when)),
        set_hash=set_hash,
        ends=[(name, state.evidence.tally(chosen)) for name, chosen in state.problem.ends.items()],
        interval=lambda counted: judge.failure_rate(counted).interval(),
        replicas=[state.replicas(chosen) for chosen in state.problem.ends.values()],
        refusals=() if refused is None else refused.refusals,
        conclusion="" if done is None else report.conclusion(state.start, done),
        notes=() if done is None else report.remarks(state, done),
    )


def markdown(entries: Sequence[JournalEntry], done: Done) -> str:
    """Return the report of a finished search for an upstream issue: Markdown as GitHub reads it, and short enough."""
    state = records.fold(entry.record for entry in entries)
    named = [row for row in patches(state, done) if row.part]
    reference = {row.name: f"[{row.upstream}]({row.link})" if row.link else "" for row in named}
    parts = [f"**{_cell(report.conclusion(state.start, done))}**"]
    parts += [_table(["", ""], [(name, _cell(text)) for name, text in facts(entries)])]
    parts += [
        _table(
            ["patch", "part", "summary", "upstream"],
            [(f"`{row.name}`", _cell(row.part), _cell(row.summary), reference[row.name]) for row in named],
        )
    ]
    rested = proofs(state, done)
    marks = {True: "yes", False: "**no**", None: ""}
    parts += [
        _table(
            ["tried", "set", "verdict", "trials", "holds"],
            [
                (
                    _cell(proof.role),
                    f"`{set_hash(proof.chosen)}`",
                    _cell(proof.verdict),
                    _cell(proof.trials),
                    marks[proof.holds],
                )
                for proof in rested
            ],
        )
    ]
    parts += [
        "\n".join(f"- {_cell(line)}" for line in (*report.ends_text(state).splitlines(), *report.remarks(state, done)))
    ]
    outputs = [f"{_cell(proof.role)}:\n\n{_fenced(proof.output)}" for proof in rested if proof.output]
    while sum(map(len, outputs)) > _MOST // 2:  # the other half is for the sets
        outputs.pop()
    if outputs:
        parts += [_details("What the probe wrote, last lines", "\n\n".join(outputs))]
    rows = [
        (f"`{set_hash(chosen)}`", _cell(_ids(state, chosen)), _cell(str(state.evidence.tally(chosen))))
        for chosen in state.trials
    ]
    while len(rows) > 1 and sum(len(cell) for row in rows for cell in row) + sum(map(len, parts)) > _MOST:
        rows.pop()
    left = len(state.trials) - len(rows)
    table = _table(["set", "patches", "trials"], rows) + (f"\n\n{left} further sets are not listed." if left else "")
    parts += [_details(f"All sets that were tried: {len(state.trials)}", table)]
    return "\n\n".join(parts) + "\n"


def _ids(state: BisectState, chosen: PatchSet) -> str:
    return ", ".join(state.problem.combinations.ordered(chosen)) or "no patch"


def _cell(text: str) -> str:
    """Return TEXT so that it stays text in one line of Markdown, also in a table."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(printable(text).split()))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def _fenced(text: str) -> str:
    """Return TEXT as a block of code. Its fence is longer than any in TEXT."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def _details(summary: str, text: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"
