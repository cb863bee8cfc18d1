"""Image specs read and judged: ``images/<name>.yaml`` in, an :class:`~nvllm.spec.ImageSpec` out.

A spec is judged whole. The schema's findings and those that need more than one field come together, each with
its line, so that one run of an editor cures them all. `spec.py` is the vocabulary, and `specvalues.py` fills it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TypeAlias, cast

from nvllm import canonical, schemas, specvalues, yamlnodes
from nvllm.canonical import Json
from nvllm.plan import BLESSED_ENVIRONMENT, ENGINE_ENVIRONMENT, UNCACHED
from nvllm.refusal import Refusal, Refused, refuse_any
from nvllm.spec import ImageSpec
from nvllm.waivers import TRUST_REMOTE_CODE, WAIVERS

Step: TypeAlias = "str | int"

INPUTS_DOMAIN = "nvllm.lock-inputs/1"

RESERVED: Mapping[str, str] = {
    "host": "nvllm publishes the port on 127.0.0.1 of the host",
    "port": "write the profile's `port:` instead",
    "uds": "the engine is reached by its port",
    "model": "write the profile's `model:` instead",
    "served-model-name": "the model is served under its name in the spec",
    "revision": "the lock pins the model's revision",
    "tokenizer-revision": "the lock pins the model's revision",
    "download-dir": "the engine downloads nothing",
    "api-key": "no secret enters an engine",
    "hf-token": "no secret enters an engine",
    "config": "write its arguments into the profile, where they are hashed",
}
"""Arguments of vllm serve that a profile may not hold, because nvllm decides them, and why."""


def load(path: Path, shown: str) -> ImageSpec:
    """Return the image spec in the file PATH, which messages call SHOWN.

    Raises Refused NV107 if there is no such file, and what `parse` raises.
    """
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        images = sorted(other.stem for other in path.parent.glob("*.yaml") if other.is_file())
        expected = f"one of the images {', '.join(images)}" if images else "an image spec"
        meant = schemas.nearest(path.stem, images) or next(iter(images), None)
        cure = f"name another image, such as {meant}" if meant is not None else f"write {shown}"
        found = "no such file" if isinstance(error, FileNotFoundError) else str(error.strerror)
        raise Refused([Refusal("NV107", shown, expected, found, cure)]) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        found = f"the byte 0x{error.object[error.start]:02x}, which is not UTF-8"
        cure = "save the file as UTF-8"
        raise Refused([Refusal("NV103", f"{shown}:{line}", "text in UTF-8", found, cure)]) from error
    return parse(text, shown)


def parse(text: str, shown: str) -> ImageSpec:
    """Return the image spec in TEXT. SHOWN is how messages name the file; its stem must be the spec's name.

    Raises Refused with everything that is wrong: NV103 for what is no YAML; else NV102 for names that can
    move, NV601 for waivers that are missing, and NV101 for all the rest.
    """
    draft = _Draft(yamlnodes.parse(text, shown), shown)
    refuse_any([*_by_schema(draft), *_by_fields(draft)])
    return specvalues.structure(draft.document.value)


def other_platform(spec: ImageSpec, platform: str) -> Iterator[Refusal]:
    """Yield NV108 if SPEC is not made for PLATFORM."""
    if platform not in spec.platforms:
        allowed = ", ".join(spec.platforms)
        yield Refusal("NV108", "--platform", f"one of {allowed}", platform, f"--platform {spec.platforms[0]}")


def inputs(spec: ImageSpec, platform: str) -> str:
    """Return the hex sha256 over what of SPEC decides its lock for PLATFORM.

    Profiles, runtime and the enabled patches are not in it: they need no other locked file. Targets, and what a wheel
    brings, are there only where a spec has any: what is locked without them does not depend on them.
    """
    part = {
        "platform": platform,
        "epoch": spec.epoch,
        "base": dataclasses.asdict(spec.base),
        "vllm": {name: value for name, value in dataclasses.asdict(spec.vllm).items() if name != "brings" or value},
        "python": dataclasses.asdict(spec.python),
        "series": spec.patches.series,
        "models": {name: dataclasses.asdict(model) for name, model in spec.models.items()},
    }
    if spec.targets:
        part["targets"] = list(spec.targets)
    if spec.device_code is not None:
        part["device_code"] = dataclasses.asdict(spec.device_code)
    return canonical.digest(INPUTS_DOMAIN, cast("Json", part))


@dataclass(frozen=True, slots=True)
class _Draft:
    """A parsed spec that may still be wrong anywhere: looking into it returns nothing rather than fails."""

    document: yamlnodes.Document
    shown: str

    def at(self, *steps: Step) -> Json:
        """Return the value at STEPS, or None."""
        value: Json = self.document.value
        for step in steps:
            if isinstance(step, str) and isinstance(value, Mapping):
                value = value.get(step)
            elif isinstance(step, int) and isinstance(value, list) and step < len(value):
                value = value[step]
            else:
                return None
        return value

    def word(self, *steps: Step) -> str | None:
        """Return the text at STEPS if it can stand in a message; what cannot, the schema refuses."""
        value = self.at(*steps)
        return value if isinstance(value, str) and value.isprintable() else None

    def mapping(self, *steps: Step) -> Mapping[str, Json]:
        value = self.at(*steps)
        return value if isinstance(value, Mapping) else {}

    def items(self, *steps: Step) -> Sequence[Json]:
        value = self.at(*steps)
        return value if isinstance(value, list) else []

    def refusal(self, code: str, steps: Sequence[Step], expected: str, found: str, cure: str) -> Refusal:
        where = f"{self.shown}:{self.document.line(steps)}: {yamlnodes.dotted(steps)}"
        return Refusal(code, where, expected, found, cure)

    def bad(self, steps: Sequence[Step], expected: str, found: str, cure: str) -> Refusal:
        return self.refusal("NV101", steps, expected, found, cure)


def _by_schema(draft: _Draft) -> Iterator[Refusal]:
    for problem in schemas.validate("image", draft.document.value):
        yield draft.refusal(problem.code or "NV101", problem.steps, problem.allowed, problem.found, problem.cure)


def _by_fields(draft: _Draft) -> Iterator[Refusal]:
    """Yield what no schema can see, because it is about two places at once."""
    yield from _name(draft)
    yield from _doubles(draft)
    yield from _vllm(draft)
    yield from _device_code(draft)
    yield from _decided(draft, "runtime", "environment")
    for name in draft.mapping("models"):
        yield from _model(draft, name)
    for name in draft.mapping("profiles"):
        yield from _profile_model(draft, name)
        yield from _arguments(draft, name)
        yield from _decided(draft, "profiles", name, "environment")
        yield from _waivers(draft, name)
        yield from _blessed(draft, name)


def _name(draft: _Draft) -> Iterator[Refusal]:
    name, stem = draft.word("name"), PurePath(draft.shown).stem
    if name is not None and name != stem:
        yield draft.bad(["name"], f"{stem}, the name of the file", schemas.show(name), f"write `name: {stem}`")


def _doubles(draft: _Draft) -> Iterator[Refusal]:
    """Yield one refusal for each entry that says again what an entry of the same list says before it."""
    lists: list[tuple[tuple[str, ...], str | None]] = [
        (("platforms",), None),
        (("targets",), None),
        (("base", "packages"), None),
        (("vllm", "differs"), None),
        (("vllm", "brings"), None),
        (("python", "requirements"), None),
        (("python", "exclude"), "name"),
        (("python", "aliases"), "name"),
        (("patches", "enable"), None),
        (("device-code", "wheels"), None),
        (("device-code", "lacking"), "library"),
    ]
    for profile in draft.mapping("profiles"):
        lists.append((("profiles", profile, "sentinels"), None))
        lists.append((("profiles", profile, "gpu", "capabilities"), None))
        lists.append((("profiles", profile, "waivers"), "name"))
    for steps, key in lists:
        is_distribution = steps[0] == "python"
        seen: dict[str, int] = {}
        for index in range(len(draft.items(*steps))):
            here: tuple[Step, ...] = (*steps, index) if key is None else (*steps, index, key)
            text = draft.word(*here)
            if text is None:
                continue
            word = _normal(text.partition("==")[0]) if is_distribution else text
            if word in seen:
                found = f"{schemas.show(text)}, in the list already on line {draft.document.line((*steps, seen[word]))}"
                yield draft.bad(here, "each entry once", found, "remove one of the two")
            else:
                seen[word] = index


def _vllm(draft: _Draft) -> Iterator[Refusal]:
    name, version = draft.word("vllm", "distribution"), draft.word("vllm", "version")
    if name is None:
        return
    for index in range(len(draft.items("python", "exclude"))):
        excluded = draft.word("python", "exclude", index, "name")
        if excluded is not None and _normal(excluded) == _normal(name):
            here: list[Step] = ["python", "exclude", index, "name"]
            cure = "remove the entry: this is the distribution that is served"
            yield draft.bad(here, "a distribution other than vllm.distribution", schemas.show(excluded), cure)
    if version is None or not isinstance(draft.at("python", "requirements"), list):
        return
    wanted = f"{name}=={version}"
    for index, requirement in enumerate(draft.items("python", "requirements")):
        distribution, pinned, pin = requirement.partition("==") if isinstance(requirement, str) else ("", "", "")
        if pinned and _normal(distribution) == _normal(name):
            if pin != version:
                steps: list[Step] = ["python", "requirements", index]
                expected = f"{wanted}, by vllm.distribution and vllm.version"
                yield draft.bad(steps, expected, schemas.show(requirement), f"write {wanted}, or mend vllm.version")
            return
    expected = f"{wanted}, by vllm.distribution and vllm.version"
    yield draft.bad(["python", "requirements"], expected, "no such requirement", f"add {wanted}")


def _device_code(draft: _Draft) -> Iterator[Refusal]:
    """Refuse targets that nothing is held against, and the reverse."""
    if (draft.at("targets") is None) != (draft.at("device-code") is None):
        has, lacks = ("targets", "device-code") if draft.at("device-code") is None else ("device-code", "targets")
        yield draft.bad(
            [has], "targets and device-code, or neither", f"no {lacks}", f"write `{lacks}:`, or remove {has}"
        )


def _model(draft: _Draft, name: str) -> Iterator[Refusal]:
    model = draft.mapping("models", name)
    if model.get("kind") != "huggingface":
        return
    if "revision" in model and "follow" in model:
        cure = "remove `follow:` to stay at the revision, or `revision:` to let `nvllm lock` pin what it follows"
        yield draft.bad(["models", name, "follow"], "one of revision and follow", "both", cure)
    elif "revision" not in model and "follow" not in model:
        cure = "write `follow: main`, and `nvllm lock` pins it"
        yield draft.bad(["models", name], "one of revision and follow", "neither", cure)


def _profile_model(draft: _Draft, profile: str) -> Iterator[Refusal]:
    name = draft.word("profiles", profile, "model")
    known = sorted(model for model in draft.mapping("models") if model.isprintable())
    if name is not None and name not in known:
        expected = f"one of the spec's models: {', '.join(known)}" if known else "a model that the spec has"
        meant = schemas.nearest(name, known)
        cure = f"write {meant}" if meant is not None else f"add {name} to `models:`"
        yield draft.bad(["profiles", profile, "model"], expected, schemas.show(name), cure)


def _arguments(draft: _Draft, profile: str) -> Iterator[Refusal]:
    arguments = draft.mapping("profiles", profile, "arguments")
    waived = _waived(draft, profile)
    for argument, value in arguments.items():
        steps = ["profiles", profile, "arguments", argument]
        option = _full_option(argument)
        reason = RESERVED.get(option)
        if reason is not None:
            expected = "an argument that nvllm does not decide itself"
            said = schemas.show(argument)
            found = said if argument == option else f"{said}, which vLLM reads as {option}"
            yield draft.bad(steps, expected, found, f"remove it: {reason}")
        elif option == TRUST_REMOTE_CODE and value is not False and TRUST_REMOTE_CODE not in waived:
            expected = f"the waiver {TRUST_REMOTE_CODE} in the profile's `waivers:`"
            cure = (
                f"remove the argument, or add `{{name: {TRUST_REMOTE_CODE}, reason: ...}}` to the profile's `waivers:`"
            )
            yield draft.refusal("NV601", steps, expected, f"{schemas.show(argument)} without it", cure)


def _decided(draft: _Draft, *steps: str) -> Iterator[Refusal]:
    """Refuse environment variables that nvllm sets itself: what the spec says of them would not be what is served."""
    for name in draft.mapping(*steps):
        if name in ENGINE_ENVIRONMENT:
            expected = "a variable that nvllm does not decide itself"
            cure = f"remove it: it is always {ENGINE_ENVIRONMENT[name]!r}"
            yield draft.bad([*steps, name], expected, name, cure)


def _blessed(draft: _Draft, profile: str) -> Iterator[Refusal]:
    """Refuse what leaves a blessed profile without a cache: then there is nothing that a bless could be of."""
    if draft.at("profiles", profile, "blessed") is not True:
        return
    without = "remove it, or `blessed:`"
    for places in (("runtime", "environment"), ("profiles", profile, "environment")):
        for name in draft.mapping(*places):
            steps: list[Step] = [*places, name]
            if name in UNCACHED:
                yield draft.bad(steps, "a compile cache, for the profile is blessed", name, without)
            elif name in BLESSED_ENVIRONMENT:
                expected = "a variable that nvllm does not decide itself"
                yield draft.bad(steps, expected, name, f"remove it: it is {BLESSED_ENVIRONMENT[name]!r} when blessed")
    for argument, value in draft.mapping("profiles", profile, "arguments").items():
        if argument == "enforce-eager" and value is not False:
            here: list[Step] = ["profiles", profile, "arguments", argument]
            yield draft.bad(here, "a compile cache, for the profile is blessed", argument, without)


def _full_option(argument: str) -> str:
    """Return which option of vllm serve ARGUMENT is, as far as it is one of those that matter here.

    vLLM reads ``_`` as ``-``, takes what follows a dot as a part of the value, and, being argparse, takes a
    beginning for the whole: ``trust-remote`` switches the same thing on as ``trust-remote-code``.
    """
    head = argument.partition(".")[0].replace("_", "-")
    if head == "tokenizer":  # an option of its own, which argparse prefers to tokenizer-revision
        return head
    guarded = sorted((*RESERVED, TRUST_REMOTE_CODE))
    if head in guarded:
        return head
    return next((option for option in guarded if head and option.startswith(head)), head)


def _waived(draft: _Draft, profile: str) -> set[str | None]:
    waivers = draft.items("profiles", profile, "waivers")
    return {draft.word("profiles", profile, "waivers", index, "name") for index in range(len(waivers))}


def _waivers(draft: _Draft, profile: str) -> Iterator[Refusal]:
    for index in range(len(draft.items("profiles", profile, "waivers"))):
        steps: list[Step] = ["profiles", profile, "waivers", index, "name"]
        name = draft.word(*steps)
        if name is not None and name not in WAIVERS:
            meant = schemas.nearest(name, list(WAIVERS))
            cure = f"write {meant}" if meant is not None else "remove it: nothing else can be waived"
            yield draft.bad(steps, f"one of {', '.join(WAIVERS)}", schemas.show(name), cure)


def _normal(distribution: str) -> str:
    """Return the one spelling that indexes use for DISTRIBUTION."""
    return re.sub(r"[-_.]+", "-", distribution).lower()
