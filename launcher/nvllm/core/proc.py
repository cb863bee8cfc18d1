"""The one way to run another program: an argument list, a constructed environment, a time limit."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from nvllm.core import reading
from nvllm.core.refusal import refuse

_log = logging.getLogger(__name__)

# The variables that are passed to programs: PATH, proxies, certificates and the like. No locale and no PYTHON*: a
# result must not depend on them.
_PASSED = (
    "PATH",
    "HOME",
    "TMPDIR",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "XDG_CONFIG_HOME",
    "XDG_CACHE_HOME",
    "XDG_RUNTIME_DIR",
)


Completed: TypeAlias = "subprocess.CompletedProcess[bytes]"
"""A program that has ended: its arguments, exit status and output."""


def environment(extra: Mapping[str, str], passed: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment for a child: a short allow-list, a fixed locale, and EXTRA."""
    kept = {name: os.environ[name] for name in (*_PASSED, *passed) if name in os.environ}
    return {**kept, "LC_ALL": "C.UTF-8", "TZ": "UTC", **extra}


def require(program: str, package: str) -> str:
    """Return the path of PROGRAM. Raises Refused NV512, naming the Debian PACKAGE that has it."""
    path = shutil.which(program)
    if path is None:
        raise refuse("NV512", "PATH", f"the program {program}", "nothing of that name", f"apt-get install {package}")
    return path


def run(
    argv: Sequence[str], *, env: Mapping[str, str], timeout: float, cwd: Path | None = None, stdin: bytes = b""
) -> Completed:
    """Run ARGV in CWD with the variables ENV and the input STDIN, for at most TIMEOUT seconds; return its result.

    The caller checks the exit status.

    Raises subprocess.TimeoutExpired, after the child was killed, and OSError if it cannot be started.
    """
    _log.debug("+ %s", shlex.join(argv))
    return subprocess.run(
        list(argv), env=dict(env), cwd=cwd, input=stdin, capture_output=True, timeout=timeout, check=False
    )


_LAST_WORDS = 2.0
"""Seconds between SIGTERM and SIGKILL."""


_NOTE, _ENVIRONMENT = 65536, 16 * reading.MB
"""The most bytes of a note or of a file of /proc about a process, and of a process's environment."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")

MARK = "NVLLM_TRIAL"
"""The variable by which all processes of one program are recognised, whatever session they are in."""


@dataclass
class _Running:
    process: subprocess.Popen[bytes]
    next_signal: signal.Signals = signal.SIGTERM


class Programs:
    """Long-running programs, each in its own process group, so that any thread can end them and their children.

    Signals of the terminal do not reach them; the caller has to end them. LEDGER is a directory that has a file for
    each program while it runs, from before its start: `end_left` ends those that a killed process has left there.
    """

    def __init__(self, ledger: Path | None = None) -> None:
        self._running: dict[str, _Running] = {}
        self._guard = threading.Lock()
        self._ledger = ledger

    def run(self, argv: Sequence[str], *, env: Mapping[str, str], timeout: float, cwd: Path | None = None) -> Completed:
        """Run ARGV as `run` does, without input. After an exception no process of its group is left running."""
        _log.debug("+ %s", shlex.join(argv))
        with self._process(argv, env, subprocess.PIPE, cwd) as process:
            stdout, stderr = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(list(argv), process.returncode, stdout, stderr)

    def follow(self, argv: Sequence[str], *, env: Mapping[str, str], heard: Callable[[bytes], None]) -> int:
        """Run ARGV, call HEARD with each piece of its output as it comes, both streams in one; return its exit status.

        There is no time limit. After an exception no process of its group is left running.
        """
        _log.debug("+ %s", shlex.join(argv))
        with self._process(argv, env, subprocess.STDOUT) as process:
            assert process.stdout is not None
            # Not `stdout.read`, which waits until it has as many bytes, or the end. A pipe holds 64 KiB: pipe(7).
            while chunk := os.read(process.stdout.fileno(), 65536):
                heard(chunk)
            return process.wait()

    @contextlib.contextmanager
    def _process(
        self, argv: Sequence[str], env: Mapping[str, str], stderr: int, cwd: Path | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run ARGV for the context. After an exception no process of its group is left running."""
        token = secrets.token_hex(16)
        with self._noted(token):
            try:
                with self._started(argv, env, token, stderr, cwd) as process, _ending_its_group(process):
                    yield process
            except BaseException:
                _kill_marked(token)  # an interrupt may come before the start of a program returns it
                raise
            finally:
                with self._guard:
                    self._running.pop(token, None)

    @contextlib.contextmanager
    def _noted(self, token: str) -> Iterator[None]:
        """Note TOKEN in the ledger while its program runs."""
        if self._ledger is None:
            yield
            return
        self._ledger.mkdir(parents=True, exist_ok=True, mode=0o700)
        note = self._ledger / token
        note.touch(0o600)
        try:
            yield
        finally:
            note.unlink(missing_ok=True)

    def _started(
        self, argv: Sequence[str], env: Mapping[str, str], token: str, stderr: int, cwd: Path | None
    ) -> subprocess.Popen[bytes]:
        with self._guard:  # `end` in another thread sees it from its first moment on
            process = subprocess.Popen(
                list(argv),
                env={**env, MARK: token},
                cwd=cwd,
                stdin=subprocess.DEVNULL,  # no program waits for an answer that nobody will give
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C reaches nvllm alone, which ends them in order
            )
            self._running[token] = _Running(process)
            if self._ledger is not None:
                (self._ledger / token).write_text(f"{process.pid} {_started_at(process.pid)}\n", encoding="ascii")
        return process

    def end(self) -> None:
        """Send SIGTERM to all running programs; at the second call, SIGKILL, also to what left their groups."""
        with self._guard:
            for token, running in self._running.items():
                _signal_group(running.process.pid, running.next_signal)
                if running.next_signal == signal.SIGKILL:
                    _kill_marked(token)
                running.next_signal = signal.SIGKILL

    def end_left(self) -> int:
        """Kill the programs in the ledger that this object did not start, and return how many there were.

        The process that started them was killed. A process is one of theirs if it has their token in its environment,
        or is in the group of the process that was noted, which started at the time that was noted.
        """
        if self._ledger is None or not self._ledger.is_dir():
            return 0
        with self._guard:
            own = set(self._running)
        left = 0
        for note in sorted(self._ledger.iterdir()):
            if note.name in own:
                continue
            with contextlib.suppress(OSError, ValueError):  # no line yet: killed before its program started
                number, started = reading.text(note, _NOTE).split(maxsplit=1)
                if _started_at(int(number)) == started.strip():
                    _signal_group(int(number), signal.SIGKILL)
                    left += 1
            left += _kill_marked(note.name)
            note.unlink(missing_ok=True)
        return left


def boot_id() -> str:
    """Return the kernel's id of this boot; empty if it does not say it."""
    try:
        return reading.text(_BOOT, _NOTE).strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _started_at(process: int) -> str:
    """Return when PROCESS started, in clock ticks, and the boot that they are counted from; empty if it is gone."""
    try:
        fields = reading.text(Path(f"/proc/{process}/stat"), _NOTE).rpartition(")")[2].split()
        # starttime, field 22 of proc_pid_stat(5), counted from behind the name, which may hold blanks and brackets.
        return f"{fields[19]} {boot_id()}"
    except (OSError, UnicodeDecodeError, IndexError):
        return ""


def _kill_marked(token: str) -> int:
    """Kill every process of this user that has TOKEN as its mark, and return how many there were."""
    mark, killed = f"{MARK}={token}".encode(), 0
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # another user's process, or one that has ended
            if mark in reading.content(path, _ENVIRONMENT).split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)
                killed += 1
    return killed


@contextlib.contextmanager
def _ending_its_group(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """After an exception in the context, no process of the group of PROCESS is left running."""
    try:
        yield
    except BaseException:
        try:
            _signal_group(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LAST_WORDS)
        finally:  # its children may ignore SIGTERM, or outlive it
            _signal_group(process.pid, signal.SIGKILL)
        raise


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it is gone, or another user's
        os.killpg(group, number)
