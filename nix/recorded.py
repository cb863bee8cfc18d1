"""Compares what Nix built with the recorded digests: ``recorded.py RECORD PLATFORM OUTPUT...``.

Each OUTPUT is a directory of layers or an OCI layout. Prints each difference, and fails if there is one.
"""

import json
import sys
from pathlib import Path


def found(output: Path) -> dict[str, str]:
    """Return the digests in OUTPUT, by what the record calls them."""
    index = output / "index.json"
    if not index.is_file():
        notes = [json.loads(note.read_bytes()) for note in output.glob("*.json")]
        return {f"layer {note['kind']}": note["diff_id"] for note in notes}
    manifest = json.loads(index.read_bytes())["manifests"][0]["digest"]
    blobs = output / "blobs"
    image_id = json.loads((blobs / manifest.replace(":", "/")).read_bytes())["config"]["digest"]
    config = json.loads((blobs / image_id.replace(":", "/")).read_bytes())
    kinds = [one["created_by"].removeprefix("nvllm layer ") for one in config["history"]]
    layers = {f"layer {kind}": digest for kind, digest in zip(kinds, config["rootfs"]["diff_ids"], strict=True)}
    build_hash = config["config"]["Labels"]["nvllm.build-hash"]
    return {**layers, "manifest": manifest, "image id": image_id, "build hash": build_hash}


path, platform, *outputs = sys.argv[1:]
record = json.loads(Path(path).read_bytes())
known = record["platforms"][platform]
recorded = {f"layer {one['name']}": one["diff_id"] for one in known["layers"]}
recorded |= {"build hash": known["build_hash"]}
recorded |= {what: known[key] for what, key in (("manifest", "manifest"), ("image id", "image_id")) if key in known}
built = {what: digest for output in outputs for what, digest in found(Path(output)).items()}
differing = [what for what in built if built[what] != recorded.get(what)]
for what in differing:
    print(f"{record['image']}.digests.json: {what}: recorded {recorded.get(what, 'nothing')}, built {built[what]}")
if differing:
    sys.exit(f"not as recorded; if the change is wanted: nvllm build {record['image']} --record")
print(f"as recorded: {len(built)} digests of {record['image']} for {platform}")
