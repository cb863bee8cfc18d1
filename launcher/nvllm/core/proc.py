"""The one way to run another program: an argument list, a constructed environment, a time limit."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

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
    """Run ARGV for at most TIMEOUT seconds and return its result; the caller checks the exit status.

    Raises subprocess.TimeoutExpired, after the child was killed, and OSError if it cannot be started.
    """
    _log.debug("+ %s", shlex.join(argv))
    return subprocess.run(
        list(argv), env=dict(env), cwd=cwd, input=stdin, capture_output=True, timeout=timeout, check=False
    )


_LAST_WORDS = 2.0
"""Seconds between SIGTERM and SIGKILL."""


class Programs:
    """Long-running programs, each in its own process group, so that any thread can end them and their children.

    Signals of the terminal do not reach them; the caller has to end them.
    """

    def __init__(self) -> None:
        self._running: dict[subprocess.Popen[bytes], signal.Signals] = {}
        self._guard = threading.Lock()

    def run(self, argv: Sequence[str], *, env: Mapping[str, str], timeout: float) -> Completed:
        """Run ARGV as `run` does, without input. After an exception no process of its group is left running."""
        _log.debug("+ %s", shlex.join(argv))
        with self._started(argv, env) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout)
            except BaseException:
                try:
                    _signal_group(process, signal.SIGTERM)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_LAST_WORDS)
                finally:
                    _signal_group(process, signal.SIGKILL)
                raise
            finally:
                with self._guard:
                    self._running.pop(process, None)
        return subprocess.CompletedProcess(list(argv), process.returncode, stdout, stderr)

    def _started(self, argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self._guard:  # `end` in another thread sees it from its first moment on
            process = subprocess.Popen(
                list(argv),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._running[process] = signal.SIGTERM
        return process

    def end(self) -> None:
        """Send SIGTERM to all running programs; at the second call, SIGKILL."""
        with self._guard:
            for process, number in self._running.items():
                _signal_group(process, number)
                self._running[process] = signal.SIGKILL


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
