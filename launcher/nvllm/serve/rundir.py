"""The run directory of an instance: what is mounted into it, its log, its state and its evidence.

::

    <state>/runs/<instance>/
        run/              mounted read-only at /run/nvllm: launch.json and the sentinels
        nvllm_access.py   the program that asks for the API key, if the profile names a key file
        plan.json         the launch plan, as carried out
        state.json        the state of the instance; replaced whole, never edited
        evidence.jsonl    what happened, one JSON object a line, appended
        memory.jsonl      of an engine of a campaign: memory, second by second
        engine.log        the log of the engine, with the times that Docker gives it
        engine.log.1      what it was before it became too long
        stop              exists after `nvllm stop` was called
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Literal

import cattrs

from nvllm.core import canonical, durable, paths, reading, trusted
from nvllm.core.canonical import Json
from nvllm.core.plan import ACCESS_PROGRAM
from nvllm.core.refusal import refuse
from nvllm.runtime import gate
from nvllm.serve.timeline import MissingKernel

Stage = Literal["starting", "ready", "restarting", "stopped", "failed"]

MEMORY = "memory.jsonl"
LOG = 64 * reading.MB
"""Bytes of a log after which another one is begun."""

_CONVERTER = cattrs.Converter(forbid_extra_keys=True)


@dataclass(frozen=True, slots=True)
class Death:
    """The end of an engine that is started again: WHEN in seconds since 1970, the REASON, the last LINES of its log."""

    when: float
    reason: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CoveredKernels:
    """The KERNELS of a blessed cache, their VARIANTS, and what was to be computed in one step and never was."""

    kernels: int
    variants: int
    unmet: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InstanceState:
    """The state of an instance. Times are seconds since 1970; PHASES are (name, seconds)."""

    instance: str
    image: str
    profile: str
    dev: bool
    stage: Stage
    build_hash: str
    serve_hash: str
    port: int
    supervisor: int
    container: str
    started: float
    ready: float | None = None
    kv_tokens: int | None = None
    phases: tuple[tuple[str, float], ...] = ()
    reason: str = ""
    blessed: str = ""
    """The label of its blessing; empty if its profile is not a blessed one."""
    coverage: CoveredKernels | None = None
    """What its blessing covers; None without one, and where it has no kernel of Triton, as on the CPU."""
    kernels: tuple[MissingKernel, ...] = ()
    """Kernels that a blessed cache lacked, so that requests had to wait for their compilation."""
    drain: int = 0
    """Seconds in which its requests may finish when it is asked to stop."""
    deaths: tuple[Death, ...] = ()
    """The engines before this one that died, those that count towards the limit of the profile's `restart`."""


class RunDirectory:
    """The run directory at PATH."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def mounted(self) -> Path:
        return self.path / "run"

    @property
    def log(self) -> Path:
        return self.path / "engine.log"

    @property
    def log_cure(self) -> str:
        """The command that shows what the engine wrote, the cure of what only its log explains."""
        return shlex.join(["less", str(self.log)])

    @property
    def older_log(self) -> Path:
        return self.path / "engine.log.1"

    def prepare(self, plan: Json, expectations: bytes, sentinels: Sequence[str], asking: bytes | None = None) -> None:
        """Make the directory for a start, and remove what an earlier start left in it.

        ASKING is the program that asks for the API key, if there is one.

        What is mounted is readable by every user, because the engine runs as its own user; it holds no secret, and
        its parent directory keeps other users of this host out. Raises Refused NV513 if another user can write to the
        directory, and NV920 if it cannot be written; then there is no state, and the next start removes what is left.
        """
        private_directory(self.path.parent)
        with durable.writing(self.path, "NV920"):
            if self.path.exists():
                shutil.rmtree(self.path)
            os.mkdir(self.path, 0o700)
        self.prepare_again(plan, expectations, sentinels, asking)

    def prepare_again(
        self, plan: Json, expectations: bytes, sentinels: Sequence[str], asking: bytes | None = None
    ) -> None:
        """Make those parts of the directory again that a container gets, for a restart: state, log and evidence stay.

        Raises Refused NV920 if it cannot be written.
        """
        with durable.writing(self.path, "NV920"):
            if self.mounted.exists():
                shutil.rmtree(self.mounted)
            os.mkdir(self.mounted)
            for name, data in [(gate.EXPECTATIONS, expectations), *((sentinel, b"") for sentinel in sentinels)]:
                (self.mounted / name).write_bytes(data)
                (self.mounted / name).chmod(0o444)
            self.mounted.chmod(0o755)  # whatever the umask of this process is
            if asking is not None:
                (self.path / ACCESS_PROGRAM).unlink(missing_ok=True)
                (self.path / ACCESS_PROGRAM).write_bytes(asking)
                (self.path / ACCESS_PROGRAM).chmod(0o444)
            (self.path / "plan.json").write_text(canonical.pretty(plan))

    def write_state(self, state: InstanceState) -> None:
        """Replace the state by STATE. Raises Refused NV920 if it cannot be written."""
        durable.replace(self.path / "state.json", canonical.pretty(asdict(state)).encode(), 0o600, code="NV920")

    def read_state(self) -> InstanceState | None:
        """Return the state of the instance, or None if there is none that this version of nvllm can read.

        A damaged file must not hide the other instances from `nvllm status`. `nvllm gc` removes it.
        """
        try:
            document = canonical.decode(reading.content(self.path / "state.json", reading.STATE))
            return _CONVERTER.structure(document, InstanceState) if isinstance(document, dict) else None
        except (OSError, ValueError, cattrs.BaseValidationError):
            return None

    def change_stage(self, stage: Stage, reason: str) -> None:
        """Give the state, if there is one, STAGE and REASON. Raises Refused NV920 if it cannot be written."""
        state = self.read_state()
        if state is not None:
            self.write_state(replace(state, stage=stage, reason=reason))

    def say(self, when: float, event: str, details: Mapping[str, Json]) -> None:
        """Append one line of evidence: EVENT at WHEN, seconds since 1970.

        Raises Refused NV920 if it cannot be written whole; a part of a line is removed again.
        """
        path = self.path / "evidence.jsonl"
        with durable.writing(path, "NV920"):
            _append(path, canonical.encode({"time": round(when, 3), "event": event, **details}) + b"\n")

    def keep_sample(self, line: bytes) -> None:
        """Append LINE to the series of memory. Raises OSError if it cannot be written whole."""
        _append(self.path / MEMORY, line + b"\n")

    def keep(self, lines: Iterable[bytes]) -> None:
        """Append LINES, which have no line feeds, to the log. Raises Refused NV920 if they cannot be written.

        A log of more than `LOG` bytes becomes the older one, in the place of the one before: an engine that prints
        without end does not fill the disk, and `nvllm logs` can read the newest part.
        """
        with durable.writing(self.log, "NV920"), self.log.open("ab") as log:
            log.writelines(line + b"\n" for line in lines)
            if log.tell() > LOG:
                os.replace(self.log, self.older_log)
                self.log.touch()

    def ask_to_stop(self) -> None:
        """Ask the supervisor of the instance to stop it. Raises Refused NV920 if that cannot be written."""
        path = self.path / "stop"
        with durable.writing(path, "NV920"):
            path.touch()

    @property
    def asked_to_stop(self) -> bool:
        return (self.path / "stop").exists()


def _append(path: Path, line: bytes) -> None:
    """Append LINE to PATH. Raises OSError if that fails; a part of it is removed again."""
    # Without a buffer: the write says whether the line is in the file, and not a later flush.
    with path.open("ab", buffering=0) as stream:
        size = stream.tell()
        try:
            _write_whole(stream, line)
        except OSError:
            with contextlib.suppress(OSError):
                stream.truncate(size)
            raise


def _write_whole(stream: FileIO, data: bytes) -> None:
    """Write DATA. Raises OSError also if only a part was written, which the kernel reports as success."""
    if stream.write(data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def private_directory(directory: Path) -> Path:
    """Create DIRECTORY if needed, and return it. Raises Refused NV513 unless only this user can write to it."""
    try:
        paths.ensure(directory)
    except OSError as error:
        if not os.path.lexists(directory):
            problem, cure = error.strerror or str(error), shlex.join(["ls", "-ld", str(directory.parent)])
            raise refuse("NV513", str(directory), "a directory that only this user can write", problem, cure) from error
    trusted.state(directory, "NV513").private()
    return directory


def all_below(runs: Path) -> list[RunDirectory]:
    """Return the run directories below RUNS, by name."""
    return [RunDirectory(path) for path in reading.listed(runs, "*") if (path / "state.json").exists()]
