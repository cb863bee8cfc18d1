"""What holds for every test, and the fixtures of the real engine, which end-to-end and refusal tests share."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from nvllm.pages import plots
from support import parsed, processors
from support.aptmirror import trusted  # noqa: F401 - a fixture
from support.engine_world import (  # noqa: F401 - fixtures
    built_image,
    docker_client,
    elsewhere,
    served,
    session_worlds,
    tiny_model,
    worlds,
)
from support.layersamples import compiled_once  # noqa: F401 - a fixture
from support.loopback import site  # noqa: F401 - a fixture
from support.plansamples import front  # noqa: F401 - a fixture

# Who starts the tests in the background, or under nohup, has them ignore these signals, and an ignored signal stays
# ignored in every child. What nvllm does when it is interrupted could then not be seen.
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

_NAMES = ("HOME", "NVLLM_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "DOCKER_CONFIG")
_REAL = {name: os.environ.get(name) for name in _NAMES}
_NO_HOME = {**dict.fromkeys(_REAL), "HOME": "/proc"}
"""For tests without an engine: a directory in which not even root can create anything."""

_HOME = Path(_REAL["HOME"] or "/")
_OWN_CACHE = {
    **_REAL,
    "HOME": "/proc",
    "XDG_CACHE_HOME": _REAL["XDG_CACHE_HOME"] or str(_HOME / ".cache"),
    "XDG_STATE_HOME": _REAL["XDG_STATE_HOME"] or str(_HOME / ".local/state"),
    "DOCKER_CONFIG": _REAL["DOCKER_CONFIG"] or (str(_HOME / ".docker") if (_HOME / ".docker").is_dir() else None),
}
"""For tests that build with what the user's own cache holds: they get cache and state by name, and no home either."""

_USES_CACHE = {"engine", "series"}
_USES_HOME = {"engines", "fleet", "nix"}
"""Markers of tests that start programs of others as this user: engines of their own, Ray, Nix."""


# Tests kill processes and never the kernel, so what they write need not reach the disk. On one that is busy such waits
# are most of the time of the unit tests. What is no open file is refused as before. A test of what a sync does, or of
# what is synced, puts `posix.fsync` or a function of its own here.
os.fsync = os.fstat  # type: ignore[assignment]  # it returns what nobody reads

# Tests start hundreds of processes of the package, and each would compile it anew where bytecode is not written.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The tests run on machines that do other work too, so one slow example says nothing about the code. Ten examples
# of each property keep the unit tests short; `make fuzz` draws thousands of what others write. CI draws the same ones
# each time: it is asked whether a change broke something, and whoever runs the tests at home finds what nobody has
# thought of.
settings.register_profile("nvllm", deadline=None, max_examples=10)
CASES = int(os.environ.get("CASES", "2000"))
"""What `make fuzz` draws for each reader: more than 100,000 in all, in ten minutes on two cores that are free."""
settings.register_profile("fuzz", deadline=None, max_examples=CASES, suppress_health_check=list(HealthCheck))
settings.register_profile("ci", settings.get_profile("nvllm"), derandomize=True)
settings.load_profile("nvllm")

_SVG = plots.svg
"""Draws a plot, for longer than the run of a test takes. What is not marked `drawn` has pages without any."""

parsed.remember()

# Modules and thousands of tests stay to the end: the collector would look through all of them again and again.
gc.disable()


def _undrawn(label: str, draw: object, lines: float) -> str:
    return ""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Take the home of the user away from ITEM and from every process that it starts, before its first fixture.

    Whoever then writes there by mistake is refused by the kernel, and the test fails.
    """
    markers = {marker.name for marker in item.iter_markers()}
    given = _REAL if _USES_HOME & markers else _OWN_CACHE if _USES_CACHE & markers else _NO_HOME
    for name, value in given.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    plots.svg = _SVG if "drawn" in markers else _undrawn


_busy: dict[str, tuple[float, str]] = {}
"""The seconds that the tests of each worker took, and the file that it ran last."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add REPORT to the figures of its worker, which only a process that has workers knows."""
    node = vars(report).get("node")
    if node is not None:
        seconds, _ = _busy.get(node.gateway.id, (0.0, ""))
        _busy[node.gateway.id] = (seconds + report.duration, report.nodeid.partition("::")[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Return what `--dist loadfile` shares the tests out with; any other way is xdist's own."""
    from support.groups import Groups  # imports xdist, which is there where this is called

    return Groups(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    """Collect garbage from here on, but look only at what the tests make."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say on what the tests ran: what holds on one class of processors is not shown for another.

    Say too whether the workers had as much to do; `support/groups.py` decides what one of them gets.
    """
    terminalreporter.write_line(processors.summary())
    for worker, (seconds, file) in sorted(_busy.items()):
        terminalreporter.write_line(f"{worker}: {seconds:.0f} s of tests, {file} last")
