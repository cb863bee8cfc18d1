"""A probe that looks into an image without starting it, and says while it runs for which task it does."""

from __future__ import annotations

import sys
from pathlib import Path

from nvllm.host.facts import TASK_LABEL

_PROBE = """#!{python}
import io, os, pathlib, sys, tarfile, time
import docker

place, task = pathlib.Path("{place}"), os.environ["NVLLM_TASK"]
client = docker.from_env()
container = client.api.create_container(os.environ["NVLLM_IMAGE"], ["-"], labels={{"{label}": task}})["Id"]

def text(name):
    stream, _ = client.api.get_archive(container, f"/opt/venv/lib/python{version}/site-packages/vllm/{{name}}")
    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
        return archive.extractfile(archive.getmembers()[0]).read().decode()

both = "'d'" in text("core.py") and "TOP" in text("long.py")
(place / "begun" / task).touch()
while (place / "hold").exists():
    time.sleep(0.1)
client.api.remove_container(container, force=True)
print("both" if both else "not both")
sys.exit(3 if both else 0)
"""


def write(place: Path) -> Path:
    """Write the probe into PLACE, and return its path.

    It fails for an image with both of the patches `key` and `top`. It says in PLACE/begun that it runs, and does not
    end while there is a file PLACE/hold.
    """
    path = place / "probe"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    path.write_text(_PROBE.format(python=sys.executable, place=place, label=TASK_LABEL, version=version))
    path.chmod(0o755)
    (place / "begun").mkdir()
    return path
