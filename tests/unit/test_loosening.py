"""Hole 6 of the prior art: its launcher had an option and a variable that disarm a check.

Every option of every command and every variable that the code reads stands here, with what it may do. A new one has
to be added on purpose, by somebody who has to say in words what it loosens; nothing that is here lets a production
profile start with a check undone.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest

from nvllm.cli.frame import common_options
from nvllm.cli.main import COMMANDS, program

PACKAGE = Path(__file__).parents[2] / "launcher/nvllm"

_CHANGE = "where a change comes from, which must apply as one of a file"
_COLD = "each leg compiles for itself: the report says it"
_WHICH = "which one is meant"
_PATCHES = "another patch set: another build hash, so another serve hash, of which there is no blessing"
_STRICTER = "reads and checks more"
_WRITES = "where something is written that nothing trusts"
_LESS = "does less than without it, and starts nothing"
_SHOWN = "how much is shown, and how"
_ENGINES = {
    "--runs-per-engine": "what is measured: the report says it",
    "--engines": "what is measured: the report says it",
}
_EVIDENCE = {
    "--runs": "how many: the report says it",
    "--output": "where evidence is written; a serve trusts none of it",
    "--force": "removes the evidence of an earlier run in that directory, and nothing else",
    "--anyway": "legs of several hosts are one run: its manifest names them, and the report says so",
    "--dry-run": _LESS,
    "--until-decided": "how many runs there are: the report says it, and corrects for it",
}
_TRACES = {
    **dict.fromkeys(("--trace", "--trace-runs"), "adds legs that no other figure comes from"),
    "--trace-steps": "what is measured: the report says it",
}
_LOAD = {
    "--requests": "what is measured: the report says it",
    "--prompt-len": "what is measured: the report says it",
    "--output-len": "what is measured: the report says it",
}
_QUESTIONS = {
    "--probe": "what is asked: the report says it",
    "--data": "what is asked: the report has its sha256",
    "--n": "what is asked: the report says it",
    "--seed": "what is asked: the report says it",
    "--floor": "when a run fails; no serve depends on it",
    "--length": "what is asked: the report says it",
    "--timeout": "when an answer counts as none",
    "--concurrency": "what is asked: the report says it",
    "--prompt": "what is asked: the report says it",
    "--stop": "what is asked: the report says it",
    "--extract": "what counts as right: the report says it",
}
_MARGIN = {"--margin": "what counts as the same: the report says it"}
_MARGINS = {
    **_MARGIN,
    "--margin-questions": "what counts as the same: the report says it",
    "--margin-length": "what counts as the same: the report says it",
}

_LIMIT = "what the run is held against; a profile takes no run with a looser limit than its own"
_MEMORY_GATE = {
    "--bands": "what is tested; a profile says how large a band it requires",
    "--loops": "how often: the record says it",
    "--swap": _LIMIT,
    "--dry-run": _LESS,
}
_THERMAL_GATE = {"--seconds": "how long it looks", "--gpu-temperature": _LIMIT, "--host-temperature": _LIMIT}
_DISK_GATE = {"--writes": "how many are measured", "--p50": _LIMIT, "--p99": _LIMIT}

COMMON = {
    "--project": _WHICH,
    "--platform": _WHICH,
    "--json": _SHOWN,
    "--offline": "uses no network: refuses what would need it",
    "--quiet": _SHOWN,
    "--verbose": _SHOWN,
    "--no-color": _SHOWN,
}
"""What stands before and after every command's name."""

OPTIONS: Mapping[str, Mapping[str, str]] = {
    "init": {
        "--vllm": _WHICH,
        "--target": _WHICH,
        "--name": "what the image is called",
        "--from-diff": "what becomes a patch; it is shown, and committed",
        "--from-branch": "what becomes a patch; it is shown, and committed",
        "--proved-by": "a text of the series",
        "--commit": "a pin of the spec; it is checked against what the source records",
        "--bare": "another patch set, of an image that nobody has blessed",
        "--signer": "demands more: a signature of every blessing",
        "--key": "which key signs; one that is there is never changed",
        "--no-lock": _LESS,
        "--dry-run": _LESS,
    },
    "lock": {
        "--check": _LESS,
        "--update": "resolves more anew; what is locked is shown and committed",
        "--model": "which model is pinned as it is now; what is locked is shown and committed",
        "--compiled": "which wheel is locked, by its sha256",
        "--later": "leaves a model out of the lock; no profile with it is planned or served",
    },
    "build": {
        "--patches": _PATCHES,
        "--layout": _WRITES,
        "--layers-only": _LESS,
        "--only": _LESS,
        "--builder": "who builds; an image of another build hash is refused",
        "--record": "LOOSENS: what is built is what later builds are held against. It is a file that is committed",
        "--check": "builds twice, compares, and loads nothing",
        "--dry-run": _LESS,
    },
    "fetch": {"--models": "downloads more, each file by the lock's sha256", "--dry-run": _LESS},
    "push": {"--patches": _PATCHES, "--blessing": "sends more; whoever pulls it checks it", "--dry-run": _LESS},
    "pull": {
        "--blessing": "brings a cache of this host's own serve hash, each file by its hash; in force if signed",
        "--verify": "makes every layer here and compares it, where the project has recorded no digests",
    },
    "export": {
        "--profile": _WHICH,
        "--registry": "where image and blessing come from, each by its digest",
        "--out": _WRITES,
        "--server-version": "how the blessed cache is mounted; the gate hashes it in either way",
        "--models": "where the model comes from; the gate hashes it",
        "--explain": _LESS,
    },
    "ablate": {
        "--profile": _WHICH,
        "--sentinels": _WHICH,
        "--arms": _WHICH,
        "--design": _WHICH,
        "--artifacts": "how many compiles are compared; nothing is blessed",
        **_ENGINES,
        "--cold": _COLD,
        **_EVIDENCE,
        **_QUESTIONS,
        **_MARGINS,
    },
    "bench": {
        "--profile": _WHICH,
        "--vs": _WHICH,
        "--cold": _COLD,
        **_TRACES,
        **_LOAD,
        **_MARGIN,
        "--concurrency": "what is measured: the report says it",
        "--seed": "what is measured: the report says it",
        **_EVIDENCE,
    },
    "eval": {
        "--image": _WHICH,
        "--profile": _WHICH,
        "--tasks": "what is asked: the report says it",
        "--include": "what is asked: the report has its sha256",
        **_ENGINES,
        **_EVIDENCE,
        **_QUESTIONS,
    },
    "sweep": {"--profiles": _WHICH, "--cold": _COLD, **_TRACES, **_EVIDENCE, **_LOAD, **_QUESTIONS, **_MARGINS},
    "report": {"--html": _WRITES, "--open": _SHOWN},
    "sbom": {"--format": _SHOWN, "--output": _WRITES, "--patches": _PATCHES},
    "provenance": {
        "--output": "where a statement is written; whoever trusts it checks the signature",
        "--sign": "signs what is written",
        "--patches": _PATCHES,
    },
    "dockerfile": {"--context": _WRITES, "--base-image": "loads one layer under a tag that nothing serves",
                   "--patches": _PATCHES},
    "kernels build": {"--patches": _PATCHES},
    "kernels list": {"--patches": _PATCHES},
    "kernels check": {"--patches": _PATCHES},
    "serve": {
        "--profile": _WHICH,
        "--dry-run": _LESS,
        "--detach": "the same supervisor, in the background",
        "--paranoid": _STRICTER,
    },
    "logs": {"--follow": _SHOWN, "--tail": _SHOWN},
    "stop": {"--all": _WHICH},
    "doctor": {"--profile": _WHICH},
    "bless": {
        "--profile": _WHICH,
        "--trials": "how many, five at least",
        "--claim": "as many as it needs, five at least",
        "--unsafe-trials": "LOOSENS: fewer trials. The manifest is marked, and no production profile is served by it",
        "--rebless": "replaces what is in force, after as many trials; without it NV902",
        "--extend": "adds to what is in force, after as many trials; without it NV902",
        "--artifacts": "how many compiles may fail; the one that is blessed passes as many trials",
        "--keep-rejected": "how long a cache that failed stays; nothing serves it",
        "--candidate": "tries what was pulled instead of what it compiles, by as many trials",
        "--sign": "signs what is written",
        "--expires": "an earlier end; a later one than the profile's is refused",
        "--on": "where trials run; each machine computes its own class and serve hash, and its log shows the trial",
        "--registry": "what image and cache travel through, each by its digest",
        "--dry-run": _LESS,
        "--paranoid": _STRICTER,
    },
    "manifest list": {"--all": _SHOWN},
    "manifest show": {"--html": _WRITES, "--open": _SHOWN},
    "manifest verify": {"--signers": _STRICTER},
    "manifest restore": {"--sign": "signs what is written"},
    "manifest revoke": {"--reason": "is shown at every refusal"},
    "patch list": {"--series": _WHICH},
    "patch check": {"--all": _SHOWN, "--against": _WHICH, "--upstream": "compares, and writes nothing"},
    "patch apply": {"--patches": _PATCHES},
    "patch new": {"--summary": "a text of the series", "--proved-by": "a text of the series", "--series": _WHICH},
    "patch add": {
        "--from-pr": _CHANGE,
        "--proved-by": "a text of the series",
        "--id": "what the patch is called",
    },
    "patch prove": {
        "--profile": _WHICH,
        "--again": "runs more tests",
        "--each": "runs more tests",
        "--dry-run": _LESS,
        "--on": "where tests run; what a machine answers is held against what it was sent",
        "--registry": "what images and tests travel through; a machine pulls both by digest",
    },
    "patch replace": {"--from-pr": _CHANGE, "--series": _WHICH},
    "patch refresh": {"--against": _WHICH, "--series": _WHICH},
    "dev finish": {"--dry-run": _LESS},
    "dev serve": {"--profile": _WHICH, "--watch": "starts the same engine again, examined anew each time"},
    "dev test": {"--profile": _WHICH},
    "port": {
        "--to": _WHICH,
        "--from-series": _WHICH,
        "--commit": "a pin of the series; it is checked against what the source records",
        "--conflicts": "where a person's merges are read; the patches are shown, and committed",
        "--dry-run": _LESS,
    },
    "bisect start": {
        "--bad": _WHICH,
        "--good": _WHICH,
        "--test": "the program that judges: it runs as the operator, who named it",
        "--test-builtin": _WHICH,
        "--regress": "which failure counts",
        "--build-only": _LESS,
        "--profile": _WHICH,
        "--find": "which question is asked",
        "--set": "which question is asked",
        "--confidence": "when a search ends: its verdict says what it was",
        "--repeats": "when a search ends: its verdict says what it was",
        "--patience": "when a search ends: its verdict says what it was",
        "--flaky": "how trials are counted",
        "--build-price": "the order of the trials",
        "--discard": "sets an earlier journal aside, which is kept",
        "--max-trials": _LESS,
        "--max-hours": _LESS,
        "--all": "which question is asked",
    },
    "bisect run": {
        "--image": _WHICH,
        "--budget": _LESS,
        "--jobs": "trials at the same time",
        "--artifacts": "what trials load; each is compiled here, and a trial names the one that it loaded",
        "--max-trials": _LESS,
        "--max-hours": _LESS,
        "--on": "where trials run; each machine computes its own class, and its results are held against it",
        "--registry": "what images travel through, each by its digest",
    },
    "fleet status": {"--on": _WHICH},
    "worker": {"--pipe": "when it ends"},
    "gate memory": _MEMORY_GATE,
    "gate thermal": _THERMAL_GATE,
    "gate disk": _DISK_GATE,
    "gate all": {**_MEMORY_GATE, **_THERMAL_GATE, **_DISK_GATE},
    "status": {"--metrics": _SHOWN, "--metrics-file": _WRITES},
    **{
        f"bisect {name}": {"--image": _WHICH}
        for name in ("plan", "status", "why", "skip", "back", "retry", "good", "bad")
    },
    "bisect serve": {"--image": _WHICH, "--profile": _WHICH},
    "bisect probe": {
        "--image": _WHICH,
        "--regress": "which failure counts",
        "--keep": "which verdicts the operator vouches for; the journal and every report say it",
    },
    "bisect report": {"--image": _WHICH, "--html": _WRITES, "--open": _SHOWN, "--markdown": _SHOWN},
    "bisect replay": {"--adopt": _WRITES},
    "gc": {
        "--dry-run": _LESS,
        "--keep-younger": "LOOSENS: a build that runs meanwhile may lose what it has just made, and fails then",
        "--forget": "LOOSENS: what a project needs that is said to be gone is removed, and has to be made again",
    },
}  # fmt: skip
"""The options of each command that has any but the common ones."""

VARIABLES = {
    "NVLLM_TASK": "inside a probe: the task that it runs for; a label of the container, by which a worker sweeps",
    "RAY_AUTH_MODE": "without `token` there, no cluster is used",
    "RAY_AUTH_TOKEN": "whether there is a token; Ray reads it",
    "RAY_AUTH_TOKEN_PATH": "whether there is a token; Ray reads it",
    "_NVLLM_COMPLETE": "completes a line and runs nothing",
    "NVLLM_HOME": "where cache and state lie",
    "NVLLM_MODELS": "where models lie; every file of them is checked by the lock's sha256",
    "NVLLM_DEBIAN_MIRROR": "where packages come from: lists by the archive keys, packages by sha256",
    "NVLLM_DEBIAN_SNAPSHOT": "where packages come from that no mirror has any more: by sha256",
    "NVLLM_GITHUB_MIRROR": "where sources come from; they are checked by commit and tree",
    "NVLLM_IMAGE": "is set for the program that judges a bisect, and never read",
    "NVLLM_PATCHES": "is set for the program that judges a bisect, and never read",
    "NVLLM_ADDRESS": "is set for the program that judges a bisect, and never read",
    "NVLLM_NODES": "inside a run of pytest that nvllm starts: the tests that run",
    "NVLLM_MODEL": "is set for a program that asks questions, and never read",
    "NVLLM_PERQ": "is set for a program that asks questions, and never read",
    "NVLLM_RUN": "is set for a program that asks questions, and never read",
    "NVLLM_TRIAL": "is set for the program that judges a bisect: by it a next run ends what a kill has left",
    "NVLLM_PYTHON_H": "the guard of a C header",
    "DOCKER_CONFIG": "where Docker's client finds its configuration; it is looked at before the client opens it",
    "DOCKER_CONTEXT": "which engine, where DOCKER_HOST names none",
    "DOCKER_HOST": "which engine",
    "DISPLAY": "whether a report is shown in a browser",
    "WAYLAND_DISPLAY": "whether a report is shown in a browser",
    "HOME": "where cache, state and models lie",
    "XDG_CACHE_HOME": "where cache and models lie",
    "XDG_STATE_HOME": "where the state lies",
    "XDG_CONFIG_HOME": "where the key lies that `init --signer` makes; what a manifest is checked by is in the project",
    "HF_HOME": "where models of the hub lie",
    "HF_HUB_CACHE": "where models of the hub lie",
    "NO_COLOR": _SHOWN,
    "FORCE_COLOR": _SHOWN,
    "TERM": _SHOWN,
    "PATH": "what the second build of `build --check` finds its programs by",
    "PYTHONHASHSEED": "what that build must not have",
    "TZ": "what that build must not have",
    "TRITON_CACHE_DIR": "inside the engine: its own cache, which the plan names; the gate compares the variables",
}
"""Every variable that has our name anywhere in the package, and every other one that is read by its name."""

CONSTANTS = {"COMPLETE_VARIABLE", "MIRROR_VARIABLE", "SNAPSHOT_VARIABLE"}
"""Variables that are read by a constant, which has our name and so stands in `VARIABLES`."""

PASSED = {"proc.py": {"name"}}
"""Variables that are handed on to programs that we run, from lists that stand there."""


def commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yield COMMAND, which is called NAME, and all below it."""
    yield name, command
    if isinstance(command, click.Group):
        for below, each in command.commands.items():
            yield from commands(f"{name} {below}", each)


EVERY = {
    name: command
    for entry in COMMANDS
    for name, command in commands(entry.name, vars(importlib.import_module(entry.module))[entry.attribute])
}


def options(command: click.Command) -> set[str]:
    """Return the long names of the options of COMMAND, and of what turns one off again."""
    found = [param for param in command.params if isinstance(param, click.Option)]
    return {name for option in found for name in (*option.opts, *option.secondary_opts) if name.startswith("--")}


def test_every_option_is_one_that_was_thought_about() -> None:
    assert {name for option in common_options() for name in option.opts if name.startswith("--")} == set(COMMON)
    found = {name: options(command) - set(COMMON) for name, command in EVERY.items()}
    assert {name: given for name, given in found.items() if given} == {
        name: set(given) for name, given in OPTIONS.items()
    }


def test_what_loosens_says_so_and_no_serve_has_it() -> None:
    loosening = {
        f"{name} {option}" for name, given in OPTIONS.items() for option, may in given.items() if "LOOSENS" in may
    }
    assert loosening == {"bless --unsafe-trials", "build --record", "gc --keep-younger", "gc --forget"}


def test_no_option_comes_from_a_variable() -> None:
    given = {name: [param.name for param in command.params if param.envvar] for name, command in EVERY.items()}
    assert {name: params for name, params in given.items() if params} == {}
    assert [name for name, command in EVERY.items() if command.context_settings.get("auto_envvar_prefix")] == []


def test_nor_does_one_of_the_program_itself() -> None:
    assert program.context_settings.get("auto_envvar_prefix") is None
    assert options(program) == {*COMMON, "--version"}
    assert not [param.name for param in program.params if param.envvar is not None]


def test_every_variable_is_one_that_was_thought_about() -> None:
    text = "\n".join(path.read_text() for path in PACKAGE.rglob("*") if path.suffix in {".py", ".h"})
    ours = set(re.findall(r"\b_?NVLLM_[A-Z_]+\b", text))
    read = set().union(*(keys(path) for path in PACKAGE.rglob("*.py")))
    names = {ast.literal_eval(one) for one in read if one.startswith(("'", '"'))}
    assert ours | names == set(VARIABLES)
    assert read - {repr(one) for one in names} == CONSTANTS


def keys(path: Path) -> set[str]:
    """Return what the module at PATH asks the environment for, as it stands in the code."""
    text = path.read_text()
    if "env" not in text:
        return set()  # each way to ask has these letters, and parsing all modules would take seconds
    found = {ast.unparse(key) for node in ast.walk(ast.parse(text)) for key in asked(node)}
    return found - PASSED.get(path.name, set())


def asked(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the key of NODE if it asks the environment for a variable, in one of the three ways to do that."""
    where: ast.expr | None = None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        where, key = node.func.value, node.args[0]
    elif isinstance(node, ast.Subscript):
        where, key = node.value, node.slice
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        where, key = node.comparators[0], node.left
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name | ast.Attribute)
        and ast.unparse(node.func) in {"os.getenv", "getenv"}
    ):
        yield node.args[0]
    if where is not None and ast.unparse(where) in {"os.environ", "env"}:
        yield key


@pytest.mark.parametrize(
    "line", ['os.environ.get("X")', 'env["X"]', '"X" in os.environ', '"X" not in env', 'os.getenv("X", "1")']
)
def test_every_way_to_ask_is_seen(line: str) -> None:
    found = [ast.unparse(key) for node in ast.walk(ast.parse(line)) for key in asked(node)]
    assert found == ["'X'"]
