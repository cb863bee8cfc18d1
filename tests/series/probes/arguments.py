"""What vLLM's own parser makes of command lines of ``vllm serve``, on a machine without the device.

    python arguments.py COMMANDS

COMMANDS is a JSON object: a name, and the words after ``vllm``. Prints, as its last line, where vLLM lies, the long
names of its arguments, and what is wrong with each command, or null. ``vllm serve`` takes the same steps with its
arguments: it parses them, checks them together, and makes the engine's arguments of them, where each part of a JSON
value gets its type.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "0"  # where it is 1, the engine's arguments look for the model's files

import vllm
from vllm import platforms

if platforms.current_platform.is_unspecified():
    # Without a GPU vLLM knows no device, and its parser, which shows the default of each argument, cannot be made.
    platforms.current_platform.device_type = "cuda"

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.cli import serve
from vllm.utils.argparse_utils import FlexibleArgumentParser

PARSER = FlexibleArgumentParser()
(SERVE,) = serve.cmd_init()
OPTIONS: Any = SERVE.subparser_init(PARSER.add_subparsers(required=True, dest="subparser"))


def names() -> list[str]:
    """Return the long names of the arguments, without the leading --, sorted."""
    words = (word for action in OPTIONS._actions for word in action.option_strings)
    return sorted(word.removeprefix("--") for word in words if word.startswith("--"))


def wrong(words: Sequence[str]) -> str | None:
    """Return what the parser says against WORDS, or None."""
    said = io.StringIO()
    sys.argv = ["vllm", *words]  # the parser reads it too
    try:
        with contextlib.redirect_stderr(said):
            found = PARSER.parse_args(list(words))
            SERVE.validate(found)
            AsyncEngineArgs.from_cli_args(found)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    except (TypeError, ValueError) as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    return None


def main() -> None:
    commands: dict[str, list[str]] = json.loads(sys.argv[1])
    found = {name: wrong(words) for name, words in commands.items()}
    sys.stdout.write(json.dumps({"file": vllm.__file__, "names": names(), "wrong": found}) + "\n")


if __name__ == "__main__":
    main()
