"""Apply patch files to installed packages: ``apply_patches.py SITE-PACKAGES PATCH...``, inside an image.

The base image has no patch(1), so the plain `docker build` that bench.py compares with runs nvllm's own applier.
"""

import sys
from pathlib import Path

from nvllm.patches import patching, unified
from nvllm.patches.source import DirectoryTree

site = Path(sys.argv[1])
diffs = [unified.parse(Path(name).read_bytes(), name) for name in sys.argv[2:]]
for path, data in patching.apply_all(DirectoryTree(site), diffs).items():
    if data is None:
        (site / path).unlink()
    else:
        (site / path).write_bytes(data)
