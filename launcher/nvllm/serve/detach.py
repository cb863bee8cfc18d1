"""A serve in the background: a supervisor in a session of its own, followed until it is ready or has ended.

The supervisor is nvllm itself, as `nvllm serve` runs it in the foreground; what it prints as JSON is what it came to.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from nvllm.core.canonical import Json
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, Refused, refuse
from nvllm.serve import examine, planner
from nvllm.serve.rundir import private_directory
from nvllm.spec import file as specfile

GLANCE = 0.2
"""Seconds between two looks at what a supervisor in the background has written."""


def detached(
    project: Project, places: Places, image: str, profile: str, *, paranoid: bool, progress: Progress
) -> Mapping[str, Json]:
    """Serve PROFILE of IMAGE in the background, and return what `nvllm serve` says when the engine is ready.

    What the supervisor says meanwhile is shown by PROGRESS. Raises Refused with what it refuses, NV107 for no such
    image or profile, and NV703 if it ends with neither.
    """
    path = project.spec(image)
    spec = specfile.load(path, project.show(path))
    examine.named_profile(project, spec, profile)  # from here on both are names, and no paths
    argv = [sys.executable, "-m", "nvllm", "--json", "--project", str(project.root), "--platform", project.platform]
    argv += ["serve", image, "--profile", profile, *(["--paranoid"] if paranoid else [])]
    log = private_directory(places.state / "supervisors") / f"{planner.instance_name(spec.name, profile)}.log"
    document, child = followed(argv, log, progress)
    if document.get("ok"):
        return cast("dict[str, Json]", document["result"])
    if "refusals" not in document:
        raise refuse("NV703", "the supervisor", "a result", f"exit status {child.wait()}", f"read {log}")
    names = ("code", "where", "expected", "found", "cure")
    listed = cast("list[dict[str, str]]", document["refusals"])
    raise Refused(Refusal(**{name: one[name] for name in names}) for one in listed)


def followed(argv: Sequence[str], log: Path, progress: Progress) -> tuple[dict[str, Json], subprocess.Popen[bytes]]:
    """Start ARGV in a session of its own, and return once it has printed its JSON document, or has ended.

    Returns the document, empty if there was none, and the process. What that writes to stderr is appended to LOG,
    and shown by PROGRESS meanwhile. Whoever interrupts the waiting ends the process, and waits until it has ended.
    """
    with log.open("ab") as stream, log.open("rb") as written:
        written.seek(0, os.SEEK_END)
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stream, start_new_session=True
        )
        try:
            document = _document(child, lambda: _show_lines(written, progress))
        except BaseException:
            child.terminate()
            child.wait()
            raise
    return document, child


def _document(child: subprocess.Popen[bytes], meanwhile: Callable[[], None]) -> dict[str, Json]:
    """Return the one document that CHILD prints, empty if it ends before; call MEANWHILE now and then."""
    assert child.stdout is not None
    text = b""
    document: dict[str, Json] = {}
    with child.stdout:
        while not document:
            if select.select([child.stdout], [], [], GLANCE)[0]:
                chunk = os.read(child.stdout.fileno(), 65536)
                if not chunk:
                    child.wait()
                    break
                text += chunk
                document = _whole(text)
            meanwhile()
    meanwhile()
    return document


def _whole(text: bytes) -> dict[str, Json]:
    """Return the JSON document that TEXT is, with the end of its last line; an empty one if TEXT is not all of it."""
    if not text.endswith(b"\n"):
        return {}
    try:
        return cast("dict[str, Json]", json.loads(text))
    except ValueError:
        return {}


def _show_lines(written: BinaryIO, progress: Progress) -> None:
    """Show the lines that came since the last time; one that has no end yet is left for the next."""
    while (line := written.readline()).endswith(b"\n"):
        progress.note(line.decode("utf-8", "replace").rstrip("\n"))
    written.seek(-len(line), os.SEEK_CUR)
