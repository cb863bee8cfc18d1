"""Loads image specs: ``images/<name>.yaml`` in, an :class:`~nvllm.core.spec.ImageSpec` out.

A spec is checked whole: what is wrong with single fields, by the schema, and what needs more than one field come
together, each with its line. `core/spec.py` declares the fields, and `profile.py` has the rules of a profile.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any, cast

from nvllm.core import canonical, documents, reading, schemas, yamlnodes
from nvllm.core.canonical import Json
from nvllm.core.fields import COMMIT, PINNED_COMMIT
from nvllm.core.paths import Project
from nvllm.core.refusal import Refusal, Refused, refuse, refuse_any
from nvllm.core.spec import FORM, DebianBase, ImageSpec, Model, Profile, PythonSet, RegistryBase, VllmPin
from nvllm.spec import profile
from nvllm.spec.profile import Draft, Step

INPUTS_DOMAIN = "nvllm.lock-inputs/1"


def load(path: Path, label: str) -> ImageSpec:
    """Return the image spec in the file PATH, which messages call LABEL. Raises what `written` and `parse` raise."""
    return parse(written(path, label), label)


def written(path: Path, label: str) -> str:
    """Return the text of the image spec PATH, which messages call LABEL.

    Raises Refused NV107 if there is no such file, NV109 if it is no file to read, and NV103 if it is not UTF-8.
    """
    try:
        return reading.text(path, reading.SPEC)
    except FileNotFoundError as error:
        images = [other.stem for other in reading.listed(path.parent, "*.yaml")]
        expected = f"one of the images {', '.join(images)}" if images else "an image spec"
        meant = schemas.nearest(path.stem, images) or next(iter(images), None)
        cure = f"name another image, such as {meant}" if meant is not None else f"write {label}"
        raise Refused([Refusal("NV107", label, expected, "no such file", cure)]) from error
    except OSError as error:
        raise reading.refused(label, error) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        problem = f"the byte 0x{error.object[error.start]:02x}, which is not UTF-8"
        cure = "save the file as UTF-8"
        raise Refused([Refusal("NV103", f"{label}:{line}", "text in UTF-8", problem, cure)]) from error


def parse(text: str, label: str) -> ImageSpec:
    """Return the image spec in TEXT. LABEL is how messages name the file; its stem must be the spec's name.

    Raises Refused with every problem: NV103 for text that is not YAML; else NV102 for names that can move, NV601 for
    missing waivers, and NV101 for everything else.
    """
    draft = Draft(yamlnodes.parse(text, label), label)
    refuse_any([*_by_schema(draft), *_by_fields(draft)])
    return documents.structure(FORM, draft.document.value)


def of(project: Project, image: str) -> ImageSpec:
    """Return the spec of IMAGE in PROJECT. Raises what `load` raises."""
    path = project.spec(image)
    return load(path, project.show(path))


def named_profile(project: Project, spec: ImageSpec, name: str) -> Profile:
    """Return the profile NAME of SPEC. Raises Refused NV107, which lists the profiles, if there is none."""
    if name not in spec.profiles:
        where, known = f"{project.show(project.spec(spec.name))}: .profiles", ", ".join(spec.profiles)
        cure = f"nvllm serve {spec.name} --profile {next(iter(spec.profiles), 'NAME')}"
        raise refuse("NV107", where, f"one of {known}", name, cure)
    return spec.profiles[name]


def other_platform(spec: ImageSpec, platform: str) -> Iterator[Refusal]:
    """Yield NV108 if SPEC is not made for PLATFORM."""
    if platform not in spec.platforms:
        allowed = ", ".join(spec.platforms)
        yield Refusal("NV108", "--platform", f"one of {allowed}", platform, f"--platform {spec.platforms[0]}")


def inputs(spec: ImageSpec, platform: str) -> str:
    """Return the hex sha256 of the part of SPEC that decides its lock for PLATFORM.

    Runtime and the enabled patches are not in it, and of profiles only their chat templates: they need no locked file.
    Nor is where a model lies on this host. Targets, `brings`, a source, `native`, security updates and `omit` are in it
    only if the spec has them: the hash of a spec without them never changed.
    """
    part = {
        "platform": platform,
        "epoch": spec.epoch,
        "base": _used(spec.base),
        "vllm": _used(spec.vllm),
        "python": _used(spec.python),
        "series": spec.patches.series,
        "models": {name: _pinned(model) for name, model in spec.models.items()},
    }
    if templates := sorted(
        {rules.chat_template for rules in spec.profiles.values() if rules.chat_template is not None}
    ):
        part["templates"] = templates
    if spec.targets:
        part["targets"] = list(spec.targets)
    if spec.device_code is not None:
        part["device_code"] = dataclasses.asdict(spec.device_code)
    return canonical.digest(INPUTS_DOMAIN, cast("Json", part))


def _used(part: DebianBase | RegistryBase | VllmPin | PythonSet) -> dict[str, Any]:
    """Return PART as a mapping, without the fields that came later and that it does not use."""
    later = {"brings", "source", "native", "security", "omit"}
    return {name: value for name, value in dataclasses.asdict(part).items() if value or name not in later}


def _pinned(model: Model) -> dict[str, Any]:
    """Return MODEL as a mapping, without the place where it lies."""
    return {name: value for name, value in dataclasses.asdict(model).items() if name != "path"}


def _by_schema(draft: Draft) -> Iterator[Refusal]:
    for problem in schemas.validate(FORM, draft.document.value):
        yield draft.refusal(problem.code or "NV101", problem.steps, problem.allowed, problem.actual, problem.cure)


def _by_fields(draft: Draft) -> Iterator[Refusal]:
    """Yield the problems that concern two places of the spec."""
    yield from _name(draft)
    yield from _doubles(draft)
    yield from _vllm(draft)
    yield from _device_code(draft)
    yield from profile.environment(draft, "runtime", "environment")
    for name in draft.mapping("models"):
        yield from _model(draft, name)
    for name in draft.mapping("profiles"):
        yield from profile.check(draft, name)


def _name(draft: Draft) -> Iterator[Refusal]:
    name, stem = draft.word("name"), PurePath(draft.label).stem
    if name is not None and name != stem:
        yield draft.bad(["name"], f"{stem}, the name of the file", schemas.show(name), f"write `name: {stem}`")


def _doubles(draft: Draft) -> Iterator[Refusal]:
    """Yield a refusal for each entry that stands twice in a list."""
    lists: list[tuple[tuple[str, ...], str | None]] = [
        (("platforms",), None),
        (("targets",), None),
        (("base", "packages"), None),
        (("vllm", "differs"), None),
        (("vllm", "brings"), None),
        (("vllm", "native", "targets"), None),
        (("python", "requirements"), None),
        (("python", "exclude"), "name"),
        (("python", "aliases"), "name"),
        (("patches", "enable"), None),
        (("device-code", "wheels"), None),
        (("device-code", "lacking"), "library"),
    ]
    for name in draft.mapping("profiles"):
        lists.append((("profiles", name, "sentinels"), None))
        lists.append((("profiles", name, "requires"), None))
        lists.append((("profiles", name, "gpu", "capabilities"), None))
        lists.append((("profiles", name, "waivers"), "name"))
        lists.append((("profiles", name, "adapters"), None))
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
                problem = f"{schemas.show(text)}, already on line {draft.document.line((*steps, seen[word]))}"
                yield draft.bad(here, "each entry once", problem, "remove one of the two")
            else:
                seen[word] = index


def _vllm(draft: Draft) -> Iterator[Refusal]:
    name, version = draft.word("vllm", "distribution"), draft.word("vllm", "version")
    if name is None:
        return
    yield from _served(draft, name)
    if version is None or not isinstance(draft.at("python", "requirements"), list):
        return
    if draft.at("vllm", "source") is not None:
        yield from _compiled(draft, name)
        return
    exact = f"{name}=={version}"
    expected = f"{exact}, by vllm.distribution and vllm.version"
    for index, requirement in enumerate(draft.items("python", "requirements")):
        distribution, pinned, pin = requirement.partition("==") if isinstance(requirement, str) else ("", "", "")
        if pinned and _normal(distribution) == _normal(name):
            if pin != version:
                steps: list[Step] = ["python", "requirements", index]
                yield draft.bad(steps, expected, schemas.show(requirement), f"write {exact}, or correct vllm.version")
            return
    yield draft.bad(["python", "requirements"], expected, "no such requirement", f"add {exact}")


def _served(draft: Draft, name: str) -> Iterator[Refusal]:
    """Refuse to leave out the distribution NAME, or a file of it that is no library: the commit has the others."""
    for entries, key in (("exclude", "name"), ("omit", "distribution")):
        for index in range(len(draft.items("python", entries))):
            left_out, path = draft.word("python", entries, index, key), draft.word("python", entries, index, "path")
            if left_out is None or _normal(left_out) != _normal(name) or (path is not None and path.endswith(".so")):
                continue
            here: list[Step] = ["python", entries, index, key]
            expected, cure = "a distribution other than vllm.distribution", "remove the entry: this one is served"
            if entries == "omit":
                expected, cure = f"{expected}, or a library of it (.so)", "remove the entry: patches may touch the file"
            yield draft.bad(here, expected, schemas.show(left_out), cure)


def _compiled(draft: Draft, name: str) -> Iterator[Refusal]:
    """Refuse the beginning of a commit, whose archive no host gives, and a requirement on the distribution NAME.

    NAME is compiled, and an index has another one.
    """
    commit = draft.word("vllm", "commit")
    if commit is not None and re.fullmatch(PINNED_COMMIT, commit) and not re.fullmatch(COMMIT, commit):
        cure = f"write the 40 hex digits that `git rev-parse {commit}^0` prints in a clone of the repository"
        expected = "the whole commit, 40 hex digits: vllm.source is asked for it"
        yield draft.refusal("NV102", ["vllm", "commit"], expected, schemas.show(commit), cure)
    for index, requirement in enumerate(draft.items("python", "requirements")):
        if isinstance(requirement, str) and _normal(requirement.partition("==")[0]) == _normal(name):
            steps: list[Step] = ["python", "requirements", index]
            cure = "remove it, or remove vllm.source to take the wheel of the index"
            yield draft.bad(steps, f"no requirement on {name}, which is compiled", schemas.show(requirement), cure)


def _device_code(draft: Draft) -> Iterator[Refusal]:
    """Refuse targets without `device-code`, and `device-code` without targets."""
    if (draft.at("targets") is None) != (draft.at("device-code") is None):
        has, lacks = ("targets", "device-code") if draft.at("device-code") is None else ("device-code", "targets")
        yield draft.bad(
            [has], "targets and device-code, or neither", f"no {lacks}", f"write `{lacks}:`, or remove {has}"
        )


def _model(draft: Draft, name: str) -> Iterator[Refusal]:
    """Refuse a model of which the spec says twice, or nowhere, what it is."""
    model, steps = draft.mapping("models", name), ["models", name]
    if model.get("kind") == "directory":
        if "path" in model and "recipe" in model:
            cure = "remove `path:`, or `recipe:` to serve what lies there"
            yield draft.bad([*steps, "path"], "one of path and recipe", "both", cure)
        elif "path" not in model and "tree" not in model:
            cure = "write `path:` with the directory, whose tree the lock then pins, or `tree:`"
            yield draft.bad(steps, "one of path and tree", "neither", cure)
    elif model.get("kind") == "huggingface" and "revision" in model and "follow" in model:
        cure = "remove `follow:` to stay at the revision, or `revision:` to let the lock pin what it follows"
        yield draft.bad([*steps, "follow"], "one of revision and follow", "both", cure)
    elif model.get("kind") == "huggingface" and "revision" not in model and "follow" not in model:
        yield draft.bad(steps, "one of revision and follow", "neither", "write `follow: main`, which the lock pins")


def _normal(distribution: str) -> str:
    """Return DISTRIBUTION in the spelling that indexes use."""
    # As packaging.utils does, which takes some 20 ms to import: every command that reads a spec would wait for it.
    return re.sub(r"[-_.]+", "-", distribution).lower()
