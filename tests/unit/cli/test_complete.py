"""Completion: what the shell is offered for a half-written command line, as click asks for it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from nvllm.cli.frame import COMPLETE_VARIABLE
from nvllm.cli.main import main, program
from support.plansamples import project

Offers = Callable[[str], list[str]]


@pytest.fixture
def offers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Offers:
    """Returns what is offered for a line of words whose last one is not complete, in a project with the image demo."""
    root = project(tmp_path).root
    monkeypatch.chdir(root)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    (tmp_path / "home/state/runs/nvllm-demo-eager").mkdir(parents=True)
    with (root / "patches/v1/series.yaml").open("a") as series:
        series.write("    sentinel: {name: one}\n")
    (root / "manifests/blessed").mkdir(parents=True, exist_ok=True)
    (root / "manifests/blessed/demo-eager_1234567.json").write_text("{}")
    monkeypatch.setenv(COMPLETE_VARIABLE, "bash_complete")

    def ask(line: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        assert main([]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return [row.partition(",")[2] for row in out.split()]

    return ask


OFFERED: tuple[tuple[str, list[str]], ...] = (
    ("nvllm comp", ["completion"]),
    ("nvllm build ", ["demo"]),
    ("nvllm build x", []),
    ("nvllm serve demo --profile ea", ["eager"]),
    ("nvllm serve --profile ea", ["eager"]),
    ("nvllm serve other --profile ea", ["eager"]),
    ("nvllm patch list --series v", ["v1"]),
    ("nvllm patch refresh fi", ["first"]),
    ("nvllm patch apply demo out --patches fi", ["first"]),
    ("nvllm patch apply demo out --patches no", ["none"]),
    ("nvllm bisect start demo --bad second,fi", ["second,first"]),
    ("nvllm bisect good fi", ["first"]),
    ("nvllm explain de", ["demo"]),
    ("nvllm explain demo/ea", ["demo/eager"]),
    ("nvllm model check demo ti", ["tiny"]),
    ("nvllm model make ", ["demo", "hub", "tiny"]),
    ("nvllm model make ti", ["tiny"]),
    ("nvllm store export de", ["demo", "de"]),
    ("nvllm manifest show demo-", ["demo-eager_1234567"]),
    ("nvllm stop nvllm-d", ["nvllm-demo-eager"]),
    ("nvllm ablate demo --sentinels on", ["one"]),
    ("nvllm ablate demo --sentinels one,", []),
    ("nvllm sweep demo --profiles eager,", []),
    ("nvllm ablate demo --probe gs", ["gsm8k", "gs"]),
    ("nvllm lock demo --later ti", ["tiny"]),
    ("nvllm bisect start demo --test-builtin co", ["coherent"]),
    ("nvllm explain nv10", [f"NV10{digit}" for digit in range(1, 10)]),
)


def test_what_is_offered(offers: Offers) -> None:
    assert {line: offers(line) for line, _ in OFFERED} == dict(OFFERED)


@pytest.mark.parametrize("text", ["", "- a list\n", "profiles: [\n", "profiles: 3\npatches: 3\n", "\0"])
def test_a_file_that_cannot_be_read_offers_nothing(offers: Offers, text: str) -> None:
    for path in (Path("images/demo.yaml"), Path("patches/v1/series.yaml")):
        path.write_text(text)
    assert offers("nvllm serve demo --profile ") == []
    assert offers("nvllm patch refresh ") == []


@pytest.mark.parametrize("rest", ["build ", "serve demo --profile ", "patch refresh ", "patch list --series "])
def test_where_no_project_is_nothing_is_offered(offers: Offers, tmp_path: Path, rest: str) -> None:
    (tmp_path / "none").mkdir()
    assert offers(f"nvllm --project {tmp_path}/none {rest}") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_nvllm(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"{COMPLETE_VARIABLE}={shell}_complete" in script
    if found := shutil.which(shell):
        done = subprocess.run([found, "-n"], input=script, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


FREE = {"patch new: patch_id", "push: repo", "pull: repo"}
"""Arguments that are new words, which nobody can offer, or names that only a registry knows, which is not asked."""

FREE_OPTIONS = {
    "ablate --arms",
    "bisect probe --regress",
    "bisect run --on",
    "bisect run --registry",
    "bisect start --regress",
    "bless --candidate",
    "bless --expires",
    "bless --on",
    "bless --registry",
    "dockerfile --base-image",
    "eval --tasks",
    "export --models",
    "export --registry",
    "export --server-version",
    "fleet status --on",
    *(f"gate {name} {option}" for name in ("all", "memory") for option in ("--bands", "--swap")),
    "port --commit",
    "port --to",
    "init --signer",
    "init --commit",
    "init --name",
    "init --vllm",
    "manifest revoke --reason",
    "patch add --id",
    "patch new --summary",
    "patch prove --on",
    "patch prove --registry",
    *(f"{command} {option}" for command in ("ablate", "eval", "sweep") for option in ("--prompt", "--stop")),
}
"""Options whose values are new words, times, addresses, or versions that only an index knows."""


def leaves(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield the commands of COMMAND that are no groups, with their paths."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    ctx = click.Context(command)
    for name in command.list_commands(ctx):
        found = command.get_command(ctx, name)
        assert found is not None
        yield from leaves(found, f"{path} {name}".strip())


LEAVES = dict(leaves(program, ""))


def completes(path: str, param: click.Parameter) -> bool:
    """Return whether the shell is offered something for PARAM of the command PATH: a known name, or a path."""
    ctx = click.Context(LEAVES[path])
    ctx.params["image"] = "demo"
    return any(item.value or item.type in {"file", "dir"} for item in param.shell_complete(ctx, ""))


@pytest.mark.usefixtures("offers")
def test_every_argument_is_completed() -> None:
    arguments = [(path, one) for path, leaf in LEAVES.items() for one in leaf.params if isinstance(one, click.Argument)]
    assert [
        f"{path}: {one.name}"
        for path, one in arguments
        if f"{path}: {one.name}" not in FREE and not completes(path, one)
    ] == []


@pytest.mark.usefixtures("offers")
def test_every_value_of_an_option_is_completed() -> None:
    """What has a type of its own, such as a number or a size, is not."""
    completed = (click.types.StringParamType, click.Path, click.Choice)
    options = [(path, one) for path, leaf in LEAVES.items() for one in leaf.params if isinstance(one, click.Option)]
    assert [
        f"{path} {one.opts[0]}"
        for path, one in options
        if not one.is_flag and isinstance(one.type, completed)
        if f"{path} {one.opts[0]}" not in FREE_OPTIONS and not completes(path, one)
    ] == []
