"""Which image a command line is about, where IMAGE may be left out: the one rule of all commands.

A named image is taken. Else profiles decide: the only image that has them. Else a model decides. Else the project does:
its only image, or its default. What is still open is refused, with the lines that would decide it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nvllm.core import canonical, schemas, yamlnodes
from nvllm.core.canonical import Json
from nvllm.core.paths import Project
from nvllm.core.refusal import Refusal, Refused, refuse, refuse_any
from nvllm.spec import file as specfile
from nvllm.spec import projectfile


@dataclass(frozen=True, slots=True)
class Asked:
    """What a command line names: its IMAGE, if any; PROFILES, all of one image; a MODEL.

    LINE returns the same line to paste, with the values that it is given by parameter: ``image``, ``profile``, ``name``
    of a model. One that is empty is left out. NEEDS_PROFILE: the command cannot do without one.
    """

    image: str | None
    line: Callable[[Mapping[str, str]], str]
    needs_profile: bool = False
    profiles: Sequence[str] = ()
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Selected:
    """The image that a line is about, and WHY, which is empty if the line names it."""

    image: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Sections:
    """One section of every spec of a project, by image, as it is written; and what is wrong with the other specs."""

    of: Mapping[str, Mapping[str, Json]]
    refusals: Sequence[Refusal]

    def having(self, names: Sequence[str]) -> list[str]:
        """Return the images that have all of NAMES. Raises Refused if none has, and there are specs without YAML."""
        images = [image for image, values in self.of.items() if all(name in values for name in names)]
        if not images:
            refuse_any(self.refusals)
        return images

    @property
    def listed(self) -> str:
        return "; ".join(f"{image} has {', '.join(values) or 'none'}" for image, values in self.of.items())


def select(project: Project, asked: Asked) -> Selected:
    """Return the image of PROJECT that ASKED is about.

    Raises Refused NV111 if it may be one of several, NV107 if none has what is asked for or a profile stands where an
    image is expected, and what `projectfile.of` raises.
    """
    names = project.image_names()
    if asked.image is not None:
        _check_named(project, asked, names)
        return Selected(asked.image)
    if not names:
        raise refuse("NV107", str(project.root / "images"), "an image spec", "none", "nvllm init mine && cd mine")
    default = projectfile.of(project).default_image
    if asked.profiles:
        sections = _read(project, "profiles")
        return _only(asked, sections, sections.having(asked.profiles), "profile")
    if asked.model is not None:
        sections = _read(project, "models")
        images = sections.having([asked.model])
        pins = {canonical.printed({"model": sections.of[image][asked.model]}) for image in images}
        if len(images) > 1 and (default in images or len(pins) == 1):  # the same pin: it does not matter which image
            return Selected(default if default in images else images[0], f"it has the model {asked.model}")
        return _only(asked, sections, images, "model")
    if len(names) == 1:
        return Selected(names[0], "the only image of the project")
    if default is not None:
        return Selected(default, f"the default in {projectfile.NAME}")
    found = f"no IMAGE, and no default-image in {projectfile.NAME}"
    raise refuse("NV111", "IMAGE", f"one of {', '.join(names)}", found, _lines(asked, names, {}))


def profile_missing(project: Project, asked: Asked) -> Refused:
    """Return the refusal NV108 of ASKED, which needs a profile and names none; it lists those that there are."""
    names = project.image_names()
    if asked.image is not None:
        try:
            _check_named(project, asked, names)
        except Refused as slip:
            return slip
    sections = _read(project, "profiles")
    likely = asked.image or projectfile.of(project).default_image
    here = _Sections({image: has for image, has in sections.of.items() if image == likely} or sections.of, ())
    lines = [asked.line({"image": image, "profile": name}) for image, has in here.of.items() for name in has]
    listed = sections.listed if asked.image is None else here.listed
    cure = lines[0] if lines else "write a profile into an image spec"
    return refuse("NV108", "--profile", f"a profile: {listed or 'no image has one'}", "none", cure)


def _read(project: Project, section: Literal["profiles", "models"]) -> _Sections:
    """Return SECTION of every spec of PROJECT."""
    of: dict[str, Mapping[str, Json]] = {}
    refusals: list[Refusal] = []
    for image in project.image_names():
        path = project.spec(image)
        try:
            value = yamlnodes.parse(specfile.written(path, shown := project.show(path)), shown).value
        except Refused as refused:
            refusals += refused.refusals
            continue
        values = value.get(section) if isinstance(value, Mapping) else None
        of[image] = values if isinstance(values, Mapping) else {}
    return _Sections(of, refusals)


def _check_named(project: Project, asked: Asked, names: Sequence[str]) -> None:
    """Refuse NV107 if the IMAGE of ASKED is a profile's name, or lacks a profile that is asked for.

    What else is wrong with IMAGE is said by whoever reads its spec.
    """
    image = asked.image or ""
    if image in names:
        sections = _read(project, "profiles") if asked.profiles else _Sections({}, ())
        if any(name not in sections.of.get(image, asked.profiles) for name in asked.profiles):
            raise _unknown(asked, sections, "profile")
        return
    owners = [name for name, values in _read(project, "profiles").of.items() if image in values]
    if owners:
        several = {"profile": image} if asked.needs_profile and not asked.profiles else {}
        cure = asked.line({"image": "", **several}) if several and len(owners) == 1 else _lines(asked, owners, several)
        found = f"{image}, a profile of {', '.join(owners)}"
        raise refuse("NV107", "IMAGE", f"an image: {', '.join(names)}", found, cure)


def _only(asked: Asked, sections: _Sections, images: Sequence[str], kind: Literal["profile", "model"]) -> Selected:
    """Return the only one of IMAGES, which have what ASKED names. Raises Refused NV107 or NV111."""
    if not images:
        raise _unknown(asked, sections, kind)
    what = ", ".join(asked.profiles) if kind == "profile" else asked.model
    if len(images) > 1:
        found = f"no IMAGE, and {len(images)} images have the {kind} {what}"
        raise refuse("NV111", "IMAGE", f"one of {', '.join(images)}", found, _lines(asked, images, {}))
    return Selected(images[0], f"the only image that has the {kind} {what}")


def _unknown(asked: Asked, sections: _Sections, kind: Literal["profile", "model"]) -> Refused:
    """Return NV107 for what ASKED names and no image, or not its image, has; it lists what each image has."""
    named = asked.profiles if kind == "profile" else [asked.model or ""]
    where = f"images/{asked.image or '*'}.yaml: .{kind}s"
    parameter = "profile" if kind == "profile" else "name"
    cure = f"name {kind}s of one image"
    owners = [image for image, values in sections.of.items() if all(name in values for name in named)]
    here = {image: has for image, has in sections.of.items() if asked.image in (None, image)} or sections.of
    near = schemas.nearest(named[0], [name for values in here.values() for name in values])
    if owners:
        cure = _lines(asked, owners, {})
    elif len(named) == 1 and near is not None:
        images = [image for image, values in here.items() if near in values]
        cure = _lines(asked, images, {parameter: near})
    return refuse("NV107", where, f"a {kind}: {sections.listed}", ", ".join(named), cure)


def _lines(asked: Asked, images: Sequence[str], other: Mapping[str, str]) -> str:
    """Return the line of ASKED with each of IMAGES and with OTHER values: a command, or a list of them."""
    lines = [asked.line({"image": image, **other}) for image in images]
    return lines[0] if len(lines) == 1 else "\n".join(["one of these lines:", *lines])
