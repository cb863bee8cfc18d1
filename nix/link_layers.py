"""Replaces each layer of a layout, BLOBS, that is linked in LAYERS by a link: ``link_layers.py LAYERS BLOBS``."""

import json
import sys
from pathlib import Path

layers, blobs = map(Path, sys.argv[1:])
for note in layers.glob("*.json"):
    if note.is_symlink():
        blob = blobs / json.loads(note.read_bytes())["diff_id"].removeprefix("sha256:")
        blob.unlink(missing_ok=True)
        blob.symlink_to(note.with_suffix(".tar").readlink())
