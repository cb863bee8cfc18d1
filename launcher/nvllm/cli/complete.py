"""Shell completion: the script for a shell, and the names that exist in the project.

Completion answers while somebody holds the Tab key. It reads as little as it can, and where a file cannot be
read it offers nothing: a completion is no place for a refusal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

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


def _offered(ctx: click.Context, names: Callable[[Project], Iterable[str]], incomplete: str) -> list[str]:
    """Return those of NAMES of the project that begin with INCOMPLETE; none if there is no project."""
    try:
        project = find_project(ctx.meta.get("nvllm.project"), Path.cwd())
        return sorted({name for name in names(project) if name.startswith(incomplete)})
    except (Refused, OSError):
        return []


def _read(path: Path) -> Mapping[str, object]:
    """Return the YAML mapping in PATH, empty if there is none."""
    from nvllm.core import yamlnodes

    try:
        value = yamlnodes.parse(reading.text(path, reading.SPEC), path.name).value
    except (OSError, ValueError, Refused):
        return {}
    return value if isinstance(value, dict) else {}


def images(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of an image spec."""
    return _offered(ctx, Project.image_names, incomplete)


def images_and_models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of an image spec, or of a model where the image is left out."""
    return [*images(ctx, param, incomplete), *models(ctx, param, incomplete)]


def images_and_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of an image spec, and let the shell complete a path."""
    return [*map(CompletionItem, images(ctx, param, incomplete)), *files(ctx, param, incomplete)]


def targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of an image that nvllm came with."""
    return [name for name in packaged().image_names() if name.startswith(incomplete)]


def _named(ctx: click.Context, project: Project) -> list[str]:
    """Return the image that the line names, if it names one."""
    # While an option waits for its value, click has parsed no argument yet: they all stand in ctx.args.
    words = (str(word) for word in (ctx.params.get("image"), *ctx.args))
    return [word for word in words if word in project.image_names()][:1]


def profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a profile: of the image that the line names, else of every image."""

    def names(project: Project) -> Iterator[str]:
        for image in _named(ctx, project) or project.image_names():
            section = _read(project.spec(image)).get("profiles")
            yield from map(str, section if isinstance(section, dict) else {})

    return _offered(ctx, names, incomplete)


def several_profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the last one of ``P,...``, the profiles of an image."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{one}" for one in profiles(ctx, param, last) if one not in before.split(",")]


def _series_files(project: Project) -> Iterator[Path]:
    return (one / "series.yaml" for one in reading.listed(project.root / "patches", "*"))


def _patch_ids(project: Project) -> Iterator[str]:
    for path in _series_files(project):
        entries = _read(path).get("patches")
        for entry in entries if isinstance(entries, list) else []:
            if isinstance(entry, dict) and isinstance(entry.get("id"), str):
                yield entry["id"]


def patches(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the id of a patch, of every series."""
    return _offered(ctx, _patch_ids, incomplete)


def _sentinel_names(project: Project) -> Iterator[str]:
    for path in _series_files(project):
        entries = _read(path).get("patches")
        for entry in entries if isinstance(entries, list) else []:
            match entry:
                case {"sentinel": {"name": str(name)}}:
                    yield name


def sentinels(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the last one of ``A,...``, the sentinels that patches of any series read."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{one}" for one in _offered(ctx, _sentinel_names, last) if one not in before.split(",")]


def sets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the last id of a patch set, ``ID,...``; or ``none``, the set of no patch."""
    before, comma, last = incomplete.rpartition(",")
    taken = before.split(",")
    offered = [f"{before}{comma}{one}" for one in patches(ctx, param, last) if one not in taken]
    return offered if comma else [*offered, *(["none"] if "none".startswith(incomplete) else [])]


def models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a model: of the image that the line names, else of every image."""

    def names(project: Project) -> Iterator[str]:
        for image in _named(ctx, project) or project.image_names():
            section = _read(project.spec(image)).get("models")
            yield from map(str, section if isinstance(section, dict) else {})

    return _offered(ctx, names, incomplete)


def blessings(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a bless manifest in force."""

    def names(project: Project) -> Iterator[str]:
        directory = project.blessed if project.own else places(os.environ).packaged_blessed
        yield from (path.stem for path in reading.listed(directory, "*.json"))

    return _offered(ctx, names, incomplete)


def instances(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of an instance that was started here."""
    return _offered(ctx, lambda _: (path.name for path in reading.listed(places(os.environ).runs, "*")), incomplete)


def compared(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete what `nvllm explain` compares: an image, IMAGE/PROFILE, or an instance."""

    def names(project: Project) -> Iterator[str]:
        image, slash, _ = incomplete.partition("/")
        if slash and image in project.image_names():
            section = _read(project.spec(image)).get("profiles")
            yield from (f"{image}/{name}" for name in (section if isinstance(section, dict) else {}))
        yield from project.image_names()

    return [*codes(ctx, param, incomplete), *_offered(ctx, names, incomplete), *instances(ctx, param, incomplete)]


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete the path of a file or directory."""
    return [CompletionItem(incomplete, type="file")]


def builtins(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a test that nvllm has for a bisect."""
    from nvllm.trials.probe import BUILTINS

    return [name for name in BUILTINS if name.startswith(incomplete)]


def probes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete ``gsm8k``, or let the shell complete the path of a program."""
    return [*(CompletionItem(one) for one in ("gsm8k",) if one.startswith(incomplete)), *files(ctx, param, incomplete)]


def series(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a series, which is its directory's."""
    return _offered(ctx, lambda project: (path.parent.name for path in _series_files(project)), incomplete)


def codes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the code of a refusal."""
    return [code for code in catalogue.CODES if code.startswith(incomplete.upper())] if incomplete else []
