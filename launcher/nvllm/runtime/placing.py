"""Writes what the gate expects at /run/nvllm, and copies a blessed cache, before an exported serve starts.

Runs in a container of its own, whose only writable directory is the one that the engine's container then mounts
read-only. A cache is copied file by file, as ``launch.json`` lists it, and hashed on the way: nothing else of it gets
there. Standard library only. Exits with status 78 if a file is missing or another one.
"""

import hashlib
import json
import os
import shutil
import sys
from typing import Any

LAUNCH = "launch.json"
RUN, CACHE = "run", "cache"
"""The directories that are made in the target."""
REFUSED = 78
_CHUNK = 1 << 20


def clear(directory: str) -> None:
    """Remove DIRECTORY with all below it: after a restart of the node the volume has what an earlier run wrote."""
    for below, _, _ in os.walk(directory):
        os.chmod(below, 0o700)  # before its entries are looked at; without it only root could remove them
    if os.path.isdir(directory):
        shutil.rmtree(directory)


def place_run(launch: bytes, target: str) -> None:
    """Write LAUNCH and the empty files of its sentinels into the new directory TARGET."""
    os.mkdir(target)
    os.chmod(target, 0o755)  # noqa: S103 - whatever the umask; nothing in it is secret
    contents = {LAUNCH: launch, **dict.fromkeys(json.loads(launch)["sentinels"], b"")}
    for name, data in contents.items():
        with open(os.path.join(target, name), "xb") as stream:
            stream.write(data)
            os.fchmod(stream.fileno(), 0o444)


def files(expected: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the sha256 and the mode of each file of the cache that the launch document EXPECTED names."""
    cache = expected["cache"]
    listed = {str(file["path"]): (str(file["sha256"]), str(file["mode"])) for file in cache["files"]}
    models = {model["path"]: model["files"] for model in expected["models"]}
    for seed in cache["seeds"]:  # files that the engine gets a writable copy of are listed like those of a model
        inside = os.path.relpath(seed["to"], cache["path"])
        copies = models[seed["from"]]
        listed |= {os.path.join(inside, file["path"]): (str(file["sha256"]), "0444") for file in copies}
    return listed


def copy(source: str, target: str, expected: dict[str, Any]) -> list[str]:
    """Copy the cache at SOURCE into the new directory TARGET; return what is not as EXPECTED."""
    wrong = []
    os.mkdir(target, 0o755)
    for path, (sha256, mode) in sorted(files(expected).items()):
        written, digest = os.path.join(target, path), hashlib.sha256()
        os.makedirs(os.path.dirname(written), exist_ok=True)
        try:
            with open(os.path.join(source, path), "rb") as stream, open(written, "xb") as out:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
                    out.write(chunk)
                os.fchmod(out.fileno(), int(mode, 8))
        except OSError as error:
            wrong.append(f"{path}: {error.strerror}")
            continue
        if digest.hexdigest() != sha256:
            wrong.append(f"{path}: sha256 {digest.hexdigest()}, not {sha256}")
    # The deepest first: after its mode is set, nothing can be made in a directory.
    for entry in sorted(expected["cache"]["directories"], key=lambda entry: len(str(entry["path"])), reverse=True):
        directory = os.path.normpath(os.path.join(target, entry["path"]))
        os.makedirs(directory, exist_ok=True)
        os.chmod(directory, int(entry["mode"], 8))
    return wrong


def main(target: str, source: str = "") -> int:
    """Fill TARGET, with a copy of the cache at SOURCE if there is one, and return the exit status."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), LAUNCH), "rb") as stream:
        launch = stream.read()
    for directory in (RUN, CACHE):
        clear(os.path.join(target, directory))
    place_run(launch, os.path.join(target, RUN))
    wrong = copy(source, os.path.join(target, CACHE), json.loads(launch)) if source else []
    for problem in wrong:
        print("nvllm.placing", json.dumps({"event": "refused", "found": problem}), flush=True)
    return REFUSED if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
