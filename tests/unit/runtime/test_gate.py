"""The gate: every finding, all of them at once, and otherwise the command itself.

Outside a container a process has capabilities and its file systems are writable, so a wrapper starts the gate
with files of the test in the place of ``/run/nvllm``, the identity file and ``/proc/self/status``, as a user
that is not root, and with `statvfs` that calls read-only what does not lie below a directory ``writable``. The
end-to-end tests run the gate in a real container.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nvllm.cache.cachetree import LOCKS
from nvllm.runtime import gate
from support import blessings_world
from support.rows import samples

WRAPPER = """
import importlib.util, os, sys, types
run, identity, status, user, script = sys.argv[1:6]
spec = importlib.util.spec_from_file_location("gate", script)
gate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gate)
gate.RUN, gate.IDENTITY, gate.STATUS = run, identity, status
os.getuid = lambda: int(user.split(":")[0])
os.getgid = lambda: int(user.split(":")[1])
def flags(place):
    path = os.readlink(f"/proc/self/fd/{place}") if isinstance(place, int) else place
    writable = "/writable" in path or path == os.environ.get("HOSTNAME")
    return types.SimpleNamespace(f_flag=0 if writable else os.ST_RDONLY)
os.statvfs = os.fstatvfs = flags
gate.main(sys.argv[6:])
"""
STATUS = {
    "Name": "python3",
    **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), 16 * "0"),
    "NoNewPrivs": "1",
    "Seccomp": "2",
}
BUILD_HASH = 64 * "b"
FILES = {"config.json": b"{}", "weights/part-1": b"weights" * 100}
SAYING = "import os; print('engine', sorted(os.environ))"


@dataclass
class Container:
    """A container that is as planned, until a test changes something."""

    root: Path
    expected: dict[str, Any] = field(default_factory=dict)
    status: dict[str, str] = field(default_factory=lambda: dict(STATUS))
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/bin:/bin", "LC_CTYPE": "C.UTF-8"})
    command: list[str] = field(default_factory=lambda: [sys.executable, "-c", SAYING])
    user: str = "1000:1000"

    def __post_init__(self) -> None:
        for directory in ("run", "model/weights"):
            (self.root / directory).mkdir(parents=True)
        (self.root / "identity.json").write_text(json.dumps({"build_hash": BUILD_HASH}))
        for path, data in FILES.items():
            (self.model / path).write_bytes(data)
        (self.run / "drain").touch()
        self.expected = {
            "build_hash": BUILD_HASH,
            "user": self.user,
            "waivers": [],
            "sentinels": ["drain"],
            "environment": ["PATH"],
            "command": list(self.command),
            "models": [
                {
                    "path": str(self.model),
                    "files": [
                        {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                        for path, data in FILES.items()
                    ],
                }
            ],
            "cache": None,
        }

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def model(self) -> Path:
        return self.root / "model"

    def start(self) -> subprocess.CompletedProcess[str]:
        expectations = self.run / gate.EXPECTATIONS
        if not expectations.exists():
            expectations.write_text(json.dumps(self.expected))
        status = self.root / "status"
        status.write_text("".join(f"{name}:\t{value}\n" for name, value in self.status.items()))
        places = [str(place) for place in (self.run, self.root / "identity.json", status)]
        return subprocess.run(
            [sys.executable, "-c", WRAPPER, *places, self.user, gate.__file__, *self.command],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    def findings(self) -> list[dict[str, str]]:
        """Start the gate, which must refuse, and return what it found, with the test's directory left out."""
        done = self.start()
        assert (done.returncode, done.stderr) == (gate.REFUSED, ""), done
        (line,) = done.stdout.splitlines()
        marker, _, text = line.partition(" ")
        said = json.loads(text.replace(f"{self.root}/", ""))
        assert (marker, said["event"]) == ("nvllm.gate", "refused")
        findings: list[dict[str, str]] = said["findings"]
        return findings

    def finding(self) -> tuple[str, str, str]:
        (found,) = self.findings()
        return found["where"], found["expected"], found["found"]


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def test_when_all_is_as_planned_the_gate_becomes_the_command(container: Container) -> None:
    done = container.start()
    assert (done.returncode, done.stderr) == (0, "")
    passed, engine = done.stdout.splitlines()
    said = json.loads(passed.removeprefix("nvllm.gate "))
    assert said["event"] == "passed"
    assert said["seconds"] < 10
    assert engine == "engine ['LC_CTYPE', 'PATH']"


def test_the_commands_own_status_is_the_containers(container: Container) -> None:
    container.command = container.expected["command"] = ["sh", "-c", "exit 7"]
    assert container.start().returncode == 7


IDENTITIES = {
    "of another build": ('{"build_hash": "aaaa"}', "aaaa"),
    "torn": ('{"build_hash"', "JSONDecodeError"),
    "without a hash": ("{}", "KeyError"),
    "no object": ("[]", "TypeError"),
}


@pytest.mark.parametrize("kind", IDENTITIES)
def test_another_identity(container: Container, kind: str) -> None:
    text, shown = IDENTITIES[kind]
    (container.root / "identity.json").write_text(text)
    where, expected, found = container.finding()
    assert (where, expected) == ("identity.json", f"build hash {BUILD_HASH}")
    assert shown in found


def test_no_identity(container: Container) -> None:
    (container.root / "identity.json").unlink()
    assert "FileNotFoundError" in container.finding()[2]


def test_another_user(container: Container) -> None:
    container.user = "1000:0"
    assert container.finding() == ("user", "1000:1000", "1000:0")


def test_root_is_refused_even_where_it_is_planned(container: Container) -> None:
    container.user = container.expected["user"] = "0:0"
    assert container.finding() == ("user", "0:0", "0:0")


@pytest.mark.parametrize("name", ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"])
def test_any_capability(container: Container, name: str) -> None:
    container.status[name] = "00000000a80425fb"
    assert container.finding() == (f"status {name}", "no capability", "00000000a80425fb")


def test_new_privileges(container: Container) -> None:
    container.status["NoNewPrivs"] = "0"
    assert container.finding() == ("status NoNewPrivs", "1", "0")


@pytest.mark.parametrize("mode", ["0", "1", None])
def test_a_container_without_a_filter_of_system_calls_needs_its_waiver(container: Container, mode: str | None) -> None:
    del container.status["Seccomp"]
    if mode is not None:
        container.status["Seccomp"] = mode
    assert container.finding() == ("status Seccomp", "2, a filter of system calls", str(mode))
    (container.run / gate.EXPECTATIONS).unlink()
    container.expected["waivers"] = ["no-seccomp"]
    assert container.start().returncode == 0


def test_a_writable_root_needs_its_waiver(container: Container) -> None:
    container.environment["HOSTNAME"] = "/"  # see the wrapper: this is how it is told what is writable
    assert container.finding() == ("/", "a read-only root", "a writable one")
    (container.run / gate.EXPECTATIONS).unlink()
    container.expected["waivers"] = ["writable-root"]
    assert container.start().returncode == 0


RUNS: dict[str, tuple[Callable[[Path], object], str]] = {
    "extra": (lambda run: (run / "other").touch(), "drain launch.json other"),
    "missing": (lambda run: (run / "drain").unlink(), "launch.json"),
    "hidden": (lambda run: (run / ".hidden").touch(), ".hidden drain launch.json"),
}


@pytest.mark.parametrize("kind", RUNS)
def test_other_sentinels(container: Container, kind: str) -> None:
    change, found = RUNS[kind]
    change(container.run)
    assert container.finding()[1:] == ("drain launch.json", found)


def test_a_writable_run_directory(tmp_path: Path) -> None:
    found = Container(tmp_path / "writable").findings()
    assert [one["where"] for one in found] == ["run", "model/config.json", "model/weights/part-1"]
    assert {(one["expected"], one["found"]) for one in found} == {("a read-only mount", "a writable one")}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"VLLM_NEW_SWITCH": "1"}, "missing [], extra ['VLLM_NEW_SWITCH']"),
        ({"PATH": None}, "missing ['PATH'], extra []"),
        ({"PATH": None, "LD_PRELOAD": "", "A": "1"}, "missing ['PATH'], extra ['A', 'LD_PRELOAD']"),
    ],
)
def test_another_environment(container: Container, change: Mapping[str, str | None], found: str) -> None:
    changed = {**container.environment, **change}
    container.environment = {name: value for name, value in changed.items() if value is not None}
    assert container.finding() == ("environment", "the variables of the plan", found)


def _fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _link(path: Path, target: str) -> None:
    if path.is_dir():
        path.rename(path.with_name(f"{path.name}.moved").parent.parent / "elsewhere")
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


MODELS: dict[str, tuple[Callable[[Path], object], list[tuple[str, str, str]]]] = {
    "extra": (lambda m: (m / "pickle.bin").touch(), [("model/pickle.bin", "no such file", "a file")]),
    "extra below": (lambda m: (m / "weights/x").touch(), [("model/weights/x", "no such file", "a file")]),
    "missing": (
        lambda m: (m / "config.json").unlink(),
        [("model/config.json", "2 bytes", "No such file or directory")],
    ),
    "changed": (
        lambda m: (m / "config.json").write_bytes(b"[]"),
        [
            (
                "model/config.json",
                f"sha256 {hashlib.sha256(b'{}').hexdigest()}",
                hashlib.sha256(b"[]").hexdigest(),
            )
        ],
    ),
    "longer": (
        lambda m: (m / "config.json").write_bytes(b"{} "),
        [("model/config.json", "a file of 2 bytes", "3 bytes")],
    ),
    "a link": (
        lambda m: _link(m / "config.json", "weights/part-1"),
        [("model/config.json", "2 bytes", "Too many levels of symbolic links")],
    ),
    "an extra link to a directory": (
        lambda m: (m / "more").symlink_to("weights"),
        [("model/more", "no such file", "a file")],
    ),
    "a directory that is a link": (
        lambda m: _link(m / "weights", "../elsewhere"),
        [("model/weights", "no such file", "a file")],
    ),
    "a pipe": (lambda m: _fifo(m / "config.json"), [("model/config.json", "a file of 2 bytes", "no regular file")]),
    "a directory": (
        lambda m: _directory(m / "config.json"),
        [("model/config.json", "a file of 2 bytes", "no regular file")],
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_another_model(container: Container, kind: str) -> None:
    change, expected = MODELS[kind]
    change(container.model)
    assert [tuple(found[key] for key in ("where", "expected", "found")) for found in container.findings()] == expected


def test_a_model_that_is_not_there(container: Container) -> None:
    container.expected["models"][0]["path"] = str(container.root / "none")
    assert [found["where"] for found in container.findings()] == ["none/config.json", "none/weights/part-1"]


@pytest.mark.parametrize("kind", samples([*MODELS][:2], [*MODELS][2:]))
def test_another_draft_model(container: Container, kind: str) -> None:
    """It is compared as the served one is, and that is as it was."""
    place = container.root / "draft"
    shutil.copytree(container.model, place)
    container.expected["models"].append({**container.expected["models"][0], "path": str(place)})
    assert container.start().returncode == 0
    change, expected = MODELS[kind]
    change(place)
    found = [tuple(one[key] for key in ("where", "expected", "found")) for one in container.findings()]
    assert found == [(where.replace("model/", "draft/", 1), *said) for where, *said in expected]


def test_a_large_file_is_compared_by_its_size_alone(container: Container) -> None:
    """The launcher hashed it before the start; a second read of 30 GB would cost minutes."""
    size = inspect.signature(gate.model_file).parameters["hashed_up_to"].default + 1
    os.truncate(container.model / "config.json", size)
    container.expected["models"][0]["files"][0]["size"] = size
    assert container.start().returncode == 0
    os.truncate(container.model / "config.json", size + 1)
    assert container.finding()[1:] == (f"a file of {size} bytes", f"{size + 1} bytes")


# The blessed cache


def blessed(container: Container) -> Path:
    """Give CONTAINER the sample cache, as it is stored, and return where it lies.

    The engine writes only lock files into it, because nothing is mounted on a directory that it would fill.
    """
    store, tree = blessings_world.stored(container.root, {LOCKS})
    place = store.path(tree.hash)
    container.expected["cache"] = {
        "path": str(place),
        "files": [{"path": one.path, "size": one.size, "mode": one.mode, "sha256": one.sha256} for one in tree.files],
        "directories": [{"path": one.path, "mode": one.mode} for one in tree.directories],
        "locks": list(tree.lock_directories),
    }
    return place


def _flip(path: Path) -> None:
    data = bytearray(blessings_world.writable(path).read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    path.chmod(0o444)


def _extra(path: Path) -> None:
    (blessings_world.writable(path).parent / "extra.so").write_bytes(b"")


def _replaced(path: Path) -> None:
    blessings_world.writable(path).rename(path.with_name("moved"))
    path.symlink_to("moved")


def test_a_cache_that_is_the_blessed_one(container: Container) -> None:
    blessed(container)
    assert container.start().returncode == 0


CACHES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a byte": (_flip, "sha256 "),
    "an extra file": (_extra, "nothing"),
    "a missing file": (lambda path: blessings_world.writable(path).unlink(), "something"),
    "a link": (_replaced, "mode 0444"),
    "another mode": (lambda path: path.chmod(0o644), "mode 0444"),
    "a longer file": (lambda path: blessings_world.writable(path).write_bytes(b"x"), "a file of "),
}


@pytest.mark.parametrize("kind", CACHES)
def test_another_cache(container: Container, kind: str) -> None:
    place = blessed(container)
    change, expected = CACHES[kind]
    change(place / blessings_world.AOT / "rank_0_0/model")
    assert any(one["expected"].startswith(expected) for one in container.findings())


def test_lock_files_that_are_there_before_the_engine(container: Container) -> None:
    place = blessed(container)
    (place / blessings_world.LOCKS / "c45.lock").touch()
    assert any(one["expected"] == "an empty directory" for one in container.findings())


def test_a_cache_that_is_not_mounted_at_all(container: Container) -> None:
    blessed(container)
    container.expected["cache"]["path"] = str(container.root / "nowhere")
    assert {one["expected"] for one in container.findings()} == {"something"}


def test_another_command(container: Container) -> None:
    container.expected["command"] = ["vllm", "serve", "model"]
    where, expected, found = container.finding()
    assert (where, expected) == ("command", "vllm serve model")
    assert found.startswith(sys.executable)


def test_a_command_that_cannot_start(container: Container) -> None:
    container.command = container.expected["command"] = ["no-such-program", "serve"]
    done = container.start()
    assert (done.returncode, done.stderr) == (gate.REFUSED, "")
    last = json.loads(done.stdout.splitlines()[-1].removeprefix("nvllm.gate "))
    assert last["event"] == "refused"
    assert last["findings"][0]["found"] == "no-such-program: No such file or directory"


@pytest.mark.parametrize("text", [None, "", "{", "null", "[]", "{}", '{"build_hash": "x", "user": 5}'])
def test_expectations_that_are_none(container: Container, text: str | None) -> None:
    place = container.run / gate.EXPECTATIONS
    if text is None:
        place.mkdir()
    else:
        place.write_text(text)
    (found,) = container.findings()
    assert found["where"] in {"run/launch.json", "gate"}


def test_everything_is_said_at_once(container: Container) -> None:
    (container.root / "identity.json").write_text('{"build_hash": "aaaa"}')
    (container.run / "other").touch()
    (container.model / "extra").touch()
    (container.model / "config.json").unlink()
    container.status["NoNewPrivs"] = "0"
    container.user = "7:7"
    container.environment["EXTRA"] = "1"
    container.expected["command"] = ["vllm"]
    assert [found["where"] for found in container.findings()] == [
        "identity.json",
        "user",
        "status NoNewPrivs",
        "run",
        "environment",
        "model/extra",
        "model/config.json",
        "command",
    ]


# Without a process


def test_the_names_of_the_environment_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"A": "1", "HOSTNAME": "x", "LC_CTYPE": "C.UTF-8"})
    assert gate.environment(["A"]) == []
    assert gate.environment(["B"])[0]["found"] == "missing ['B'], extra ['A']"
    # A plan may set what an engine or its GPU hook would set as well.
    assert gate.environment(["A", "HOSTNAME"]) == []


def test_what_nvidias_toolkit_adds_for_a_cdi_device_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """As toolkit 1.19.1 writes its device file; another variable of that name is one."""
    added = {"NVIDIA_VISIBLE_DEVICES": "void", "NVIDIA_CTK_LIBCUDA_DIR": "/usr/lib/x86_64-linux-gnu"}
    monkeypatch.setattr(os, "environ", {"A": "1", **added})
    assert gate.environment(["A"]) == []
    monkeypatch.setattr(os, "environ", {"A": "1", **added, "NVIDIA_DISABLE_REQUIRE": "1"})
    assert gate.environment(["A"])[0]["found"] == "missing [], extra ['NVIDIA_DISABLE_REQUIRE']"


def test_a_writable_model_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    wanted = {"size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
    assert gate.model_file(str(tmp_path / "f"), wanted) == [
        {"where": str(tmp_path / "f"), "expected": "a read-only mount", "found": "a writable one"}
    ]


def test_this_process_is_not_hardened() -> None:
    """With the real ``/proc/self/status``; which findings there are depends on the host, but for the user."""
    assert "user" in {found["where"] for found in gate.process(f"{os.getuid() + 1}:{os.getgid()}", set())}


def test_read_only(tmp_path: Path) -> None:
    assert not gate.read_only(str(tmp_path))


def test_the_gate_needs_the_standard_library_only() -> None:
    done = subprocess.run([sys.executable, "-I", "-S", gate.__file__], capture_output=True, text=True, check=False)
    assert done.returncode == gate.REFUSED
    assert "the launcher's expectations" in done.stdout


def test_the_gate_can_be_read_in_one_sitting() -> None:
    """SECURITY.md says so: few lines, and nothing but the standard library behind them."""
    text = Path(gate.__file__).read_text(encoding="utf-8")
    imported = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {one.module if isinstance(one, ast.ImportFrom) else one.names[0].name for one in imported}
    assert names <= sys.stdlib_module_names
    assert len(text.splitlines()) <= 240
