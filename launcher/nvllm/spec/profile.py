"""The rules of a profile that need more than one field of an image spec: its model, arguments, environment, waivers.

`specfile.py` applies them to each profile of a `Draft`. The rules on single fields are in `core/spec.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nvllm.core import parts, schemas, secret, yamlnodes
from nvllm.core.canonical import Json
from nvllm.core.plan import (
    ACCESS_ENVIRONMENT,
    BLESSED_ENVIRONMENT,
    DEV_MODE,
    ENGINE_ENVIRONMENT,
    KV_CACHE_SIZES,
    UNCACHED,
)
from nvllm.core.refusal import Refusal
from nvllm.spec import speculative
from nvllm.spec.waivers import TRUST_REMOTE_CODE, WAIVERS, WITHOUT_KEY

Step: TypeAlias = "str | int"

RESERVED: Mapping[str, str] = {
    "host": "nvllm publishes the port on 127.0.0.1 of the host",
    "port": "write the profile's `port:` instead",
    "uds": "the engine is reached by its port",
    "model": "write the profile's `model:` instead",
    "served-model-name": "write the profile's `served-name:` instead",
    "revision": "the lock pins the model's revision",
    "tokenizer-revision": "the lock pins the model's revision",
    "download-dir": "the engine downloads nothing",
    "api-key": "write the profile's `access: {key-file: PATH}` instead",
    "hf-token": "no secret enters an engine",
    "spec-model": "write the profile's `draft:` instead",
    "chat-template": "write the profile's `chat-template:` instead, with a file of the project",
    "lora-modules": "write the profile's `adapters:` instead, with models of the spec",
    "shutdown-timeout": "write the profile's `limits.drain-timeout:` instead",
    "config": "write its arguments into the profile, where they are hashed",
}
"""Arguments of vllm serve that nvllm decides, so that a profile may not have them, and why."""


_PATHS = ("/", "~", "./", "../", "file:")
_INSIDE = ("/adapters/", "/dev/", "/drafts/", "/home/nvllm/", "/models/", "/opt/", "/tmp/", "/usr/")  # noqa: S108
"""How paths begin, and how those begin that are inside the container: of the image, of a model, of a scratch."""
_NO_PATHS = frozenset({"root-path"})
"""Arguments that begin with a slash and are no paths of files."""
_FIELDS: Mapping[str, str] = {
    "tokenizer": "remove it: the tokenizer is that of the profile's `model:`; put its files into the model's directory",
    "hf-config-path": "remove it: the configuration is that of the profile's `model:`",
    "generation-config": "put generation_config.json into the directory of the profile's `model:`",
}
"""Arguments that often have a path of the host, and the field to use."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A spec that is parsed and not checked yet. Looking for what is not there returns None or nothing."""

    document: yamlnodes.Document
    label: str

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
        """Return the text at STEPS, or None for what is not text or not printable: the schema refuses that."""
        value = self.at(*steps)
        return value if isinstance(value, str) and value.isprintable() else None

    def mapping(self, *steps: Step) -> Mapping[str, Json]:
        value = self.at(*steps)
        return value if isinstance(value, Mapping) else {}

    def items(self, *steps: Step) -> Sequence[Json]:
        value = self.at(*steps)
        return value if isinstance(value, list) else []

    def refusal(self, code: str, steps: Sequence[Step], expected: str, actual: str, cure: str) -> Refusal:
        where = f"{self.label}:{self.document.line(steps)}: {yamlnodes.dotted(steps)}"
        return Refusal(code, where, expected, actual, cure)

    def bad(self, steps: Sequence[Step], expected: str, actual: str, cure: str) -> Refusal:
        return self.refusal("NV101", steps, expected, actual, cure)


def check(draft: Draft, profile: str) -> Iterator[Refusal]:
    """Yield what is wrong with PROFILE of DRAFT."""
    yield from _model(draft, ["profiles", profile, "model"])
    yield from _model(draft, ["profiles", profile, "draft"])
    for index in range(len(draft.items("profiles", profile, "adapters"))):
        yield from _model(draft, ["profiles", profile, "adapters", index])
    yield from _adapters(draft, profile)
    yield from _access(draft, profile)
    yield from _arguments(draft, profile)
    yield from _speculation(draft, profile)
    yield from environment(draft, "profiles", profile, "environment")
    yield from _dev_mode(draft, profile)
    yield from _waivers(draft, profile)
    yield from _blessed(draft, profile)
    yield from _evaluation(draft, profile)
    yield from _evaluate_as(draft, profile)


def _model(draft: Draft, steps: list[Step]) -> Iterator[Refusal]:
    name = draft.word(*steps)
    known = sorted(model for model in draft.mapping("models") if model.isprintable())
    if name is not None and name not in known:
        expected = f"one of the spec's models: {', '.join(known)}" if known else "a model that the spec has"
        meant = schemas.nearest(name, known)
        cure = f"write {meant}" if meant is not None else f"add {name} to `models:`"
        yield draft.bad(steps, expected, schemas.show(name), cure)


def _adapters(draft: Draft, profile: str) -> Iterator[Refusal]:
    """Refuse adapters that requests could not tell from the model, and an argument that the adapters decide."""
    adapters = draft.items("profiles", profile, "adapters")
    served = draft.at("profiles", profile, "served-name") or draft.at("profiles", profile, "model")
    for index, name in enumerate(adapters):
        if name in {served, draft.at("profiles", profile, "model")}:
            here: list[Step] = ["profiles", profile, "adapters", index]
            yield draft.bad(here, "a model besides the served one", schemas.show(name), "remove it")
    steps: list[Step] = ["profiles", profile, "arguments", "enable-lora"]
    if adapters and draft.at(*steps) is not None:
        yield draft.bad(steps, "no such argument: the profile has adapters", "enable-lora", "remove it")


def _access(draft: Draft, profile: str) -> Iterator[Refusal]:
    """Refuse to publish beyond this host without a key or a waiver, and what would leave the key unasked for."""
    publish = draft.word("profiles", profile, "access", "publish")
    keyed, waived = draft.at("profiles", profile, "access", "key-file") is not None, _waived(draft, profile)
    here: list[Step] = ["profiles", profile, "access", "publish"]
    if publish is not None and not publish.startswith("127."):  # all of 127.0.0.0/8 is this host: RFC 1122, 3.2.1.3
        if "host-network" in waived:
            cure = "remove the waiver host-network, or `publish:`"
            yield draft.bad(here, "127.0.0.1: with host-network nothing is published", publish, cure)
        if not keyed and WITHOUT_KEY not in waived:
            expected = f"a `key-file:` beside it, or the waiver {WITHOUT_KEY} in the profile's `waivers:`"
            cure = f"add `key-file:`, or add `{{name: {WITHOUT_KEY}, reason: ...}}` to the profile's `waivers:`"
            yield draft.refusal("NV601", here, expected, f"{publish} without either", cure)
    for steps, name in _variables(draft, profile) if keyed else ():
        if name in ACCESS_ENVIRONMENT:
            expected = "a variable that nvllm does not decide itself: by it the engine finds what asks for the key"
            yield draft.bad(steps, expected, name, f"remove it, or `key-file:` in the profile {profile}")


def _arguments(draft: Draft, profile: str) -> Iterator[Refusal]:
    arguments = draft.mapping("profiles", profile, "arguments")
    waived = _waived(draft, profile)
    for argument, value in arguments.items():
        steps: list[Step] = ["profiles", profile, "arguments", argument]
        option = _full_option(argument)
        reason = RESERVED.get(option)
        if reason is not None:
            expected = "an argument that nvllm does not decide itself"
            quoted = schemas.show(argument)
            problem = quoted if argument == option else f"{quoted}, which vLLM reads as {option}"
            yield draft.bad(steps, expected, problem, f"remove it: {reason}")
        elif option == TRUST_REMOTE_CODE and value is not False and TRUST_REMOTE_CODE not in waived:
            expected = f"the waiver {TRUST_REMOTE_CODE} in the profile's `waivers:`"
            cure = (
                f"remove the argument, or add `{{name: {TRUST_REMOTE_CODE}, reason: ...}}` to the profile's `waivers:`"
            )
            yield draft.refusal("NV601", steps, expected, f"{schemas.show(argument)} without it", cure)
        else:
            yield from _secret(draft, steps, value)
            yield from _host_path(draft, steps, value)


def _host_path(draft: Draft, steps: list[Step], value: Json) -> Iterator[Refusal]:
    """Refuse a path of the host as the VALUE at STEPS: the container has nothing of the host but what fields name."""
    option = str(steps[-1])
    if not isinstance(value, str) or option in _NO_PATHS or not value.startswith(_PATHS) or value.startswith(_INSIDE):
        return
    cure = _FIELDS.get(option.partition(".")[0], "remove it: only what fields of the profile name is in the container")
    yield draft.bad(steps, "no path of the host", schemas.show(value), cure)


def _secret(draft: Draft, steps: list[Step], value: Json) -> Iterator[Refusal]:
    """Refuse the VALUE at STEPS if its name is that of a secret, or if it holds one. A boolean is never a secret."""
    name = str(steps[-1])
    if secret.named(name) and not isinstance(value, bool):
        problem = schemas.show(name)
    elif isinstance(value, str) and (description := secret.inside(value)) is not None:
        problem = f"{description} in {schemas.show(name)}"
    else:
        return
    cure = "remove it; no secret enters an engine, whose arguments and environment are logged and hashed"
    yield draft.bad(steps, "no secret: no password, key or token", problem, cure)


def _speculation(draft: Draft, profile: str) -> Iterator[Refusal]:
    """Refuse a draft model among the arguments: no lock would pin it, and only its name would be hashed."""
    whole: list[list[Step]] = []
    by_parts: list[list[Step]] = []
    for argument, value in draft.mapping("profiles", profile, "arguments").items():
        if _full_option(argument) != speculative.OPTION:
            continue
        steps: list[Step] = ["profiles", profile, "arguments", argument]
        head, dot, rest = argument.partition(".")
        (by_parts if dot else whole).append(steps)
        settings = {rest.partition(".")[0]: value} if dot else speculative.parts(value)
        if head != speculative.OPTION or settings is None:
            expected = f"{speculative.OPTION}, written in full, with a JSON object or one of its parts"
            quoted = schemas.show(argument if head != speculative.OPTION else value)
            cure = f"""write {speculative.OPTION}: '{{"num_speculative_tokens": 3}}', with the settings that you want"""
            yield draft.bad(steps, expected, quoted, cure)
            continue
        for name in settings:
            if speculative.key(name) in speculative.OURS:
                expected = "no model among the settings: the profile's `draft:` names it, and the lock pins it"
                known = next(iter(draft.mapping("models")), "NAME")
                cure = f"remove it; for a draft model write `draft: {known}`, or another of the spec's `models:`"
                yield draft.bad(steps, expected, f"the key {schemas.show(name)}", cure)
    if whole and by_parts and draft.at("profiles", profile, "draft") is not None:
        cure = "write all settings into the object, or each as a part"
        yield draft.bad(by_parts[0], "the settings in one form: vLLM would use only the parts", "two forms", cure)


def environment(draft: Draft, *steps: str) -> Iterator[Refusal]:
    """Refuse variables that hold a secret, and those that nvllm sets itself."""
    for name, value in draft.mapping(*steps).items():
        yield from _secret(draft, [*steps, name], value)
        if name in ENGINE_ENVIRONMENT:
            expected = "a variable that nvllm does not decide itself"
            cure = f"remove it: it is always {ENGINE_ENVIRONMENT[name]!r}"
            yield draft.bad([*steps, name], expected, name, cure)


def _dev_mode(draft: Draft, profile: str) -> Iterator[Refusal]:
    """Refuse vLLM's routes for developers in a profile that is not for them."""
    if draft.at("profiles", profile, "dev") is True:
        return
    for steps, name in _variables(draft, profile):
        if name == DEV_MODE:
            expected = "a profile with `dev: true`: clients could load weights and call any method of the workers"
            yield draft.bad(steps, expected, name, "remove it, or add `dev: true`")


def _variables(draft: Draft, profile: str) -> Iterator[tuple[list[Step], str]]:
    """Yield where each variable stands that the engine of PROFILE gets, and its name."""
    for places in (("runtime", "environment"), ("profiles", profile, "environment")):
        for name in draft.mapping(*places):
            yield [*places, name], name


def _blessed(draft: Draft, profile: str) -> Iterator[Refusal]:
    """Refuse what switches the compile cache of a blessed profile off: without a cache there is nothing to bless."""
    if draft.at("profiles", profile, "blessed") is not True:
        for name in ("bless", "kernels"):
            if name in draft.mapping("profiles", profile):
                expected = "a profile with `blessed: true`: no other has a blessing"
                yield draft.bad(
                    ["profiles", profile, name], expected, "rules for one", "add `blessed: true`, or remove it"
                )
        return
    without = "remove it, or `blessed:`"
    for steps, name in _variables(draft, profile):
        if name in UNCACHED:
            yield draft.bad(steps, "a compile cache: the profile is blessed", name, without)
        elif name in BLESSED_ENVIRONMENT:
            expected = "a variable that nvllm does not decide itself"
            yield draft.bad(steps, expected, name, f"remove it: it is {BLESSED_ENVIRONMENT[name]!r} when blessed")
    for argument, value in draft.mapping("profiles", profile, "arguments").items():
        if argument == "enforce-eager" and value is not False:
            here: list[Step] = ["profiles", profile, "arguments", argument]
            yield draft.bad(here, "a compile cache: the profile is blessed", argument, without)
    gpu = draft.mapping("profiles", profile, "gpu")
    if draft.items("profiles", profile, "adapters") and not gpu:
        # CpuPlatform.check_and_update_config turns it off, in vLLM 0.21.0 to 0.33.0.
        expected = "no adapters, or a GPU: on the CPU vLLM compiles nothing for an engine with adapters"
        yield draft.bad(["profiles", profile, "blessed"], expected, "true", "set it to false")
    sized = KV_CACHE_SIZES.intersection(draft.mapping("profiles", profile, "arguments"))
    if gpu and not sized:
        expected = f"{' or '.join(sorted(KV_CACHE_SIZES))}: kernels are compiled for the number of blocks"
        cure = "add kv-cache-memory-bytes; vLLM logs a value for it when it starts without"
        yield draft.bad(["profiles", profile, "arguments"], expected, "a size that each start measures", cure)


def _evaluation(draft: Draft, profile: str) -> Iterator[Refusal]:
    """Refuse a floor that is more than the whole: the form of the field cannot say that."""
    steps: list[Step] = ["profiles", profile, "bless", "evaluation", "floor"]
    text = draft.word(*steps)
    if text is not None and re.fullmatch(parts.FLOOR, text):
        try:
            parts.part(text)
        except ValueError as error:
            yield draft.bad(steps, "a part of the whole, such as 45/50 or 90%", str(error), "write 45/50, or 90%")


_ANSWERED_BY = ("model", "adapters", "chat-template", "sentinels")
"""What two profiles have alike if answers of one say something of the other."""


def _evaluate_as(draft: Draft, profile: str) -> Iterator[Refusal]:
    """Refuse a profile for the questions that the spec lacks, and one whose answers are those of something else."""
    steps: list[Step] = ["profiles", profile, "campaign", "evaluate-as"]
    name = draft.word(*steps)
    if name is None:
        return
    known = sorted(other for other in draft.mapping("profiles") if other.isprintable() and other != profile)
    if name not in known:
        expected = f"another profile of the spec: {', '.join(known)}" if known else "a second profile in the spec"
        meant = schemas.nearest(name, known)
        yield draft.bad(steps, expected, schemas.show(name), f"write {meant}" if meant is not None else "remove it")
        return
    for part in _ANSWERED_BY:
        if draft.at("profiles", profile, part) != draft.at("profiles", name, part):
            expected = f"a profile with the {part} of {profile}: its answers stand for {profile}"
            yield draft.bad(
                steps, expected, f"{name}, with another", f"name another profile, or give {name} that {part}"
            )


def _full_option(argument: str) -> str:
    """Return the option of vllm serve that ARGUMENT means, in full if it is one that is checked here.

    vLLM reads ``_`` as ``-``, and what follows a dot as a part of the value. Its argparse accepts the beginning of an
    option for the whole: ``trust-remote`` means ``trust-remote-code``.
    """
    head = argument.partition(".")[0].replace("_", "-")
    if head == "tokenizer":  # an option of its own, which argparse prefers to tokenizer-revision
        return head
    guarded = sorted((*RESERVED, TRUST_REMOTE_CODE, speculative.OPTION))
    if head in guarded:
        return head
    return next((option for option in guarded if head and option.startswith(head)), head)


def _waived(draft: Draft, profile: str) -> set[str | None]:
    waivers = draft.items("profiles", profile, "waivers")
    return {draft.word("profiles", profile, "waivers", index, "name") for index in range(len(waivers))}


def _waivers(draft: Draft, profile: str) -> Iterator[Refusal]:
    for index in range(len(draft.items("profiles", profile, "waivers"))):
        steps: list[Step] = ["profiles", profile, "waivers", index, "name"]
        name = draft.word(*steps)
        if name is not None and name not in WAIVERS:
            meant = schemas.nearest(name, list(WAIVERS))
            cure = f"write {meant}" if meant is not None else "remove it: nothing else can be waived"
            yield draft.bad(steps, f"one of {', '.join(WAIVERS)}", schemas.show(name), cure)
