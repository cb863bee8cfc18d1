"""IMAGE on a command line, which may be left out: `spec/selection.py` has the rule, and this module applies it.

A command takes ``@IMAGE`` and ``@with_image()`` in the place of ``@with_app``. Its parameter ``image`` is then the name
of an image, always.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from nvllm.cli import complete
from nvllm.cli.frame import App, app, typed
from nvllm.core import paths
from nvllm.core.refusal import Refused

if TYPE_CHECKING:
    from nvllm.spec.selection import ImageRequest

HELP = "An image spec, images/IMAGE.yaml.  [default: the image that has the profile, or the project's]"

IMAGE = click.argument("image", required=False, shell_complete=complete.images, help=HELP)
IMAGE_BEFORE_PATH = click.argument("image", required=False, shell_complete=complete.images_and_files, help=HELP)
IMAGE_BEFORE_MODEL = click.argument("image", required=False, shell_complete=complete.images_and_models, help=HELP)

PROFILE = "profile"
PROFILES = (PROFILE, "vs", "listed", "profiles")
"""The parameters of commands that name profiles: one of an image, the other of a comparison, a list, blessings."""

MODEL = "name"
"""The parameter of the commands of `nvllm model` that names a model."""


class Needed(click.Argument):
    """An argument behind IMAGE that must be there, which `with_image` checks: a single word may be IMAGE or this.

    Where the option INSTEAD is given, it need not be there, and a single word is IMAGE.
    """

    def __init__(self, *words: Any, instead: str | None = None, **given: Any) -> None:
        super().__init__(*words, **given)
        self.instead = instead


class BlessedProfile(click.Option):
    """An option that names a profile with ``blessed: true``: no other one stands in the line that a refusal gives."""


def with_image(then: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the `App` of its line, and as ``image`` the name of the image that the line is about.

    THEN is the parameter that stands behind IMAGE on the line. A single word in the place of both is IMAGE if there is
    an image of that name. An image that the line does not name is shown on stderr.
    """

    def decorated(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def call(**given: Any) -> None:
            ctx = click.get_current_context()
            running = app(ctx)
            if then is not None:
                given |= _shifted(ctx, running, then, given)
                ctx.params |= given
            function(running, **{**given, "image": selected(running)})

        return call

    return decorated


def selected(running: App) -> str:
    """Return the image that the command line of RUNNING is about. Raises Refused if nothing decides it."""
    from nvllm.spec import selection

    chosen = selection.select(running.project, request_of(click.get_current_context()))
    if chosen.why:
        running.progress.note(f"image {chosen.image}: {chosen.why}")
    return chosen.image


def profile_missing(ctx: click.Context) -> Refused:
    """Return the refusal of the line of CTX, which names no profile and needs one."""
    from nvllm.spec import selection

    return selection.profile_missing(app(ctx).project, request_of(ctx))


def request_of(ctx: click.Context) -> ImageRequest:
    """Return what the line of CTX says of the image that it is about."""
    from nvllm.spec.selection import ImageRequest

    parameters = {parameter.name or "": parameter for parameter in ctx.command.params}
    profiles = [name for key in PROFILES if key in parameters for name in _names(ctx.params.get(key))]
    first = next((key for key in PROFILES if key in parameters), PROFILE)

    def line(values: Mapping[str, str]) -> str:
        instead = {first if key == PROFILE else key: value for key, value in values.items()}
        common = [("--project", ctx.meta.get("nvllm.project")), ("--platform", ctx.meta.get("nvllm.platform"))]
        added = [word for option, value in common if value for word in (option, str(value))]
        return shlex.join([*typed(ctx, (), instead), *added])

    return ImageRequest(
        ctx.params.get("image"),
        line,
        needs_profile=PROFILE in parameters,
        needs_blessed=isinstance(parameters.get(PROFILE), BlessedProfile),
        profiles=tuple(dict.fromkeys(profiles)),
        model=ctx.params.get(MODEL) if MODEL in parameters else None,
    )


def _names(value: object) -> list[str]:
    """Return the names in the VALUE of a parameter of `PROFILES`."""
    values = value if isinstance(value, tuple) else (value,)
    return [name.strip() for each in values if isinstance(each, str) for name in each.split(",")]


def _shifted(ctx: click.Context, running: App, then: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return GIVEN with IMAGE's word as the value of THEN if it is THEN's. Raises click.MissingParameter without it."""
    image, behind = given["image"], given[then]
    param = next(parameter for parameter in ctx.command.params if parameter.name == then)
    if isinstance(param, Needed) and param.instead is not None and given[param.instead] is not None:
        return given
    if isinstance(behind, tuple):  # words of any number, such as a probe: a path, or what nothing else can be
        shifts = image is not None and not paths.is_image_name(image)
        return {**given, **({"image": None, then: (image, *behind)} if shifts else {})}
    if behind is None and image is not None and image not in running.project.image_names():
        given = {**given, "image": None, then: param.type.convert(image, param, ctx)}
        ctx.set_parameter_source(then, ParameterSource.COMMANDLINE)
    if given[then] is None and isinstance(param, Needed):
        raise click.MissingParameter(ctx=ctx, param=param)
    return given
