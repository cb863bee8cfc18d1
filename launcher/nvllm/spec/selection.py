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
from nvllm.spec import projectfile, specfile


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """What a command line names: its IMAGE, if any; PROFILES, all of one image; a MODEL.

    LINE returns the same line to paste, with the values that it is given by parameter: ``image``, ``profile``, ``name``
    of a model. One that is empty is left out. NEEDS_PROFILE: the command cannot do without one. NEEDS_BLESSED: it takes
    only one with ``blessed: true``.
    """

    image: str | None
    line: Callable[[Mapping[str, str]], str]
    needs_profile: bool = False
    needs_blessed: bool = False
    profiles: Sequence[str] = ()
    model: str | None = None

    @property
    def named(self) -> Sequence[str]:
        """The profiles that the image must have, or else the model."""
        return self.profiles or [self.model or ""]

    @property
    def what(self) -> str:
        """What the image must have, in words."""
        return f"the {'profile' if self.profiles else 'model'}{'s' * (len(self.named) > 1)} {', '.join(self.named)}"


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


def select(project: Project, request: ImageRequest) -> Selected:
    """Return the image of PROJECT that REQUEST is about.

    Raises Refused NV111 if it may be one of several, NV107 if none has what is asked for or a profile stands where an
    image is expected, and what `projectfile.of` raises.
    """
    names = project.image_names()
    if request.image is not None:
        _check_named(project, request, names)
        return Selected(request.image)
    if not names:
        raise _no_images(project)
    default = projectfile.of(project).default_image
    if request.profiles or request.model is not None:
        sections = _read(project, "profiles" if request.profiles else "models")
        images = sections.having(request.named)
        if not images:
            raise _unknown(request, sections)
        if len(images) == 1:
            return Selected(images[0], f"the only image that has {request.what}")
        if (
            not request.profiles
            and len({canonical.printed(sections.of[image][request.named[0]]) for image in images}) == 1
        ):
            # They pin the same model, and a lock is what the command reads.
            images.sort(key=lambda image: (image != default, not project.lock(image).is_file()))
            return Selected(images[0], f"it has {request.what}")
        lacking = f"no IMAGE, and {len(images)} images have {request.what}"
        raise refuse("NV111", "IMAGE", f"one of {', '.join(images)}", lacking, _lines(request, images, {}))
    if len(names) == 1:
        return Selected(names[0], "the only image of the project")
    if default is not None:
        return Selected(default, f"the default in {projectfile.NAME}")
    lacking = f"no IMAGE, and no default-image in {projectfile.NAME}"
    raise refuse("NV111", "IMAGE", f"one of {', '.join(names)}", lacking, _lines(request, names, {}))


def profile_missing(project: Project, request: ImageRequest) -> Refused:
    """Return the refusal NV108 of REQUEST, which needs a profile and names none; it lists those that there are."""
    names = project.image_names()
    if request.image is not None:
        try:
            _check_named(project, request, names)
        except Refused as slip:
            return slip
    if not names:
        return _no_images(project)
    sections = _read(project, "profiles")
    if request.needs_blessed:
        sections = _Sections({image: _blessed(has) for image, has in sections.of.items()}, ())
    likely = request.image or projectfile.of(project).default_image
    here = _Sections({image: has for image, has in sections.of.items() if image == likely} or sections.of, ())
    lines = [request.line({"image": image, "profile": name}) for image, has in here.of.items() for name in has]
    listed = sections.listed if request.image is None else here.listed
    lacking = "write `blessed: true` into a profile" if request.needs_blessed else "write a profile into an image spec"
    cure = lines[0] if lines else lacking
    return refuse("NV108", "--profile", f"a profile: {listed or 'no image has one'}", "none", cure)


def _blessed(profiles: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return those of PROFILES, as they are written, that say ``blessed: true``."""
    return {name: has for name, has in profiles.items() if isinstance(has, Mapping) and has.get("blessed") is True}


def _no_images(project: Project) -> Refused:
    return refuse("NV107", str(project.root / "images"), "an image spec", "none", "nvllm init mine && cd mine")


def _read(project: Project, section: Literal["profiles", "models"]) -> _Sections:
    """Return SECTION of every spec of PROJECT."""
    of: dict[str, Mapping[str, Json]] = {}
    refusals: list[Refusal] = []
    for image in project.image_names():
        path = project.spec(image)
        try:
            value = yamlnodes.parse(specfile.written(path, label := project.show(path)), label).value
        except Refused as refused:
            refusals += refused.refusals
            continue
        values = value.get(section) if isinstance(value, Mapping) else None
        of[image] = values if isinstance(values, Mapping) else {}
    return _Sections(of, refusals)


def _check_named(project: Project, request: ImageRequest, names: Sequence[str]) -> None:
    """Refuse NV107 if the IMAGE of REQUEST is a profile's name, or lacks a profile that is asked for.

    What else is wrong with IMAGE is said by whoever reads its spec.
    """
    image = request.image or ""
    if image in names:
        sections = _read(project, "profiles") if request.profiles else _Sections({}, ())
        if any(name not in sections.of.get(image, request.profiles) for name in request.profiles):
            raise _unknown(request, sections)
        return
    owners = [name for name, values in _read(project, "profiles").of.items() if image in values]
    if owners:
        several = {"profile": image} if request.needs_profile and not request.profiles else {}
        cure = (
            request.line({"image": "", **several}) if several and len(owners) == 1 else _lines(request, owners, several)
        )
        problem = f"{image}, a profile of {', '.join(owners)}"
        raise refuse("NV107", "IMAGE", f"an image: {', '.join(names)}", problem, cure)


def _unknown(request: ImageRequest, sections: _Sections) -> Refused:
    """Return NV107 for what REQUEST names and no image, or not its image, has; it lists what each image has."""
    named, kind = request.named, "profile" if request.profiles else "model"
    cure = f"name a {kind} of this list" if len(named) == 1 else f"name {kind}s of one image"
    owners = [image for image, values in sections.of.items() if all(name in values for name in named)]
    here = {image: has for image, has in sections.of.items() if request.image in (None, image)} or sections.of
    near = schemas.nearest(named[0], [name for values in here.values() for name in values])
    if owners:
        cure = _lines(request, owners, {})
    elif len(named) == 1 and near is not None:
        images = [image for image, values in here.items() if near in values]
        cure = _lines(request, images, {"profile" if request.profiles else "name": near})
    where = f"images/{request.image or '*'}.yaml: .{kind}s"
    return refuse("NV107", where, f"a {kind}: {sections.listed}", ", ".join(named), cure)


def _lines(request: ImageRequest, images: Sequence[str], other: Mapping[str, str]) -> str:
    """Return the line of REQUEST with each of IMAGES and with OTHER values: a command, or a list of them."""
    lines = [request.line({"image": image, **other}) for image in images]
    return lines[0] if len(lines) == 1 else "\n".join(["one of these lines:", *lines])
