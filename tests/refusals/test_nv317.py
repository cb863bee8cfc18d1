"""NV317, image not recorded: nobody recorded which bytes the image of this build has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.paths import Places, Project
from nvllm.core.refusal import Refused
from nvllm.image import digests, provenance
from nvllm.image.digests import BuildDigests, Digests, LayerDigest
from nvllm.image.identity import Build
from nvllm.spec import specfile
from support import locks
from support.specs import GOOD, SHOWN

BUILD = Build(specfile.parse(GOOD, SHOWN), locks.GOOD, ())
A = f"sha256:{64 * 'a'}"
WHOLE = BuildDigests(BUILD.build_hash, (LayerDigest("base", A, 1),), A, A)


@pytest.mark.parametrize(
    ("recorded", "found"),
    [
        (None, "no such file"),
        ({"linux/arm64": WHOLE}, "nothing for linux/amd64"),
        ({"linux/amd64": replace(WHOLE, image_id=None, manifest=None)}, "the layers of the patch set only"),
        ({"linux/amd64": replace(WHOLE, build_hash=64 * "0")}, "build hash 000000000000"),
    ],
)
def test_neither_the_project_nor_this_host_recorded_the_image(
    tmp_path: Path, recorded: dict[str, BuildDigests] | None, found: str
) -> None:
    project, places = Project(tmp_path), Places(tmp_path / "cache", tmp_path / "state")
    name = BUILD.spec.name
    if recorded is not None:
        (tmp_path / "manifests").mkdir()
        digests.write(project.digests(name), Digests(digests.SCHEMA, name, recorded))
    with pytest.raises(Refused) as caught:
        provenance.built_digests(project, places, BUILD)
    (one,) = caught.value.refusals
    assert (one.code, one.where, one.cure) == ("NV317", f"manifests/{name}.digests.json", f"nvllm build {name}")
    assert one.expected == f"the digests of the image of build hash {BUILD.build_hash[:12]} for linux/amd64"
    assert one.found == f"{found}, and no build of it on this host"
