"""Mutants of a module: of a sample of small changes to it, how many its own unit tests notice.

::

    make mutants ROOM=cache/staging                     40 mutants, by tests/unit/cache/test_staging*.py
    make mutants ROOM=engine/container SAMPLE=20 TESTS="tests/unit/serve/test_startup.py"

The changes are cosmic-ray's, which no lock has: ``.venv/bin/pip install cosmic-ray``. The diff of each mutant that no
test notices is printed; a reader decides whether it matters. Changes to ``|`` are left out, most are in annotations.
"""

from __future__ import annotations

import difflib
import importlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("docker", "httpx2", "huggingface_hub", "hypothesis", "jsonschema", "unearth")
"""What most tests import and no mutant changes: the child of each mutant has it from the start."""


def tested(tests: list[str], seconds: float) -> int:
    """Return the exit status of TESTS in a child, 0 if all pass; a child that takes longer than SECONDS is killed."""
    process = os.fork()
    if process == 0:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (1, 2):
            os.dup2(null, stream)
        os._exit(pytest.main(["-x", "-p", "no:cacheprovider", "--hypothesis-profile=ci", *tests]))
    ended, deadline = 0, time.monotonic() + seconds
    while not ended:
        ended, status = os.waitpid(process, os.WNOHANG)
        if not ended and time.monotonic() > deadline:
            os.killpg(process, signal.SIGKILL)
            ended, status = os.waitpid(process, 0)
        time.sleep(0.05)
    return os.waitstatus_to_exitcode(status)


def mutants(text: str, sample: int) -> list[str]:
    """Return SAMPLE of the changes to the module TEXT, always the same ones."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code

    operators = [plugins.get_operator(name) for name in sorted(plugins.operator_names()) if "BitOr" not in name]
    nodes = list(ast_nodes(get_ast(text)))
    places = [
        (operator(), number)
        for operator in operators
        if not operator.arguments()
        for number in range(sum(len(list(operator().mutation_positions(node))) for node in nodes))
    ]
    chosen = random.Random(0).sample(places, min(sample, len(places)))  # noqa: S311 - no secret
    return [mutant for operator, number in chosen if (mutant := mutate_code(text, operator, number))]


def main(room: str, sample: int, tests: list[str]) -> int:
    tests = tests or sorted(map(str, Path("tests/unit").glob(f"{room.replace('/', '/test_')}*.py")))
    module = Path("launcher/nvllm", f"{room}.py")
    text = module.read_text(encoding="utf-8")
    began = time.monotonic()
    if not tests or tested(tests, 600) != 0:
        sys.exit(f"without a mutant the tests of {room} fail, or there are none: {' '.join(tests) or 'TESTS=...'}")
    patience, survivors, made = 10 + 5 * (time.monotonic() - began), 0, mutants(text, sample)
    for mutant in made:
        module.write_text(mutant, encoding="utf-8")
        if tested(tests, patience) == 0:
            survivors += 1
            lines = (text.splitlines(keepends=True), mutant.splitlines(keepends=True))
            sys.stdout.writelines(difflib.unified_diff(*lines, str(module), n=1))
    sys.stdout.write(f"{room}: {len(made) - survivors} of {len(made)} mutants killed, {survivors} survived\n")
    return 0


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    for name in HEAVY:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as copy:  # of the index: the checkout itself stays as it is
        subprocess.run(["git", "checkout-index", "--all", f"--prefix={copy}/"], cwd=ROOT, check=True)
        os.chdir(copy)
        sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
