"""Known vulnerabilities in what nvllm runs with: every package of its own lock, in the database of today."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.engine_world import ROOT


@pytest.mark.long
def test_no_package_of_the_lock_has_a_known_vulnerability() -> None:
    env = {**os.environ, "AUDIT": f"{sys.executable} -m uv --quiet tool run pip-audit==2.10.1"}
    done = subprocess.run([ROOT / "tools/audit.sh"], env=env, capture_output=True, text=True, check=False)
    if done.returncode == 75:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout
