"""The command line's frame: start-up, help, common options, endings and exit codes, JSON, completion.

The ways of ending are tried with a command of the tests' own (`frame_sample.py`), put into the table of commands:
no real command crashes or waits on demand.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import click
import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvllm import __version__
from nvllm.cli import main as cli
from nvllm.cli.frame import common_options
from nvllm.cli.main import COMMANDS, Entry, main, program
from support.rows import samples

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "docs/schemas/output.schema.json").read_text())
SLOW = (
    "docker",
    "huggingface_hub",
    "rich",
    "jinja2",
    "matplotlib",
    "numpy",
    "jsonschema",
    "cattrs",
    "httpx2",
    "yaml",
    "unearth",
    "pip",
)
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'launcher'}:{ROOT / 'tests'}"}


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in an empty project, with a home of its own, and with the sample among the commands."""
    for directory in ("images", "manifests", "patches"):
        (tmp_path / directory).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    entry = Entry("Housekeeping", "sample", "support.frame_sample", "sample", "End in some way.")
    monkeypatch.setitem(cli.BY_NAME, "sample", entry)
    return tmp_path


def document(text: str) -> Any:
    """Return the one JSON document in TEXT, which fits the schema."""
    value = json.loads(text)
    jsonschema.Draft202012Validator(SCHEMA).validate(value)
    return value


def _command(name: str) -> click.Command:
    found = program.get_command(click.Context(program), name)
    assert found is not None
    return found


GROUPS = {entry.name: found for entry in COMMANDS if isinstance(found := _command(entry.name), click.Group)}
PATHS = [*((entry.name,) for entry in COMMANDS), *((name, one) for name in GROUPS for one in GROUPS[name].commands)]
"""The words of every command, and of every command of a group."""

# Start-up and help


def test_the_command_line_imports_nothing_slow() -> None:
    # The classes of a spec are many, and take longer to make than all else that the help needs of ours.
    slow = [*SLOW, "nvllm.spec"]
    program_text = f"import sys, nvllm.cli.main; print([name for name in {slow!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program_text], capture_output=True, check=True, env=ENVIRONMENT)
    assert done.stdout == b"[]\n"


def test_help_imports_no_command() -> None:
    program_text = (
        "import sys, nvllm.cli.main as c; c.main(['--help']); print(*[m for m in sys.modules if 'nvllm.cli' in m])"
    )
    done = subprocess.run([sys.executable, "-c", program_text], capture_output=True, check=True, env=ENVIRONMENT)
    assert done.stdout.decode().splitlines()[-1].split() == ["nvllm.cli", "nvllm.cli.frame", "nvllm.cli.main"]


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_is_there_at_once(option: str) -> None:
    # The promise is 150 ms on a machine at rest. The machine of a test may be busy: one of five runs within four
    # times that still tells a slow import from a slow moment.
    def seconds() -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "nvllm", option], capture_output=True, check=True, env=ENVIRONMENT)
        return time.perf_counter() - started

    assert any(seconds() < 0.6 for _ in range(5))


def test_help_shows_every_command_in_its_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for entry in COMMANDS:
        section = out.split(f"\n{entry.section}:\n")[1].split("\n\n")[0]
        assert entry.name in section
        assert entry.help in section
    assert cli.EXAMPLES.strip() in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"nvllm {__version__}\n"


def test_every_command_of_the_table_is_there_and_has_help_and_examples() -> None:
    assert [entry.name for entry in COMMANDS if _command(entry.name).name != entry.name] == []
    assert [
        path
        for path in PATHS
        if not _leaf(path).help or "Examples:" not in (_leaf(path).epilog or _command(path[0]).epilog or "")
    ] == []


def test_the_help_of_a_command_begins_with_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    """It is the sentence that the help of the program shows."""
    wrong = []
    for entry in COMMANDS:
        assert main([entry.name, "--help"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        if not shown.startswith(f"Usage: nvllm {entry.name}") or entry.help not in shown:
            wrong.append(shown)
    assert wrong == []


@pytest.mark.parametrize("columns", ["80", "40"])
def test_no_help_is_cut(columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The help of each command and of each option is whole, and so is each summary that a group lists."""
    monkeypatch.setenv("COLUMNS", columns)
    cut = []
    for path in ((), *PATHS):
        assert main([*path, "--help"]) == 0
        shown = "".join(capsys.readouterr().out.split())
        texts = _help_texts(path)
        cut += [text for text in texts if "".join(text.split()) not in shown or text.endswith(("…", "..."))]
    assert cut == []


def test_paragraphs_of_help_keep_no_indentation_of_the_source(capsys: pytest.CaptureFixture[str]) -> None:
    """Each begins two columns in, as the summary does, and has no gap between two words of a sentence."""
    wrong = []
    for path in PATHS:
        assert main([*path, "--help"]) == 0
        paragraphs = (
            capsys.readouterr().out.partition("\n\n")[2].partition("\nOptions:")[0].partition("\nPositional")[0]
        )
        wrong += [(path, line) for line in paragraphs.splitlines() if line.startswith("   ") or "  " in line.strip()]
    assert wrong == []


def _help_texts(path: Sequence[str]) -> list[str]:
    """Return the help of the command PATH, of its own options, and of the commands that it has."""
    command: click.Command = program
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name] if command is not program else _command(name)
    common = {option.help for option in common_options()} if path else set()
    options = [param for param in command.params if isinstance(param, click.Option) and param.help not in common]
    texts = [option.help for option in options if option.help is not None]
    if isinstance(command, click.Group):
        texts += [one.get_short_help_str() for one in command.commands.values()]
    assert command.help is not None
    return [command.help, *texts]


def test_examples_are_kept_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "--help"]) == 0
    out = capsys.readouterr().out
    assert "no part of it may be wrapped, as people copy it\n" in out
    assert "Common options: --project, --platform, --json, --offline, --quiet, --verbose, --no-color." in out


def test_no_command_at_all_is_a_usage_error_with_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Examples:" in captured.err


# Common options


@pytest.mark.parametrize("line", [["--offline", "sample", "done"], ["sample", "done", "--offline"]])
def test_common_options_stand_anywhere(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", *line]) == 0
    assert document(capsys.readouterr().out)["result"]["offline"] is True
    assert main([*line, "--json"]) == 0
    assert document(capsys.readouterr().out)["result"]["offline"] is True


def test_the_project_is_a_directory(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (world / "other/images").mkdir(parents=True)
    assert main(["sample", "done", "--json", "--project", "other"]) == 0
    assert document(capsys.readouterr().out)["result"]["project"] == str(world / "other")
    assert main(["--project", "nowhere", "sample", "done"]) == 2
    assert "NV107 unknown name\n  where     nowhere\n" in capsys.readouterr().err


def test_verbose_shows_the_programs_that_are_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "log", "-v"]) == 0
    assert capsys.readouterr().err == "+ printf 'a b'\n"
    assert main(["sample", "log"]) == 0
    assert capsys.readouterr().err == ""


# Endings


def test_a_result_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "done", "--number", "7"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("name    value\nnumber  7\n", "")


def test_a_result_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "done", "--json", "--number", "7"]) == 0
    captured = capsys.readouterr()
    value = document(captured.out)
    assert (value["command"], value["ok"], value["result"]["number"]) == ("sample", True, 7)
    assert captured.err == ""


def test_refusals_are_shown_together_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "refuse"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.index("NV202 lock stale") < captured.err.index("NV505 too little memory")
    assert captured.err.endswith("2 refusals\n")


def test_refusals_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "sample", "refuse"]) == 3
    captured = capsys.readouterr()
    value = document(captured.out)
    assert (value["command"], value["ok"], captured.err) == ("sample", False, "")
    assert value["refusals"][0] == {
        "code": "NV202",
        "title": "lock stale",
        "kind": "refused",
        "where": "manifests/cpu.lock.json",
        "expected": "1111",
        "found": "2222",
        "cure": "nvllm lock cpu",
    }


def test_colour_only_where_it_is_wanted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    main(["sample", "refuse"])
    assert "\x1b" not in capsys.readouterr().err
    monkeypatch.setenv("FORCE_COLOR", "1")
    main(["sample", "refuse"])
    assert "\x1b" in capsys.readouterr().err
    main(["sample", "refuse", "--no-color"])
    assert "\x1b" not in capsys.readouterr().err


SHELLS, COMPLETION = "{bash|zsh|fish}", "nvllm completion --help"


@pytest.mark.parametrize(
    ("argv", "where", "found", "cure"),
    [
        (["bild"], "nvllm", "No such command 'bild'", "nvllm build"),
        (["xyzzy"], "nvllm", "No such command 'xyzzy'", "nvllm --help"),
        (["--xyzzy"], "nvllm", "No such option '--xyzzy'", "nvllm --help"),
        (["completion"], "nvllm completion", f"Missing argument '{SHELLS}'. Choose from: bash, zsh, fish", COMPLETION),
        (["sample"], "nvllm sample", "Missing argument 'HOW'", "nvllm sample --help"),
        (
            ["sample", "done", "--number", "x"],
            "nvllm sample",
            "Invalid value for '--number': 'x' is not a valid integer",
            "nvllm sample --help",
        ),
        (["sample", "a", "b"], "nvllm sample", "Got unexpected extra argument (b)", "nvllm sample --help"),
    ],
)
def test_a_line_that_cannot_be_used(
    argv: list[str], where: str, found: str, cure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"NV108 bad argument\n  where     {where}\n")
    assert f"  found     {found}\n  cure      {cure}\n" in captured.err
    assert main([*argv, "--json"]) == 2
    (refusal,) = document(capsys.readouterr().out)["refusals"]
    assert (refusal["code"], refusal["where"], refusal["found"], refusal["cure"]) == ("NV108", where, found, cure)


@pytest.mark.parametrize(
    ("argv", "cure"),
    [
        (["--jsn", "status"], "nvllm --json status"),
        (["sample", "a b", "--nummer", "3"], "nvllm sample 'a b' --number 3"),
        (["sample", "a b", "--nummer=3"], "nvllm sample 'a b' --number=3"),
        (["sbom", "cpu", "--dry-run"], "nvllm sbom --help"),
    ],
)
def test_a_misspelt_option_is_mended_in_the_line_that_was_typed(
    argv: list[str], cure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert capsys.readouterr().err.endswith(f"  cure      {cure}\n")


def test_what_stands_after_two_dashes_is_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bild", "--", "--json"]) == 2
    assert capsys.readouterr().out == ""


def test_an_argument_that_is_not_text(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([os.fsdecode(b"\xff\xfe")]) == 2
    assert "\\udcff" in capfd.readouterr().err


def test_an_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "interrupt"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_crash_is_a_report_and_one_line(
    world: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret_value")
    assert main(["sample", "crash"]) == 1
    captured = capsys.readouterr()
    (report,) = (world / "home/state/crashes").iterdir()
    assert captured.out == ""
    assert captured.err == f"nvllm crashed (RuntimeError: the sample broke on ***); report: {report}\n"
    text = report.read_text()
    assert "Traceback" in text
    assert "hf_secret_value" not in text


def test_a_crash_as_json(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "crash", "--json"]) == 1
    crash = document(capsys.readouterr().out)["crash"]
    assert Path(crash["report"]).parent == world / "home/state/crashes"


def test_a_crash_whose_report_cannot_be_written(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (world / "home").touch()
    assert main(["sample", "crash", "--json"]) == 1
    captured = capsys.readouterr()
    assert document(captured.out)["crash"]["report"] is None
    assert "the report could not be written" in captured.err
    assert "Traceback" not in captured.err


def start(*line: str, ending: str = "") -> subprocess.Popen[bytes]:
    """Start nvllm with the sample among its commands as a process of its own. It runs ENDING before it exits."""
    text = (
        "import os, signal, sys; from nvllm.cli import main as cli\n"
        "cli.BY_NAME['sample'] = cli.Entry('Housekeeping', 'sample', 'support.frame_sample', 'sample', '')\n"
        f"code = cli.main()\n{ending}\nsys.exit(code)"
    )
    return subprocess.Popen(
        [sys.executable, "-c", text, *line],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**ENVIRONMENT, "NVLLM_HOME": os.environ["NVLLM_HOME"]},
    )


@pytest.mark.parametrize(
    ("number", "code", "ending"),
    [
        (signal.SIGINT, 130, "os.kill(os.getpid(), signal.SIGINT)"),  # a second one does not change how it ends
        (signal.SIGTERM, 143, ""),
        (signal.SIGHUP, 129, ""),
    ],
)
def test_a_signal_cleans_up(number: signal.Signals, code: int, ending: str, world: Path) -> None:
    child = start("sample", "wait", "--path", "state", ending=ending)
    assert child.stderr is not None
    assert child.stderr.readline() == b"waiting\n"
    child.send_signal(number)
    _, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (code, b"interrupted\n")
    assert (world / "state").read_text() == "cleaned up"


def test_a_reader_that_goes_away_is_no_crash(world: Path) -> None:
    child = start("sample", "flood")
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait(timeout=30) == 141
    child.stderr.close()
    assert not (world / "home").exists()


def test_what_is_refused_when_no_reader_is_left_is_still_said() -> None:
    """A detached supervisor speaks JSON to whoever waited for it; what it refuses later belongs into its log."""
    child = start("--json", "build", "no-such-image")
    assert child.stdout is not None
    child.stdout.close()
    assert child.stderr is not None
    said = child.stderr.read().decode()
    assert said.startswith("NV107 ")
    assert child.wait(timeout=30) == 141
    child.stderr.close()


# Completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert f"_NVLLM_COMPLETE={shell}_complete" in capsys.readouterr().out


def completed(line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what bash would be offered for the last word of LINE."""
    monkeypatch.setenv("_NVLLM_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    assert main([]) == 0
    return [item.partition(",")[2] for item in capsys.readouterr().out.split()]


def test_names_are_completed(world: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (world / "images/cpu.yaml").write_text("profiles:\n  tiny-eager: {}\n  tiny-compiled: {}\n")
    (world / "images/other.yaml").write_text("profiles: {big: {}}\n")
    (world / "images/broken.yaml").write_text("[")
    (world / "patches/v1").mkdir()
    (world / "patches/v1/series.yaml").write_text("patches: [{id: drain}, {id: zeroer}, 3]\n")

    def offered(line: str) -> list[str]:
        return completed(line, capsys, monkeypatch)

    assert offered("nvllm bu") == ["build"]
    assert offered("nvllm --of") == ["--offline"]
    assert offered("nvllm lock c") == ["cpu"]
    assert offered("nvllm serve cpu --profile tiny-") == ["tiny-compiled", "tiny-eager"]
    assert offered("nvllm serve --profile b") == ["big"]
    assert offered("nvllm serve broken --profile b") == []
    assert offered("nvllm patch refresh z") == ["zeroer"]


# Whatever is typed


OPTIONS = [
    "--json",
    "--offline",
    "-q",
    "--no-color",
    "--check",
    "--update",
    "--profile",
    "--dry-run",
    "--against",
    "--",
]
WORDS = [entry.name for entry in COMMANDS] + ["list", "check", "cpu", "tiny-eager", "bash", "help", "0", "-1"]


# No system passes an argument with a NUL in it.
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)


@given(st.lists(st.sampled_from(OPTIONS + WORDS) | TEXT, max_size=6))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_line_makes_a_traceback(argv: list[str]) -> None:
    # All lines share one world: it is an empty project and has no engine, so whatever they ask for hurts nothing.
    out, err, nothing = io.StringIO(), io.StringIO(), io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.object(sys, "stdin", nothing):
        code = main(argv)
    said = out.getvalue() + err.getvalue()
    assert code in {0, 2, 3}, said
    assert "Traceback" not in said
    if code in {2, 3} and "--json" in (argv[: argv.index("--")] if "--" in argv else argv):
        document(out.getvalue())


def ended(shell: str, line: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run nvllm with the arguments LINE below the shell's SHELL, in DIRECTORY."""
    command = f"{shell.replace('NVLLM', f'{shlex.quote(sys.executable)} -m nvllm {line}')}"
    home = {**ENVIRONMENT, "NVLLM_HOME": str(directory / "home")}
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, env=home, cwd=directory)


# Each line once, and what one prints as a result and as a refusal in both forms: each is a process of its own.
@pytest.mark.parametrize(
    ("line", "option"),
    samples(
        [("--help", ""), ("completion bash", ""), ("manifest list", "--json"), ("nothing", "--json")],
        [("--version", "--json"), ("manifest --help", ""), ("manifest list", ""), ("nothing", "")],
    ),
)
def test_a_full_disk_behind_stdout_is_a_refusal(tmp_path: Path, line: str, option: str) -> None:
    done = ended("NVLLM > /dev/full", f"{line} {option}", tmp_path)
    assert done.returncode == (2 if line == "nothing" else 1)
    assert done.stderr.startswith("NV108" if done.returncode == 2 else "NV920 file not written\n")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "home").exists()  # no crash report


ALL_CLOSED = ">&- 2>&- <&-"


@pytest.mark.parametrize(
    ("line", "closed"),
    samples(
        [("--help", ALL_CLOSED), ("nothing", ALL_CLOSED), *(("manifest list", one) for one in (">&-", "2>&-", "<&-"))],
        [(line, ALL_CLOSED) for line in ("--version", "completion bash", "manifest list", "manifest --help")],
    ),
)
def test_a_stream_that_the_caller_closed_is_no_crash(tmp_path: Path, line: str, closed: str) -> None:
    done = ended(f"NVLLM {closed}", line, tmp_path)
    assert done.returncode == (2 if line == "nothing" else 0)
    assert "Traceback" not in done.stderr + done.stdout
    assert not (tmp_path / "home").exists()


def test_a_directory_that_was_removed_under_nvllm(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = ended("cd gone; rmdir ../gone; NVLLM", "--json manifest list", tmp_path)
    assert done.returncode == 2
    assert [one["where"] for one in json.loads(done.stdout)["refusals"]] == ["the current directory"]


@pytest.mark.parametrize(
    ("line", "command", "result"),
    [("--version", "", "version"), ("--help", "", "help"), ("lock --help", "lock", "help"),
     ("patch list --help", "patch list", "help"), ("completion bash", "completion", "script")],
)  # fmt: skip
def test_whatever_is_printed_is_one_document(
    capsys: pytest.CaptureFixture[str], line: str, command: str, result: str
) -> None:
    assert main([*line.split(), "--json"]) == 0 if "-" not in line else main(["--json", *line.split()]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    assert (document["command"], document["ok"]) == (command, True)
    assert document["result"][result]


def test_json_is_json_whatever_encoding_the_terminal_has(tmp_path: Path) -> None:
    done = ended("PYTHONIOENCODING=ascii NVLLM", '"$(printf "nothing\\\\351")" --json', tmp_path)
    assert done.returncode == 2
    assert json.loads(done.stdout)["refusals"][0]["found"]
    assert done.stdout.isascii()


@pytest.mark.parametrize("line", [[], ["lock"], ["patch"], ["patch", "new"]])
def test_h_is_help(capsys: pytest.CaptureFixture[str], line: list[str]) -> None:
    assert main([*line, "-h"]) == 0
    short = capsys.readouterr().out
    assert main([*line, "--help"]) == 0
    assert short == capsys.readouterr().out
    assert short.startswith("Usage: nvllm")


def test_a_log_that_is_followed_is_no_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "one", "--follow", "--json"]) == 2
    (refusal,) = document(capsys.readouterr().out)["refusals"]
    assert (refusal["code"], refusal["where"], refusal["found"]) == ("NV108", "--follow", "both")


def test_a_refused_line_is_one_document_that_says_where(
    capsys: pytest.CaptureFixture[str], world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every command, with an empty text for each argument that it must have."""
    monkeypatch.setattr("nvllm.host.thermal_gate.PAUSE", 0.0)
    nowhere = []
    for path in [path for path in PATHS if path[0] not in GROUPS or len(path) == 2]:
        needed = ["" for param in _leaf(path).params if isinstance(param, click.Argument) and param.required]
        for words in ([*path, *needed], [*path, "--no-such-option"]):
            main([*words, "--json", "--project", str(world), "--offline"])
            refusals = document(capsys.readouterr().out).get("refusals", [])
            nowhere += [(words, refusal) for refusal in refusals if not refusal["where"]]
    assert nowhere == []


def _leaf(path: Sequence[str]) -> click.Command:
    found = _command(path[0])
    return GROUPS[path[0]].commands[path[1]] if len(path) == 2 else found
