"""The bless manifest: binds a serve hash to a cache tree and to the evidence. Read strictly, written atomically.

A manifest names nothing of a host: no path, no mount, no mode of a mount. It lists the whole tree, so that its
signature covers every file, and the factors of its serve hash, so that each difference has a name.

It may expire. A cache was tested on one day, but drivers and libraries change, and a manifest can lie in a repository
for ever. A profile may also limit the age of its blessings; the earlier end counts.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from nvllm.cache import cachetree, confidence
from nvllm.cache.cachetree import Tree
from nvllm.cache.evaluation import EvaluationRecord
from nvllm.core import canonical, clock, documents, reading
from nvllm.core.fields import NOT_EMPTY, Count, Form, Positive, Rule, Seconds, Sha256, Word
from nvllm.core.refusal import refuse, refusing

SCHEMA = "nvllm.manifest/1"

LEAST_BOOTS = 5
"""The fewest trials of a bless that is not marked unsafe: fewer find a bad cache too seldom.

A cache like the one of README.md, right in 1 of 5 starts, passes all five once in 3,000 blesses (`confidence.py`)."""

PREFIX = 7
"""Digits of the serve hash in the name of a manifest's file."""

_CURE = "restore the file from git, or bless again"
DAY = 86_400
_UNITS = {"h": 3600, "d": DAY, "w": 7 * DAY}
_DURATION = re.compile(r"([1-9][0-9]{0,4})([hdw])")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

Name = Annotated[str, Rule("^[a-z0-9][A-Za-z0-9._-]*$", "lower-case letters, digits, `.`, `_` and `-`")]
Version = Annotated[int, Rule(minimum=1, maximum=10**12)]
"""Nobody blesses so often, and each blessing needs a higher version that JSON can hold."""
Time = Annotated[
    str,
    Rule("^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$", "a time such as 2026-01-31T12:00:00Z"),
]


@dataclass(frozen=True, slots=True)
class PhaseTime:
    name: Word
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class TrialMachine:
    """Where a trial ran: the NAME of a machine in its cluster, and the class that it computed of itself."""

    name: Word
    host: Word


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One fresh boot on the read-only cache. LOG is the sha256 of its log, PEAK_MEMORY bytes, BOOT the container.

    PROCESSOR is the processor time until it was ready, in seconds.
    """

    number: Positive
    boot: Sha256
    coherent: bool
    """The same prompt, repeated, gave one answer."""
    independent: bool
    """Another prompt in between changed no answer."""
    loaded: bool
    """The load marker was seen, with the expected path."""
    saved: bool
    """A save marker was seen: something was compiled."""
    unchanged: bool
    """The cache had the same tree hash afterwards."""
    prompts: Positive
    replays: Positive
    compiles: Count
    kv_tokens: Positive | None
    peak_memory: Count | None
    processor: Seconds
    phases: tuple[PhaseTime, ...]
    log: Sha256
    machine: TrialMachine | None = None
    """The machine that it was sent to; None if it ran on the host that compiled."""
    evaluation: EvaluationRecord | None = None
    """What the profile's evaluation came to; None in a trial that was not asked it."""

    @property
    def good(self) -> bool:
        """Whether the trial passed: coherent answers, all three signals of reuse, and nothing compiled."""
        answers = self.coherent and self.independent and (self.evaluation is None or self.evaluation.passed)
        return answers and self.loaded and not self.saved and self.unchanged and self.compiles == 0


@dataclass(frozen=True, slots=True)
class StartCost:
    """What a start took until it was ready: the time of each phase, and processor time, in seconds."""

    phases: tuple[PhaseTime, ...]
    processor: Seconds


@dataclass(frozen=True, slots=True)
class ColdStart(StartCost):
    """What the bootstrap took, and how much it compiled according to its log.

    COMPILES counts graphs and functions; vLLM does not log them where Inductor compiles both, as on the CPU.
    SAVED counts the functions that it wrote for later starts, KERNELS those that Triton found in no cache.
    """

    compiles: Count
    saved: Positive
    kernels: Count


@dataclass(frozen=True, slots=True)
class Claim:
    """What the trials show; see `confidence.py`. ASKED is the rate that they had to show, if one was named."""

    asked: Annotated[float, Rule(allowed="a rate above 0 and below 1", above=0, below=1)] | None
    boots: Positive
    bound: Annotated[float, Rule(minimum=0, maximum=1)]
    """The lower 95 % bound of the rate of good boots."""
    prompts: Count
    replays: Count


@dataclass(frozen=True, slots=True)
class KernelVariants:
    """A Triton kernel in the tree, by NAME, and in how many VARIANTS, one for each kind of arguments."""

    name: Word
    variants: Positive


@dataclass(frozen=True, slots=True)
class Coverage:
    """The rounds of requests of a bless: how many kernels were NEW in each, and the KERNELS of the tree.

    On the CPU, NEW counts graphs, and there are no KERNELS. Each trial was asked the same REQUESTS. UNMET names what
    was to be computed in one step and never was, so that a kernel for it may be missing.
    """

    new: Annotated[tuple[Count, ...], NOT_EMPTY]
    requests: Count
    kernels: tuple[KernelVariants, ...]
    unmet: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """manifests/blessed/<label>_<serve-hash 7>.json: binds a serve hash to a cache tree and to the evidence.

    It names no place of any host and no mount. Times are UTC.
    """

    schema: Annotated[str, Rule(choices=(SCHEMA,))]
    label: Name
    image: Name
    profile: Name
    version: Version
    """Greater than that of every earlier manifest of the serve hash."""
    created: Time
    expires: Time | None
    unsafe: bool
    """Whether it was made with fewer trials than a bless has; no production profile serves it."""
    domain: Annotated[str, Rule("^nvllm\\.serve/[0-9]+$", "the domain of a serve hash")]
    serve_hash: Sha256
    factors: Mapping[str, Any]
    """What the serve hash is taken over."""
    build_hash: Sha256
    tree_hash: Sha256
    tree: Tree
    claim: Claim
    trials: Annotated[tuple[TrialRecord, ...], NOT_EMPTY]
    kv_tokens: Positive | None
    phases: tuple[PhaseTime, ...]
    """The typical start of the trials."""
    cold: ColdStart
    """The start of the bootstrap, which compiled."""
    coverage: Coverage | None = None
    """What was asked so that the tree has every kernel; None on the CPU, where Triton compiles none."""
    image_id: Annotated[str | None, Rule("^sha256:[0-9a-f]{64}$", "a digest, sha256: and 64 hex digits")] = None
    """The image that it was made with, by its configuration; None in those of an older nvllm.

    It is no factor of the serve hash. The build hash already decides the image, by recorded digests or by the build of
    a host (`presence.judged`), so a factor would only end the blessings that there are. Two hosts whose builds differ
    without recorded digests have one serve hash, and this tells them apart.
    """

    @property
    def evaluations(self) -> list[EvaluationRecord]:
        """What its trials were asked besides the probe, and how it came out."""
        return [trial.evaluation for trial in self.trials if trial.evaluation is not None]

    @property
    def cure(self) -> str:
        """The command that replaces this blessing."""
        return f"nvllm bless {self.image} --profile {self.profile} --rebless"

    @property
    def filename(self) -> str:
        return f"{self.label}_{self.serve_hash[:PREFIX]}.json"

    @property
    def archived(self) -> str:
        """The name of its file in the archive."""
        return f"{self.label}_{self.serve_hash[:PREFIX]}_v{self.version}.json"


FORM = Form("manifest", SCHEMA, "Bless manifest", Manifest)


def parse_expiry(text: str, now: float) -> int:
    """Return the time that TEXT means at NOW, both in seconds since 1970.

    TEXT is a duration such as ``30d`` (also ``h`` and ``w``), a day such as ``2027-01-31``, which begins at midnight
    UTC, or a time as manifests write it. Raises Refused NV108 for anything else, and for a time before NOW.
    """
    forms = "a time in the future: 30d, 2027-01-31 or 2027-01-31T12:00:00Z"
    length = _DURATION.fullmatch(text)
    try:
        if length is not None:
            end = int(now) + int(length[1]) * _UNITS[length[2]]
        else:
            end = clock.seconds(f"{text}T00:00:00Z" if _DATE.fullmatch(text) else text)
    except ValueError:
        raise refuse("NV108", "--expires", forms, text, "write --expires 30d") from None
    if end <= now:
        raise refuse("NV108", "--expires", forms, f"{clock.stamp(end)}, which is over", "write --expires 30d")
    return end


def expiry(created: float, expires: int | None, valid_days: int | None) -> int | None:
    """Return when a blessing that was CREATED at that time expires, or None if never; times in seconds since 1970.

    EXPIRES is what the user asked for, VALID_DAYS what the profile allows; the earlier one counts.
    """
    ends = [expires] if expires is not None else []
    ends += [int(created) + valid_days * DAY] if valid_days is not None else []
    return min(ends, default=None)


def claimed(trials: tuple[TrialRecord, ...], asked: float | None) -> Claim:
    """Return what TRIALS show. Two trials in one container count as one."""
    boots = {trial.boot for trial in trials}
    bound = confidence.lower_bound(len(boots)) if all(trial.good for trial in trials) else 0.0
    return Claim(
        asked, len(boots), bound, sum(trial.prompts for trial in trials), sum(trial.replays for trial in trials)
    )


def encode(manifest: Manifest) -> bytes:
    """Return MANIFEST as the bytes of its file; there is only one form."""
    return documents.encode(FORM, manifest)


def read(path: Path, label: str) -> Manifest:
    """Return the manifest at PATH, which messages call LABEL.

    Raises Refused NV908 with everything that is wrong: a file that cannot be read, another schema or layout than
    nvllm writes, another file name, or a hash that does not fit the content.
    """
    with refusing("NV908", label, "a manifest that can be read", _CURE):
        data = reading.unlinked(path, reading.MANIFEST)
    return decode(data, label)


@functools.lru_cache(maxsize=64)  # one command reads the same few manifests many times over
def decode(data: bytes, label: str) -> Manifest:
    """Return the manifest in DATA; see `read`. The last part of LABEL is the name of its file."""
    rules = functools.partial(wrong, filename=Path(label).name)
    return documents.decode(FORM, data, rules, code="NV908", label=label, cure=_CURE)


def wrong(manifest: Manifest, filename: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, expected and found of each error in MANIFEST, from the file FILENAME, that a schema cannot find."""
    if filename not in {manifest.filename, manifest.archived}:
        yield ".", f"the file name {manifest.filename}", filename
    for path, text in [(".created", manifest.created), (".expires", manifest.expires)]:
        if text is not None and not _is_time(text):
            yield path, "a time that exists", text
    if manifest.expires is not None and manifest.expires <= manifest.created:
        yield ".expires", f"a time after {manifest.created}", manifest.expires
    yield from _wrong_hashes(manifest)
    yield from wrong_tree(manifest.tree)
    if not manifest.tree.is_sealed:
        yield ".tree", "modes of a sealed tree", "another mode"
    yield from _wrong_trials(manifest)


def wrong_tree(tree: Tree) -> Iterator[tuple[str, str, str]]:
    """Yield path, expected and found of each error in TREE that a schema cannot find."""
    for path, problem in cachetree.problems(tree):
        yield f".tree: {path!r}", "a path below the top, once, in order, in a directory of the tree", problem


def _wrong_hashes(manifest: Manifest) -> Iterator[tuple[str, str, str]]:
    serve_hash = canonical.digest(manifest.domain, manifest.factors)
    if manifest.serve_hash != serve_hash:
        yield ".serve_hash", f"the hash of its factors, {serve_hash}", manifest.serve_hash
    if manifest.factors.get("build_hash") != manifest.build_hash:
        yield ".build_hash", f"that of its factors, {manifest.factors.get('build_hash')}", manifest.build_hash
    if manifest.tree_hash != manifest.tree.hash:
        yield ".tree_hash", f"the hash of its tree, {manifest.tree.hash}", manifest.tree_hash


def _wrong_trials(manifest: Manifest) -> Iterator[tuple[str, str, str]]:
    for number, trial in enumerate(manifest.trials, 1):
        if trial.number != number:
            yield f".trials[{number - 1}].number", str(number), str(trial.number)
        if not trial.good:
            yield f".trials[{number - 1}]", "a trial that passed", "one that did not"
    expected = claimed(manifest.trials, manifest.claim.asked)
    if manifest.claim != expected:
        yield ".claim", f"what the trials support: {_said(expected)}", _said(manifest.claim)
    if expected.asked is not None and expected.bound < expected.asked:
        needed = confidence.boots_for(expected.asked)
        yield ".claim.asked", f"{needed} boots for {expected.asked:g}", str(expected.boots)
    if not manifest.unsafe and expected.boots < LEAST_BOOTS:
        yield ".unsafe", f"at least {LEAST_BOOTS} boots, or unsafe", f"{expected.boots} boots"


def _said(claim: Claim) -> str:
    return f"{claim.boots} boots, bound {claim.bound:.4f}, {claim.prompts} prompts, {claim.replays} replays"


def _is_time(text: str) -> bool:
    try:
        return clock.stamp(clock.seconds(text)) == text
    except ValueError:
        return False
