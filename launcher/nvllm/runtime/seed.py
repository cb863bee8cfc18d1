"""Fills the scratch that lies over a part of the blessed cache with what was blessed there, and runs the engine.

On a GPU Inductor writes into its directory of the cache also when it only loads: it unpacks compiled graphs, and it
compiles the small functions of vLLM that a request of a new kind needs. So this directory is a tmpfs. Its blessed files
are mounted beside it, read-only. The gate has hashed them there, and then runs this with the engine's command.
"""

import json
import os
import shutil
import sys
from typing import NoReturn

EXPECTATIONS = "/run/nvllm/launch.json"


def fill(source: str, target: str) -> None:
    """Copy the files below SOURCE into the directory TARGET. This user may change the copies."""
    for directory, _, names in os.walk(source):
        copies = os.path.join(target, os.path.relpath(directory, source))
        os.makedirs(copies, exist_ok=True)
        for name in names:
            shutil.copyfile(os.path.join(directory, name), os.path.join(copies, name))


def main(command: list[str]) -> NoReturn:
    """Fill each scratch that the launcher names, if it names a cache, and become COMMAND."""
    with open(EXPECTATIONS, encoding="utf-8") as stream:
        cache = json.load(stream)["cache"]
    for seed in cache["seeds"] if cache is not None else []:
        fill(seed["from"], seed["to"])
    os.execvp(command[0], command)  # noqa: S606 - the gate compared the command with the launch plan's


if __name__ == "__main__":
    main(sys.argv[1:])
