"""`nvllm dev test`: tests in the image, on the files of a work tree as they stand."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from nvllm.cli import dev_tree
from nvllm.cli.complete import files, profiles
from nvllm.cli.frame import PATH, App, Command, with_app
from nvllm.core.canonical import Json
from nvllm.core.refusal import refuse
from nvllm.engine import engine
from nvllm.host import locks, survey
from nvllm.host.locks import Key
from nvllm.patches import patchset
from nvllm.runtime.proving import MARK
from nvllm.trials import imagetests, probe, proving
from nvllm.trials.bench import EngineBench
from nvllm.trials.imagetests import ImageTests
from nvllm.trials.trial import Built
from nvllm.trials.verdict import TestResult

EXAMPLES = """
Examples:
  nvllm dev test vllm-cpu tests/test_mine.py             a test of the project
  nvllm dev test vllm-cpu tests/test_outputs.py          one of vLLM's own, below vllm-cpu
"""


@click.command("test", cls=Command, epilog=EXAMPLES)
@click.argument("directory", type=PATH, metavar="DIR", help="A work tree that `nvllm dev start` made.")
@click.argument("tests", nargs=-1, metavar="TEST...", required=True, shell_complete=files, help="FILE or FILE::TEST.")
@click.option("--profile", shell_complete=profiles, help="The profile whose limits hold.  [default: the first]")
@with_app
def test(app: App, directory: Path, tests: tuple[str, ...], profile: str | None) -> None:
    """Run TESTs with pytest in the image, with the files of DIR as they stand in a layer over it.

    TEST is a file, or a test in it, below the project or, as vLLM's own tests are, below DIR; those run without vLLM's
    conftest.py, which needs more than the image has. Exits with 1 unless all pass.
    """
    nodes = {node: _below(app, directory, node) for node in tests}
    imagetests.pytest_files()  # refuses before anything is built
    made = dev_tree.development(app, directory, profile)
    name = profile if profile is not None else next(iter(made.build.spec.profiles))
    docker, image = engine.require(), made.build.spec.name
    app.remember_project()
    judge = probe.builtin("boots")  # it judges nothing: the tests do
    bench = EngineBench(app.project, app.places, image, name, judge, docker, app.offline, app.progress, purpose="test")
    own = made.build.spec.profiles[name]
    gpus = tuple(gpu.uuid for gpu in survey.host_facts(app.places, docker).gpus[: 1 if own.gpu is not None else 0])
    sentinels = {*own.sentinels} & patchset.sentinels(made.build.patches)
    holder = locks.this_process(shlex.join(["nvllm", "dev", "test", str(directory)]))
    written, by_node = "", dict[str, Sequence[TestResult]]()
    with locks.acquire_all(app.places.locks, [Key("proof", f"test-{image}-{app.project.id}")], holder):
        bench.clear()
        chosen = tuple(patch.id for patch in made.build.patches)
        built = Built(chosen, "", made.build.build_hash, dev_tree.ensure_image(app, made, docker), 0.0)
        for root in dict.fromkeys(nodes.values()):
            # vLLM's conftest.py imports what the image lacks.
            options = ("--noconftest",) if root == directory else ()
            below = {node: parent for node, parent in nodes.items() if parent == root}
            output = ImageTests(bench, made.build, gpus, options).run(built, below, sentinels)
            written += output
            by_node |= proving.by_node(imagetests.names(below), output, f"the image {built.image}")
    others = {node: [result for result in by_node[node] if result.outcome != "passed"] for node in nodes}
    failed = [node for node in nodes if not by_node[node] or any(result.outcome == "failed" for result in others[node])]
    data: Json = {
        "image": image,
        "difference": made.changed.digest,
        "files": list(made.changed.paths),
        "tests": [
            {
                "node": node,
                "passed": sum(result.outcome == "passed" for result in by_node[node]),
                "others": [{"outcome": result.outcome, "text": result.text} for result in others[node]],
            }
            for node in nodes
        ],
    }
    log = "\n".join(line for line in written.splitlines() if MARK not in line)
    app.out.result("dev test", data, f"{log.strip()}\n{made.summary}")
    if failed:
        raise click.exceptions.Exit(1)


def _below(app: App, directory: Path, node: str) -> Path:
    """Return the directory that the test NODE lies below: the project, or the work tree in DIRECTORY."""
    file = node.partition("::")[0]
    for root in (app.project.root, directory):
        if (root / file).is_file():
            return root
    cure = f"name a file below {app.project.root} or {directory}"
    raise refuse("NV108", "TEST", "the file of a test", f"no file {file}", cure)
