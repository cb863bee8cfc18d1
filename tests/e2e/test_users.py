"""Users and surroundings that are not those of a developer: the table of docs/users.md, a test for each row.

What runs is nvllm as it is installed, outside of any checkout, in a HOME of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from support.engine_world import NOBODY, ROOT, Done, run

pytestmark = pytest.mark.long

SOCKET = Path("/var/run/docker.sock")
READING = (
    ("--version",),
    ("patch", "list"),
    ("build", "cpu", "--dry-run", "--platform", "linux/amd64"),
    ("manifest", "list"),
    ("explain", "NV907"),
)
"""Commands that need nothing but the project that nvllm came with."""


@dataclass(frozen=True)
class Shell:
    """How nvllm is started: as USER, with GROUPS, in DIRECTORY, with ENV and nothing else."""

    argv: tuple[str, ...]
    home: Path
    directory: Path
    env: Mapping[str, str]
    user: int = field(default_factory=os.geteuid)
    groups: tuple[int, ...] = ()

    def nvllm(self, *args: str, **env: str) -> Done:
        """Run nvllm with ARGS. However it ends, it ends with a status of its own and without a traceback."""
        given = {"HOME": str(self.home), "PATH": os.environ["PATH"], **self.env, **env}
        other = {} if self.user == os.geteuid() else {"user": self.user, "group": self.user}
        groups = {"extra_groups": self.groups} if os.geteuid() == 0 else {}
        done = run([*self.argv, *args], given, cwd=self.directory, **other, **groups)
        assert done.code in {0, 1, 2, 3}, done
        assert "Traceback" not in done.err, done
        assert "crashed" not in done.err, done
        return done

    def reads(self) -> None:
        for args in READING:
            assert self.nvllm(*args).code == 0


@pytest.fixture(scope="module")
def open_place() -> Iterator[Path]:
    """A directory that every user can enter; those of pytest are closed to others."""
    with tempfile.TemporaryDirectory(prefix="nvllm-users-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def installed(open_place: Path) -> Path:
    """The package as a wheel has it, in a directory that every user can read."""
    argv = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*argv, "--target", str(open_place / "lib"), str(ROOT)], check=True)
    return open_place / "lib"


@pytest.fixture
def shell(installed: Path) -> Shell:
    """Any user's shell, away from every checkout."""
    home = Path(tempfile.mkdtemp(prefix="home-", dir=installed.parent))
    packages = f"{installed}:{sysconfig.get_path('purelib')}"
    return Shell((sys.executable, "-m", "nvllm"), home, Path("/"), {"PYTHONPATH": packages})


@pytest.fixture
def nobody(shell: Shell) -> Shell:
    """The shell of a user who is not root, by an interpreter that he can start."""
    if os.geteuid() != 0:
        return shell
    os.chown(shell.home, NOBODY, NOBODY)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/{version}"):
        other = replace(shell, argv=(python, "-m", "nvllm"), user=NOBODY)
        try:
            if other.nvllm("--version").code == 0:
                return other
        except (OSError, AssertionError):
            continue
    pytest.skip("no interpreter here that another user can start")


def private_socket() -> None:
    if not SOCKET.exists() or os.geteuid() != 0 or stat.S_IMODE(SOCKET.stat().st_mode) & 0o006:
        pytest.skip("no socket of an engine that is closed to others")


# Who


def test_a_user_without_access_to_the_engine(nobody: Shell) -> None:
    private_socket()
    nobody.reads()
    done = nobody.nvllm("status", "--json")
    assert (done.code, done.codes) == (3, ["NV510"])
    assert done.refusal["cure"].startswith("run nvllm by sudo")
    assert nobody.nvllm("doctor").code == 3


@pytest.mark.engine
def test_a_user_in_the_group_of_the_engine(nobody: Shell) -> None:
    private_socket()
    member = replace(nobody, groups=(SOCKET.stat().st_gid,))
    assert member.nvllm("status").code == 0
    checks = member.nvllm("doctor", "--json").document["result"]["checks"]
    assert [one["state"] for one in checks if one["code"] == "NV510"] == ["ok"]


@pytest.mark.engine
def test_the_context_in_use_and_docker_host(shell: Shell) -> None:
    """The context leads to the engine, and DOCKER_HOST, which comes first, to none."""
    docker = shutil.which("docker")
    if docker is None:
        pytest.skip("no docker command that makes contexts")
    env = {"HOME": str(shell.home), "PATH": os.environ["PATH"]}
    for args in (
        ["create", "here", "--docker", f"host=unix://{SOCKET}"],
        ["create", "gone", "--docker", "host=ssh://a@b"],
    ):
        assert run([docker, "context", *args], env).code == 0
    for name, code in (("here", 0), ("gone", 3), ("default", 0)):
        assert run([docker, "context", "use", name], env).code == 0
        assert shell.nvllm("status").code == code
    assert shell.nvllm("status", DOCKER_CONTEXT="nowhere").code == 3
    assert shell.nvllm("status", DOCKER_HOST=f"unix://{shell.home}/none").code == 3


# Where


@pytest.mark.parametrize("name", ["a home", "Ünïcode ☃ 家", 'quote\'s "$HOME" `x`'])
def test_a_home_with_a_space_and_letters_beyond_ascii(shell: Shell, name: str) -> None:
    home = shell.home / name
    home.mkdir()
    there = replace(shell, home=home, directory=home)
    there.reads()
    assert there.nvllm("init", "mine", "--vllm", "0.27.0", "--offline").code in {1, 3}
    assert there.nvllm("doctor", LANG="C").code in {0, 3}


def test_a_checkout_that_is_only_read(nobody: Shell, tmp_path: Path) -> None:
    if nobody.user == os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    checkout = nobody.home.parent / "checkout"
    for part in ("images", "patches", "manifests"):
        shutil.copytree(ROOT / part, checkout / part)
    for path in (checkout, *checkout.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    there = replace(nobody, directory=checkout)
    there.reads()
    assert there.nvllm("status", DOCKER_HOST=f"unix://{tmp_path}/none").code == 3
    done = there.nvllm("manifest", "revoke", "0" * 64, "--reason", "a test", "--json")
    assert done.code != 0
    assert not [path for path in checkout.rglob("*") if path.stat().st_uid == NOBODY]


def test_installed_as_a_wheel_and_used_from_any_directory(shell: Shell, installed: Path, tmp_path: Path) -> None:
    """What writes into a project refuses, and names the command that makes one."""
    before = {path: path.stat().st_mtime_ns for path in (installed / "nvllm/project").rglob("*")}
    for directory in (Path("/"), tmp_path, shell.home):
        there = replace(shell, directory=directory)
        there.reads()
        for args in (["lock", "cpu"], ["patch", "refresh", "sentinels", "--series", "v0.32.0"]):
            done = there.nvllm(*args, "--json")
            assert (done.code, done.codes) == (2, ["NV110"]), done
            assert done.refusal["cure"] == "nvllm init mine && cd mine"
    done = shell.nvllm("bless", "cpu", "--profile", "tiny-blessed", "--json", DOCKER_HOST=f"unix://{tmp_path}/none")
    assert "NV110" not in done.codes  # a blessing goes into the state
    assert before == {path: path.stat().st_mtime_ns for path in (installed / "nvllm/project").rglob("*")}


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_installed_by(installer: str, shell: Shell, tmp_path: Path) -> None:
    """Needs an index that has what nvllm depends on."""
    env = {**os.environ, "UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    if installer == "uv":
        done = run(
            [sys.executable, "-m", "uv", "tool", "install", "--quiet", "--python", sys.executable, str(ROOT)], env
        )
        program = tmp_path / "bin/nvllm"
    else:
        assert run([sys.executable, "-m", "venv", str(tmp_path / "venv")], env).code == 0
        done = run([str(tmp_path / "venv/bin/pip"), "install", "-qq", str(ROOT)], env)
        program = tmp_path / "venv/bin/nvllm"
    assert done.code == 0, done
    replace(shell, argv=(str(program),), env={}).reads()


# How


def test_python_without_assertions(shell: Shell) -> None:
    optimized = replace(shell, argv=(sys.executable, "-O", "-m", "nvllm"))
    for args in READING:
        assert optimized.nvllm(*args).out == shell.nvllm(*args).out


@pytest.mark.parametrize("env", [{"COLUMNS": "40"}, {"TERM": "dumb"}, {"LANG": "C"}, {"LC_ALL": "POSIX"}])
def test_terminals_and_locales(shell: Shell, env: dict[str, str]) -> None:
    """Pipes get the same text everywhere; a terminal of 40 columns gets every word, and a dumb one no colour."""
    shell.reads()
    for args in (*READING, ("--help",), ("lock", "--help")):
        done = shell.nvllm(*args, **env)
        assert done.code == 0
        assert "\x1b" not in done.out + done.err
    script = shutil.which("script")
    if script is None:
        pytest.skip("no script(1), which makes a terminal")
    line = " ".join([*shell.argv, "patch", "list"])
    given = {"HOME": str(shell.home), "PATH": os.environ["PATH"], "TERM": "xterm", **shell.env, **env}
    drawn = run([script, "-qec", f"stty cols 40; {line}", "/dev/null"], given, cwd="/")
    assert drawn.code == 0, drawn
    assert ("\x1b[" in drawn.out) == (given["TERM"] != "dumb")
    assert "aot" in drawn.out


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte, which is full."""
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() != 0 or run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], os.environ).code != 0:
        pytest.skip("mounting takes root")
    try:
        with contextlib.suppress(OSError), (place / "filler").open("wb") as stream:
            stream.write(bytes(2 << 20))
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize(
    "args", ["build cpu --layers-only", "fetch cpu", "model make cpu tiny-lfm2", "patch check cpu"]
)
def test_a_full_disk(shell: Shell, small: Path, args: str) -> None:
    done = shell.nvllm(*args.split(), "--json", NVLLM_HOME=str(small))
    assert done.code in {1, 3}, done
    assert {one["code"] for one in done.refusals} <= {"NV506", "NV513", "NV911", "NV920"}, done
    assert [path.name for path in small.iterdir() if path.is_file()] == ["filler"]


@pytest.fixture(scope="module")
def faked(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Debian's library that gives a program another time."""
    place = tmp_path_factory.mktemp("faketime")
    if run(["sh", "-c", "apt-get download libfaketime && dpkg-deb -x libfaketime_*.deb ."], os.environ, cwd=place).code:
        pytest.skip("apt-get cannot download libfaketime")
    (library,) = place.glob("usr/lib/*/faketime/libfaketime.so.1")
    return str(library)


@pytest.mark.parametrize("when", ["1970-01-02 03:04:05", "2038-01-19 03:14:09"])
def test_a_clock_that_is_wrong(shell: Shell, faked: str, when: str) -> None:
    clock = {"LD_PRELOAD": faked, "FAKETIME": when, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    for args in READING:
        assert shell.nvllm(*args, **clock).out == shell.nvllm(*args).out
    for args in (("doctor",), ("status",), ("serve", "cpu", "--profile", "tiny-eager", "--dry-run")):
        done = shell.nvllm(*args, "--json", **clock)
        assert json.loads(done.out)["command"] == args[0]
