"""Command lines, environments and files in a small world, and what must hold however they are put together.

The world is a project, a home and some files of every kind. Programs answer what the case says, nothing listens on the
network, and there is no engine.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from unittest import mock

import click
import jsonschema

from nvllm.cli.main import COMMANDS, main, program
from nvllm.core import proc
from nvllm.host import disk_gate, thermal_gate
from nvllm.sources import fetch
from support import fuzzing, plansamples

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schemas/output.schema.json").read_text())

STATUSES = frozenset({0, 1, 2, 3, 130})

NOWHERE = "http://127.0.0.1:9"
"""Where nothing listens."""

FILES = ("fifo", "directory", "endless", "sparse", "missing", "closed", "loop", "binary", "text", "link", "long", "nul")
"""What an argument that is a path may name."""

NAMES = [
    "demo", "eager", "v1", "first", "second", "tiny", "torch", "sm_120a", "demo/eager", "NV101", "nvllm:demo",
    "", ".", "..", "../x", "../../x", "/x", "a/b", "x" * 300, "-", "--", "é", "\udcff", "a\nb", "*", "0", "-1", "1e999",
    "nan", "inf", "9" * 5000, "99999999999999999999", "0x10", "1:1", "~", "$(x)", "{}", "[", "\u202e", "@", "=", "a=b",
    "0" * 64, "0" * 40, "sha256:" + "0" * 64, "2026-01-01", "30d", "all", "debs", "linux/arm64", "bash", "first,second",
]  # fmt: skip

VARIABLES: Mapping[str, Sequence[str]] = {
    "NVLLM_HOME": ["FILES/text", "FILES/fifo", "FILES/closed/x", "FILES/new", "/proc/self/x", "/dev/null/x", ""],
    "HOME": ["", "relative", "FILES/text", "/nonexistent"],
    "XDG_CACHE_HOME": ["relative", ""],
    "NVLLM_MODELS": ["", "FILES/fifo", "x" * 300],
    "NVLLM_PATCHES": ["first", "first,second", ",", "é"],
    "NVLLM_DEBIAN_MIRROR": ["http://[", "x", "http://127.0.0.1:99999/", "\x7f"],
    "NVLLM_GITHUB_MIRROR": ["http://[", "file:///etc", "http://127.0.0.1:x/"],
    "DOCKER_HOST": ["tcp://[", "tcp://127.0.0.1:1", "unix://", "fd://", "http://127.0.0.1:x", "npipe://x", "tcp://:"],
    "DOCKER_CONFIG": ["FILES/fifo", "FILES/text", "FILES/missing", "x" * 300],
    "DOCKER_TLS_VERIFY": ["1"],
    "DOCKER_CERT_PATH": ["FILES/missing"],
    "COLUMNS": ["0", "-1", "x", "9" * 30, "1"],
    "LINES": ["x"],
    "TERM": ["dumb", "", "x"],
    "LANG": ["C", "xx_XX.UTF-8"],
    "NO_COLOR": ["1", ""],
    "FORCE_COLOR": ["1", "x"],
    "TZ": ["UTC", "x/y", ":/etc/passwd"],
    "PATH": ["", "FILES/directory"],
    "PIP_INDEX_URL": ["http://[", "x"],
    "HF_ENDPOINT": ["http://["],
    "HF_HUB_CACHE": ["FILES/text"],
    "_NVLLM_COMPLETE": ["bash_complete", "bash_source", "x", "zsh_complete"],
    "COMP_WORDS": ["nvllm build ", "nvllm serve demo --profile ", "nvllm '", "x"],
    "COMP_CWORD": ["2", "x", "-1", "9" * 30],
}


@dataclass(frozen=True, slots=True)
class Case:
    """A command line ARGV in an ENVIRONMENT, where every program ends with STATUS after the output SAID."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    status: int
    said: bytes

    @classmethod
    def load(cls, path: Path) -> Case:
        """Return the case in the JSON document PATH."""
        found = json.loads(path.read_bytes())
        return cls(tuple(found["argv"]), found["environment"], found["status"], found["said"].encode("latin-1"))


@functools.cache
def commands() -> tuple[tuple[tuple[str, ...], click.Command], ...]:
    """Return the words of each command, with the command."""
    found: list[tuple[tuple[str, ...], click.Command]] = []
    context = click.Context(program)
    for entry in COMMANDS:
        command = program.get_command(context, entry.name)
        assert command is not None
        if isinstance(command, click.Group):
            found += [((entry.name, name), one) for name, one in command.commands.items()]
        else:
            found.append(((entry.name,), command))
    return tuple(found)


def drawn(source: random.Random) -> Case:
    """Return a case that SOURCE draws: mostly a line that a command could take, with strange values."""
    words, command = source.choice(commands())
    argv = [*words]
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            if source.random() < 0.25 and parameter.name not in {"help", "follow", "detach"}:
                argv.append(source.choice([*parameter.opts, *parameter.secondary_opts]))
                argv += [] if parameter.is_flag or parameter.count else [_value(source, parameter)]
        elif source.random() < 0.9:
            argv += [_value(source, parameter) for _ in range(1 if parameter.nargs == 1 else source.randint(0, 3))]
    if source.random() < 0.1:
        argv.insert(source.randint(0, len(argv)), source.choice(NAMES))
    if source.random() < 0.6:
        argv.insert(source.choice([0, len(argv)]), "--json")
    environment = {
        name: source.choice(VARIABLES[name])
        for name in source.sample(list(VARIABLES), source.choice([0, 0, 0, 1, 1, 2, 3]))
    }
    if "COMP_WORDS" in environment:
        environment.setdefault("COMP_CWORD", "2")
    said = source.choice(
        [b"", b"\n", b"{}\n", b"[]", b"\xff" * 20, b"x=y\n", b"global.index-url='http://['\n", b"[" * 9]
    )
    return Case(tuple(argv), environment, source.choice([0, 0, 1, 2, 127]), said)


def _value(source: random.Random, parameter: click.Parameter) -> str:
    if isinstance(parameter.type, click.Choice) and source.random() < 0.7:
        return str(source.choice(list(parameter.type.choices)))
    if isinstance(parameter.type, click.Path) and source.random() < 0.8:
        return f"FILES/{source.choice(FILES)}"
    if source.random() < 0.35 and parameter.name in {"image", "profile"}:
        return {"image": "demo", "profile": "eager"}[str(parameter.name)]
    return source.choice(NAMES) if source.random() < 0.9 else f"FILES/{source.choice(FILES)}"


class World:
    """A project, a home and files, below ROOT."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = root / "files"
        self.clean()

    def clean(self) -> None:
        """Make everything anew."""
        if self.files.exists():
            (self.files / "closed").chmod(0o700)
        for one in self.root.iterdir():
            shutil.rmtree(one)
        plansamples.project(self.root)
        (self.root / "home").mkdir()
        self.files.mkdir()
        os.mkfifo(self.files / "fifo")
        (self.files / "directory").mkdir()
        (self.files / "endless").symlink_to("/dev/zero")
        with (self.files / "sparse").open("wb") as stream:
            stream.truncate(5 << 30)
        (self.files / "closed").mkdir(0o000)
        (self.files / "loop").symlink_to("loop")
        (self.files / "binary").write_bytes(bytes(range(256)) * 40)
        (self.files / "text").write_text("a text\n")
        (self.files / "link").symlink_to("text")

    def named(self, text: str) -> str:
        """Return TEXT with the paths of this world."""
        return (
            text.replace("FILES/long", "y" * 300).replace("FILES/nul", "FILES/text/x").replace("FILES", str(self.files))
        )

    def run(self, case: Case) -> None:
        """Run CASE, and check what must hold."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root / "home"),
            "NVLLM_HOME": str(self.root / "home/nvllm"),
            "DOCKER_HOST": f"unix://{self.root}/no-engine",
            **dict.fromkeys(["NVLLM_GITHUB_MIRROR", "NVLLM_DEBIAN_MIRROR", "HF_ENDPOINT", "PIP_INDEX_URL"], NOWHERE),
            **{name: self.named(value) for name, value in case.environment.items()},
        }
        before, started, peak = self._outside(), time.process_time(), fuzzing.peak()
        argv = [self.named(one) for one in case.argv]
        with mock.patch.dict(os.environ, environment, clear=True), self._inside(case):
            status, out, err = self._main(argv)
        said = f"nvllm {argv} {environment}: {status}\n{out[-2000:]}\n{err[-2000:]}"
        assert status in STATUSES, said
        assert "Traceback" not in out + err, said
        assert "nvllm crashed" not in err, said
        asked = "--json" in (argv[: argv.index("--")] if "--" in argv else argv)
        # What a worker prints are the answers to its tasks, of which it got none, and a hello before them.
        silent = "worker" in argv and (not out or json.loads(out).get("answer") == "hello")
        if asked and not silent and "_NVLLM_COMPLETE" not in environment:
            document = json.loads(out)
            jsonschema.Draft202012Validator(SCHEMA).validate(document)
            for one in document.get("refusals") or ():
                assert all(one[key] for key in ("code", "where", "expected", "found", "cure")), said
        assert "init" in argv or self._outside() == before, said  # its argument is where the project is to be
        assert time.process_time() - started < fuzzing.SECONDS, said
        assert fuzzing.peak() - peak < fuzzing.MEMORY, said

    def _outside(self) -> list[str]:
        """Return the names beside the project, the home and the files: nothing may come there."""
        return sorted(os.listdir(self.root))

    @contextlib.contextmanager
    def _inside(self, case: Case) -> Iterator[None]:
        """Stand in the project, where programs answer as CASE says and nothing waits."""

        def answered(argv: Sequence[str], **_: object) -> subprocess.CompletedProcess[bytes]:
            return subprocess.CompletedProcess(list(argv), case.status, case.said, case.said)

        here = Path.cwd()
        os.chdir(self.root / "project")
        previous = signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(60)  # for what waits and takes no processor time
        try:
            with (
                mock.patch.object(proc, "run", answered),
                mock.patch.object(fetch, "BACKOFF", 0.0),
                mock.patch.object(thermal_gate, "PAUSE", 0.0),
                mock.patch.object(disk_gate, "latencies", return_value=[1.0]),
            ):
                yield
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, previous)
            os.chdir(here)

    def _main(self, argv: Sequence[str]) -> tuple[int, str, str]:
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
        with (
            Path(os.devnull).open() as nothing,  # `nvllm worker` reads its stdin to the end
            mock.patch.object(sys, "stdin", nothing),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            status = main(list(argv))
        texts = []
        for stream in (out, err):
            stream.flush()
            raw = stream.buffer
            assert isinstance(raw, io.BytesIO)
            texts.append(raw.getvalue().decode())
        return status, texts[0], texts[1]


def _too_long(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError("a command line that does not end")
