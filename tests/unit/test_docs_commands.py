"""Every command line of nvllm that a page shows: the real parser takes it, so a page cannot outlive a command."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click
import pytest

from nvllm.cli.main import BY_NAME, program
from support import documented
from support.documented import PAGES, ROOT, Shown

SHOWN = [one for page in PAGES for one in documented.commands(page)]


def test_the_commands_are_found() -> None:
    assert sum(one.typed for one in SHOWN) > 200
    assert sum(not one.typed for one in SHOWN) > 200
    assert {one.line.split()[1] for one in SHOWN} >= set(BY_NAME)


def test_the_parser_takes_every_command_of_the_pages() -> None:
    wrong = {one.place: documented.wrong(one) for one in SHOWN}
    assert {place: problems for place, problems in wrong.items() if problems} == {}


def test_every_name_in_a_command_of_the_pages_is_there() -> None:
    """The pages of the reference hold the examples of every help text."""
    wrong = {one.place: documented.unknown(one) for one in SHOWN if not one.place.startswith("CHANGELOG.md:")}
    assert {place: problems for place, problems in wrong.items() if problems} == {}


def test_every_name_in_the_help_of_the_program_is_there() -> None:
    shown = [*documented.in_text("nvllm --help", f"```\n{program.epilog}\n```")]
    assert len(shown) > 3
    assert [problem for one in shown for problem in [*documented.wrong(one), *documented.unknown(one)]] == []


@pytest.mark.parametrize(
    "line",
    [
        "nvllm ablate sm120 --profile lower8 --sentinels page-zeroer --probe gsm8k",
        "nvllm ablate cpu --profile tiny-eager --sentinels a,b --probe gsm8k",
        "nvllm build gpu",
        "nvllm serve mine --profile lower8",
        "nvllm serve --profile tiny-eager",
        "nvllm sweep --profiles lower8,tiny-eager --probe gsm8k",
        "nvllm model fetch sm120 qwen",
        "nvllm patch refresh drain",
        "nvllm bisect start cpu --bad drain --test ./probe.sh",
        "nvllm stop nvllm-sm120-lower8",
        "nvllm manifest show gb10-tiny-eager",
    ],
)
def test_a_name_that_is_not_there_is_found(line: str) -> None:
    assert documented.unknown(Shown("page.md:1", line, typed=True))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("```\n$ nvllm build cpu  the image\nnvllm:cpu-1\n```", ["nvllm build cpu"]),
        ("```\nnvllm lock cpu && nvllm build cpu   # both\n```", ["nvllm lock cpu", "nvllm build cpu"]),
        ("```\nnvllm init ~/a \\\n    --bare\n```", ["nvllm init ~/a --bare"]),
        ("```\nDOCKER_HOST=unix:///s nvllm doctor\n```", ["nvllm doctor"]),
        ("    ssh HOST nvllm worker < task.json", ["nvllm worker < task.json"]),
        ("Then `nvllm\nlock cpu`, as ever.", ["nvllm lock cpu"]),
        ('```json\n"next": "cd mine && nvllm lock"\n```', []),
        ("The command nvllm build, and `git commit`.", []),
    ],
)
def test_a_command_is_found_where_a_page_shows_it(text: str, lines: Sequence[str]) -> None:
    assert [one.line for one in documented.in_text("page.md", text)] == lines


@pytest.mark.parametrize(
    "line",
    [
        "nvllm biuld cpu",
        "nvllm lock cpu --updtae",
        "nvllm serve cpu",
        "nvllm lock cpu sm120",
        "nvllm bench IMAGE --profile P [--versus P2]",
        "nvllm gate memory|thremal --bands 4G",
        "nvllm export podman cpu --profile tiny-blessed",
        "nvllm lock cpu --update everything",
        "nvllm bless cpu --profile tiny-blessed --claim nine",
        "nvllm build 'cpu",
    ],
)
def test_what_is_wrong_is_found(line: str) -> None:
    assert documented.wrong(Shown("page.md:1", line, typed=True))


@pytest.mark.parametrize(
    "line",
    [
        "nvllm bench IMAGE --profile P [--vs P2] [--trace]",
        "nvllm report RUN [--html FILE | --open]",
        "nvllm gate thermal|disk",
        "nvllm bless IMAGE --profile NAME --claim N",
        "nvllm worker < task.json > answer.json",
    ],
)
def test_what_is_right_is_not(line: str) -> None:
    assert documented.wrong(Shown("page.md:1", line, typed=True)) == []


def test_a_sentence_may_leave_arguments_out_but_names_no_option_that_is_not_there() -> None:
    assert documented.wrong(Shown("page.md:1", "nvllm bless --extend", typed=False)) == []
    assert documented.wrong(Shown("page.md:1", "nvllm bless --extended", typed=False))


# Options, and the targets of make

OF_OTHER_PROGRAMS = {
    "docs/access.md": {"--api-key"},  # vLLM
    "docs/own-models.md": {"--enable-lora", "--lora-modules"},  # vLLM
    "docs/fleet.md": {"--no-requeue", "--system-config"},  # sbatch, ray
    "docs/gb10.md": {  # vLLM, Docker
        *("--gpu-memory-utilization", "--host", "--ipc", "--network", "--served-model-name", "--trust-remote-code"),
    },
    "docs/gpu.md": {"--gpus", "--cards", "--attention"},  # Docker; gpu.run, gpu.whole
    "docs/nix.md": {"--rebuild"},
}


def options(command: click.Command) -> set[str]:
    """Return the options of COMMAND and of all below it."""
    ctx = click.Context(command)
    found = {name for one in command.get_params(ctx) for name in one.opts}
    if isinstance(command, click.Group):
        below = (command.get_command(ctx, name) for name in command.list_commands(ctx))
        found.update(*(options(one) for one in below if one is not None))
    return found


OPTIONS = options(program)


def test_every_option_that_a_page_names_is_one_of_a_command() -> None:
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES if page != "CHANGELOG.md"}
    others = {page: set(re.findall(r"`(--[a-z][\w-]*)", text)) - OPTIONS for page, text in texts.items()}
    assert {page: names for page, names in others.items() if names} == OF_OTHER_PROGRAMS


def test_every_target_of_make_that_a_page_names_is_there() -> None:
    rules = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
    named = {page: re.findall(r"(?:`|^|&& )make ([a-z][a-z-]*)", text, re.MULTILINE) for page, text in texts.items()}
    assert {page: names for page, names in named.items() if set(names) - set(rules)} == {}
