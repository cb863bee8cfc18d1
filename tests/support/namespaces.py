"""Whether this process may make the namespaces that a container is made of."""

from __future__ import annotations

import os
import subprocess

_EVERY = ["unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "true"]


def allowed() -> bool:
    """Return whether this process may make namespaces; root of an unprivileged container may not."""
    return os.geteuid() == 0 and subprocess.run(_EVERY, capture_output=True, check=False).returncode == 0
