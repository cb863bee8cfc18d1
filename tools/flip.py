"""Flips one bit of a file, and finds the file whose change `nvllm serve` must refuse: for the demo and the screens.

``python tools/flip.py PATH`` flips the lowest bit of the first byte of PATH; a second call puts the byte back.
``python tools/flip.py --find PROFILE NVLLM...`` prints the compiled code that PROFILE of image cpu would be served
from; NVLLM is nvllm with its options.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def flip(path: Path) -> None:
    """Flip the lowest bit of the first byte of PATH; its mode stays as it is."""
    mode = path.stat().st_mode & 0o777
    path.chmod(0o600)
    with path.open("r+b") as file:
        first = file.read(1)[0]
        file.seek(0)
        file.write(bytes([first ^ 1]))
    path.chmod(mode)


def compiled(nvllm: list[str], profile: str) -> Path:
    """Return the compiled code of the blessed cache of PROFILE. Raises CalledProcessError if it is not blessed."""

    def result(*arguments: str) -> dict[str, str]:
        done = subprocess.run([*nvllm, "--json", *arguments], check=True, capture_output=True)
        document: dict[str, str] = json.loads(done.stdout)["result"]
        return document

    plan = result("serve", "cpu", "--profile", profile, "--dry-run")
    tree = Path(result("manifest", "show", plan["serve_hash"])["directory"])
    return next(path for path in sorted(tree.rglob("model")) if path.is_file())


if __name__ == "__main__":
    if sys.argv[1] == "--find":
        sys.stdout.write(f"{os.fspath(compiled(sys.argv[3:], sys.argv[2]))}\n")
    else:
        flip(Path(sys.argv[1]))
