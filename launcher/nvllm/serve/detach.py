"""Serving in the background: a supervisor in a session of its own, until it is ready or has ended.

The supervisor is `nvllm serve` in the foreground; the JSON that it prints is the result.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from nvllm.core.canonical import Json
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, Refused, refuse
from nvllm.serve import owners
from nvllm.serve.rundir import private_directory
from nvllm.spec import specfile

POLL_INTERVAL = 0.2
"""Seconds between two reads of the log of a supervisor in the background."""


def detached(
    project: Project, places: Places, image: str, profile: str, *, paranoid: bool, progress: Progress
) -> Mapping[str, Json]:
    """Serve PROFILE of IMAGE in the background, and return the result of `nvllm serve` when the engine is ready.

    PROGRESS shows the log of the supervisor meanwhile. Raises Refused with the refusals of the supervisor, NV107 if
    there is no such image or profile, and NV703 if the supervisor ends without a result.
    """
    spec = specfile.of(project, image)
    specfile.named_profile(project, spec, profile)  # from here on both are known to be names, not paths
    named = ["--project", str(project.root)] if project.own else []  # it finds the one that nvllm came with itself
    argv = [sys.executable, "-m", "nvllm", "--json", *named, "--platform", project.platform]
    argv += ["serve", image, "--profile", profile, *(["--paranoid"] if paranoid else [])]
    name = owners.instance_name(project, places, spec.name, profile)
    log = private_directory(places.state / "supervisors") / f"{name}.log"
    document, child = followed(argv, log, progress)
    if document.get("ok"):
        return cast("dict[str, Json]", document["result"])
    if "refusals" not in document:
        raise refuse(
            "NV703", "the supervisor", "a result", f"exit status {child.wait()}", shlex.join(["less", str(log)])
        )
    names = ("code", "where", "expected", "found", "cure")
    listed = cast("list[dict[str, str]]", document["refusals"])
    raise Refused(Refusal(**{name: refusal[name] for name in names}) for refusal in listed)


def followed(argv: Sequence[str], log: Path, progress: Progress) -> tuple[dict[str, Json], subprocess.Popen[bytes]]:
    """Start ARGV in a session of its own, and wait until it has printed its JSON document, or has ended.

    Returns the document, empty if there was none, and the process. Its stderr is appended to LOG, and shown by
    PROGRESS. An interrupt ends the process, and waits for its end.
    """
    with log.open("ab") as stream, log.open("rb") as written:
        written.seek(0, os.SEEK_END)  # what supervisors before it wrote is not shown again
        # A session of its own: neither Ctrl-C nor the end of this terminal reaches it.
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stream, start_new_session=True
        )
        try:
            document = _document(child, lambda: show_lines(written, progress))
        except BaseException:
            child.terminate()
            child.wait()
            raise
    return document, child


def _document(child: subprocess.Popen[bytes], meanwhile: Callable[[], None]) -> dict[str, Json]:
    """Return the JSON document that CHILD prints, empty if it ends before; call MEANWHILE at each interval."""
    assert child.stdout is not None
    text = b""
    document: dict[str, Json] = {}
    with child.stdout:
        while not document:
            if select.select([child.stdout], [], [], POLL_INTERVAL)[0]:
                chunk = os.read(child.stdout.fileno(), 65536)
                if not chunk:
                    child.wait()
                    break
                text += chunk
                document = _parse(text)
            meanwhile()
    meanwhile()
    return document


def _parse(text: bytes) -> dict[str, Json]:
    """Return the JSON document in TEXT, or an empty one if TEXT is not yet all of it."""
    if not text.endswith(b"\n"):
        return {}
    try:
        return cast("dict[str, Json]", json.loads(text))
    except ValueError:
        return {}


def show_lines(written: BinaryIO, progress: Progress) -> None:
    """Show the whole lines that are new in WRITTEN."""
    while (line := written.readline()).endswith(b"\n"):
        progress.note(line.decode("utf-8", "replace").rstrip("\n"))
    written.seek(-len(line), os.SEEK_CUR)  # what has no end yet is read again, whole
