"""Shell completion: the script for a shell, and the names that exist in the project.

Completion answers while somebody holds the Tab key. It reads as little as it can, and where a file cannot be
read it offers nothing: a completion is no place for a refusal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import click
from click.shell_completion import CompletionItem, get_completion_class

from nvllm.cli.frame import COMPLETE_VARIABLE, Command, Output
from nvllm.core import catalogue, reading
from nvllm.core.paths import Project, find_project, packaged, places
from nvllm.core.refusal import Refused

EXAMPLES = """
Examples:
  eval "$(nvllm completion bash)"                            for this shell
  nvllm completion zsh > "${fpath[1]}/_nvllm"                for every zsh
  nvllm completion fish > ~/.config/fish/completions/nvllm.fish
"""


@click.command("completion", cls=Command, epilog=EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """The script completes commands, options, images, profiles and patches."""
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(ctx.find_root().command, {}, "nvllm", COMPLETE_VARIABLE)
    # The template, and not source(): that runs the shell to find its version, and the script is the same.
    text = script.source_template % script.source_vars()
    Output(json=bool(ctx.obj), color=False).result("completion", {"shell": shell, "script": text}, text)


Completer: TypeAlias = Callable[[click.Context, click.Parameter, str], list[str]]
"""Returns the words that may stand in the place of an incomplete one."""


def _offered(ctx: click.Context, names: Callable[[Project], Iterable[str]], incomplete: str) -> list[str]:
    """Return those of NAMES of the project that begin with INCOMPLETE; none if there is no project."""
    try:
        project = find_project(ctx.meta.get("nvllm.project"), Path.cwd())
        return sorted({name for name in names(project) if name.startswith(incomplete)})
    except (Refused, OSError):
        return []


def _of_project(names: Callable[[Project], Iterable[str]]) -> Completer:
    return lambda ctx, _, incomplete: _offered(ctx, names, incomplete)


def _in_specs(section: str) -> Completer:
    """Return what completes a name in SECTION of a spec: of the image that the line names, else of every image."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        def names(project: Project) -> Iterator[str]:
            for image in _named(ctx, project) or project.image_names():
                yield from _entries(project, image, section)

        return _offered(ctx, names, incomplete)

    return complete


def _last_of(completer: Completer) -> Completer:
    """Return what completes the last of several names between commas as COMPLETER does, by those not there yet."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in completer(ctx, param, last) if name not in before.split(",")]

    return complete


def _read(path: Path) -> Mapping[str, object]:
    """Return the YAML mapping in PATH, empty if there is none."""
    from nvllm.core import yamlnodes

    try:
        value = yamlnodes.parse(reading.text(path, reading.SPEC), path.name).value
    except (OSError, ValueError, Refused):  # such as a spec that is being written: Tab has no place for what is wrong
        return {}
    return value if isinstance(value, dict) else {}


def _named(ctx: click.Context, project: Project) -> list[str]:
    """Return the image that the line names, if it names one."""
    # While an option waits for its value, click has parsed no argument yet: they all stand in ctx.args.
    words = (str(word) for word in (ctx.params.get("image"), *ctx.args))
    return [word for word in words if word in project.image_names()][:1]


def _entries(project: Project, image: str, section: str) -> Iterator[str]:
    """Yield the names in SECTION of the spec of IMAGE."""
    entries = _read(project.spec(image)).get(section)
    yield from map(str, entries if isinstance(entries, dict) else {})


def _series_files(project: Project) -> Iterator[Path]:
    return (directory / "series.yaml" for directory in reading.listed(project.root / "patches", "*"))


def _patches(project: Project) -> Iterator[dict[str, object]]:
    """Yield the entries of every series of PROJECT."""
    for path in _series_files(project):
        entries = _read(path).get("patches")
        yield from (entry for entry in (entries if isinstance(entries, list) else []) if isinstance(entry, dict))


def _sentinels(project: Project) -> Iterator[str]:
    for entry in _patches(project):
        match entry:
            case {"sentinel": {"name": str(name)}}:
                yield name


def _blessings(project: Project) -> Iterator[str]:
    directory = project.blessed if project.own else places(os.environ).packaged_blessed
    return (path.stem for path in reading.listed(directory, "*.json"))


images = _of_project(Project.image_names)
profiles = _in_specs("profiles")
models = _in_specs("models")
patches = _of_project(lambda project: (id_ for entry in _patches(project) if isinstance(id_ := entry.get("id"), str)))
series = _of_project(lambda project: (path.parent.name for path in _series_files(project)))
blessings = _of_project(_blessings)
instances = _of_project(lambda _: (path.name for path in reading.listed(places(os.environ).runs, "*")))
several_profiles = _last_of(profiles)
sentinels = _last_of(_of_project(_sentinels))


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete the path of a file or directory."""
    return [CompletionItem(incomplete, type="file")]


def images_and_models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of an image spec, or of a model where the image is left out."""
    return [*images(ctx, param, incomplete), *models(ctx, param, incomplete)]


def images_and_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of an image spec, and let the shell complete a path."""
    return [*map(CompletionItem, images(ctx, param, incomplete)), *files(ctx, param, incomplete)]


def targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of an image that nvllm came with."""
    return [name for name in packaged().image_names() if name.startswith(incomplete)]


def sets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the last id of a patch set, ``ID,...``; or ``none``, the set of no patch."""
    offered = _last_of(patches)(ctx, param, incomplete)
    return offered if "," in incomplete else [*offered, *(["none"] if "none".startswith(incomplete) else [])]


def compared(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete what `nvllm explain` compares: an image, IMAGE/PROFILE, or an instance."""

    def names(project: Project) -> Iterator[str]:
        image, slash, _ = incomplete.partition("/")
        if slash and image in project.image_names():
            yield from (f"{image}/{name}" for name in _entries(project, image, "profiles"))
        yield from project.image_names()

    return [*codes(ctx, param, incomplete), *_offered(ctx, names, incomplete), *instances(ctx, param, incomplete)]


def builtins(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a test that nvllm has for a bisect."""
    from nvllm.trials.probe import BUILTINS

    return [name for name in BUILTINS if name.startswith(incomplete)]


def probes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete ``gsm8k``, or let the shell complete the path of a program."""
    return [
        *(CompletionItem(name) for name in ("gsm8k",) if name.startswith(incomplete)),
        *files(ctx, param, incomplete),
    ]


def codes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the code of a refusal."""
    return [code for code in catalogue.CODES if code.startswith(incomplete.upper())] if incomplete else []
