"""A registry on loopback, which engines ask over plain HTTP: an index, with an image for each of some platforms."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any

from support.loopback import Page, Site

_OCI = "application/vnd.oci.image"


def layer(files: Mapping[str, bytes]) -> bytes:
    """Return a layer of FILES."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def publish(site: Site, name: str, images: Mapping[str, Mapping[str, bytes]]) -> str:
    """Offer IMAGES, platform to files, as NAME in the registry SITE; return the reference by the index's digest."""
    site.pages["/v2/"] = Page(b"{}", content_type="application/json")
    manifests = []
    for platform, files in images.items():
        system, _, architecture = platform.partition("/")
        bottom = layer(files)
        config = _blob(
            site,
            name,
            _json(
                {"os": system, "architecture": architecture, "rootfs": {"type": "layers", "diff_ids": [digest(bottom)]}}
            ),
        )
        packed = _blob(site, name, gzip.compress(bottom, mtime=0))
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.manifest.v1+json",
            "config": {"mediaType": f"{_OCI}.config.v1+json", **config},
            "layers": [{"mediaType": f"{_OCI}.layer.v1.tar+gzip", **packed}],
        }
        said = _manifest(site, name, manifest)
        manifests.append({**said, "platform": {"os": system, "architecture": architecture}})
    index = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": manifests}
    return f"{site.url.removeprefix('http://')}/{name}@{_manifest(site, name, index)['digest']}"


def _json(document: Any) -> bytes:
    return json.dumps(document).encode()


def _blob(site: Site, name: str, data: bytes) -> dict[str, Any]:
    site.pages[f"/v2/{name}/blobs/{digest(data)}"] = Page(data)
    return {"digest": digest(data), "size": len(data)}


def _manifest(site: Site, name: str, document: dict[str, Any]) -> dict[str, Any]:
    data = _json(document)
    media_type = document["mediaType"]
    site.pages[f"/v2/{name}/manifests/{digest(data)}"] = Page(data, content_type=media_type)
    return {"mediaType": media_type, "digest": digest(data), "size": len(data)}
