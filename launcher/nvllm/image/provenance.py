"""The provenance of an image: an in-toto Statement v1 with a predicate of SLSA v1.

It states which image came out of a build, and everything that went in, by sha256. nvllm is the builder; a statement is
worth as much as its signature. It holds no time and no host, so a build by one version of nvllm has one statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nvllm import __version__
from nvllm.core.canonical import Json
from nvllm.core.fields import COMMIT
from nvllm.core.lock import LockedDebianBase, LockedRegistryBase
from nvllm.core.paths import Places, Project
from nvllm.core.refusal import refuse
from nvllm.image import digests, presence, purl, recording
from nvllm.image.digests import BuildDigests
from nvllm.image.identity import Build

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:nvllm:build-type:1"
"""Version of the parameters; docs/reproducible.md says what each of them is."""
BUILDER = "urn:nvllm:builder"


def statement(build: Build, built: BuildDigests) -> dict[str, Json]:
    """Return the statement that BUILD gave the image with the digests BUILT."""
    factors = build.factors
    return {
        "_type": STATEMENT,
        "subject": list(_subjects(build, built)),
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "image": build.spec.name,
                    "platform": build.lock.platform,
                    "patches": [patch.id for patch in build.patches],
                },
                "internalParameters": {
                    name: factors[name]
                    for name in ("rules", "epoch", "runtime", "environment", "entrypoint", "targets", "kernels")
                    if name in factors
                },
                "resolvedDependencies": list(_dependencies(build)),
            },
            "runDetails": {
                "builder": {"id": BUILDER, "version": {"nvllm": __version__}},
                "metadata": {"invocationId": f"urn:nvllm:build:{build.build_hash}"},
            },
        },
    }


def built_digests(project: Project, places: Places, build: Build) -> BuildDigests:
    """Return the digests of the image of BUILD, as PROJECT recorded them or a build on this host did.

    Raises Refused NV317 if neither did, NV309 if the project's record is damaged.
    """
    path = project.digests(build.spec.name)
    label = project.show(path)
    recorded = digests.read(path, label)
    own = recorded.platforms.get(project.platform) if recorded is not None else None
    if own is not None and own.whole and own.build_hash == build.build_hash:
        return own
    record = presence.proved(build, project, places)
    if record is not None:
        return recording.of_record(record)
    expected = f"the digests of the image of build hash {build.build_hash[:12]} for {project.platform}"
    if own is None:
        state = f"nothing for {project.platform}" if recorded is not None else "no such file"
    else:
        state = "the layers of the patch set only" if not own.whole else f"build hash {own.build_hash[:12]}"
    cure = f"nvllm build {build.spec.name}"
    raise refuse("NV317", label, expected, f"{state}, and no build of it on this host", cure)


def _subjects(build: Build, built: BuildDigests) -> Iterator[Json]:
    tag = build.tags[0]
    if built.manifest is not None:
        yield {"name": tag, "digest": _sha256(built.manifest)}
    if built.image_id is not None:
        yield {"name": f"{tag} image id", "digest": _sha256(built.image_id)}


def _sha256(digest: str) -> Json:
    return {"sha256": digest.removeprefix("sha256:")}


def _dependencies(build: Build) -> Iterator[Json]:
    """Yield every file of the lock and every patch by sha256, and the commit of vLLM by its id, as far as it is known.

    The beginning of an id is no digest; the source archive, which records it, has one.
    """
    lock, pin = build.lock, build.spec.vllm
    repository = f"https://github.com/{purl.repository(pin)}"
    whole: dict[str, Json] = {"digest": {"gitCommit": pin.commit}} if re.fullmatch(COMMIT, pin.commit) else {}
    yield {"name": "vllm", "uri": f"git+{repository}@{pin.commit}", **whole}
    source = lock.vllm.source
    yield {"name": source.filename, "uri": purl.of_source(lock.vllm, pin), "digest": _sha256(source.sha256)}
    if isinstance(lock.base, LockedRegistryBase):
        name, _, digest = lock.base.image.partition("@")
        yield {"name": name, "uri": f"docker://{lock.base.image}", "digest": _sha256(digest)}
    if isinstance(lock.base, LockedDebianBase):
        for package in lock.base.packages:
            name = Path(package.file.path).name
            yield {"name": name, "uri": purl.of_deb(package, lock.base), "digest": _sha256(package.file.sha256)}
    # The tools compile the kernels of an image with targets, and vLLM's extensions for native patches.
    native = build.native
    for wheel in (*lock.wheels, *lock.tools, *(() if native is None else native.tools)):
        yield {"name": wheel.file.filename, "uri": purl.of_wheel(wheel), "digest": _sha256(wheel.file.sha256)}
    for file in () if native is None else native.sources.values():
        yield {"name": file.filename, "digest": _sha256(file.sha256)}
    for patch in build.patches:
        assert patch.sha256 is not None
        yield {"name": f"patches/{build.spec.patches.series}/{patch.file}", "digest": _sha256(patch.sha256)}
