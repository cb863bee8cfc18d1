"""Commands for the tests of the frame: one for each way in which a command can end."""

from __future__ import annotations

import time
from pathlib import Path

import click

from nvllm.cli.frame import App, Command, with_app
from nvllm.core import proc
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refusal, Refused

EXAMPLES = """
Examples:
  nvllm sample done        wider than the help is, and yet no part of it may be wrapped, as people copy it
"""


@click.command("sample", cls=Command, epilog=EXAMPLES)
@click.argument("how")
@click.option("--path", type=click.Path(path_type=Path), help="A file for the ending to write.")
@click.option("--number", type=int, default=0, show_default=True, help="A number.")
@with_app
def sample(app: App, how: str, path: Path | None, number: int) -> None:
    """HOW names the way."""
    if how == "done":
        data: dict[str, Json] = {"number": number, "offline": app.offline, "project": str(app.project.root)}
        app.out.result("sample", data, lambda: app.out.table(["name", "value"], [["number", str(number)]]))
    elif how == "refuse":
        raise Refused(
            [
                Refusal("NV505", "host", "3 GiB", "1 GiB", "stop something"),
                Refusal("NV202", "manifests/cpu.lock.json", "1111", "2222", "nvllm lock cpu"),
            ]
        )
    elif how == "crash":
        raise RuntimeError("the sample broke on hf_secret_value")
    elif how == "interrupt":
        raise KeyboardInterrupt
    elif how == "log":
        proc.run(["printf", "a b"], env=proc.environment({}), timeout=10)
    elif how == "flood":
        for _ in range(200_000):
            app.out.line("a line of a long log")
    elif how == "wait":
        assert path is not None
        try:
            path.write_text("started")
            app.progress.note("waiting")
            time.sleep(60)
        finally:
            path.write_text("cleaned up")
