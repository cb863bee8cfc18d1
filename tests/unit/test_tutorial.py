"""The tutorial is run by tests/e2e/test_tutorial.py, all of it: here, that no command of the page escapes that test."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from nvllm.cli.main import program

PAGE = (Path(__file__).parents[2] / "docs/tutorial.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^nvllm ((?:.*\\\n)*.*)", PAGE, re.MULTILINE)


def test_every_block_of_commands_is_run() -> None:
    assert PAGE.count("```sh\n") == len(
        re.findall(r"^<!-- run: (?:start|engine)(?: exit=\d+)? -->\n```sh\n", PAGE, re.MULTILINE)
    )


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_is_one_that_nvllm_has(line: str) -> None:
    words = shlex.split(line)
    command: click.Command = program
    context = click.Context(program)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words.pop(0))
        assert found is not None
        command = found
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= {*options, "--version"}
