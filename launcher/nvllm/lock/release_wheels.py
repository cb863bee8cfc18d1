"""What a spec says of its wheels at another release: requirements, and where vLLM's wheel differs from its source."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.utils import canonicalize_name
from packaging.version import Version

from nvllm.core import archives
from nvllm.core.archives import ArchiveName
from nvllm.core.lock import LockedFile
from nvllm.core.refusal import refuse
from nvllm.core.spec import ImageSpec
from nvllm.lock import wheel_matches_source
from nvllm.lock.providers import Providers
from nvllm.sources.wheels import Resolved, Target


@dataclass(frozen=True, slots=True)
class ReleaseWheels:
    """What a spec says of its wheels at another release: REQUIREMENTS, and the files that DIFFER, or that it BRINGS.

    RESOLVED are all the wheels that it needs, and MEMBERS the paths in vLLM's.
    """

    requirements: tuple[str, ...]
    differs: tuple[str, ...]
    brings: tuple[str, ...]
    resolved: tuple[Resolved, ...]
    members: frozenset[str]


def of(
    spec: ImageSpec, version: str, sources: Mapping[str, bytes], target: Target, providers: Providers
) -> ReleaseWheels:
    """Return what SPEC says of its wheels at VERSION of vLLM, whose Python files are SOURCES, by path.

    Each requirement of the spec takes the version that vLLM's wheel resolves to on TARGET, with the local part
    (``+cpu``) that it has. A directory of which the source has nothing is in BRINGS too, where the spec has that list.
    vLLM's wheel is fetched into the store. Raises Refused NV209 if there is none.
    """
    name = canonicalize_name(spec.vllm.distribution)
    pinned = f"{spec.vllm.distribution}=={version}"
    offered = providers.versions(name)
    if version not in offered:
        final = [each for each in map(Version, offered) if not each.is_prerelease]
        newest = f"{max(final)} is the newest" if final else "none of any version"
        cure = f"take {max(final)}" if final else f"pip index versions {name}"
        raise refuse("NV209", f"index: {name}", f"a wheel of {version}", newest, cure)
    resolved = providers.wheels([pinned], target, {})
    wheels = {wheel.name: wheel for wheel in resolved}
    requirements = []
    for requirement in spec.python.requirements:
        distribution, _, old = requirement.partition("==")
        locked = wheels.get(canonicalize_name(distribution))
        local = f"+{Version(old).local}" if Version(old).local else ""
        new = Version(locked.version).public + local if locked is not None else old
        requirements.append(pinned if canonicalize_name(distribution) == name else f"{distribution}=={new}")
    wheel = wheels[name]
    providers.fetch([LockedFile(wheel.filename, wheel.sha256, providers.size(wheel.url), "pypi")])
    path = providers.path(wheel.sha256)
    digests, installed = wheel_matches_source.digests(sources), wheel_matches_source.wheel_files(path)
    brings = wheel_matches_source.bringing(digests, installed, spec.vllm.brings)
    if brings:  # a spec without the list has no line that could be edited
        brings += wheel_matches_source.directories(digests, installed, brings)
    differs = wheel_matches_source.differences(digests, installed, brings)
    with archives.zipped(path, ArchiveName(wheel.filename, "a whole wheel", "nvllm lock --update wheels")) as archive:
        members = frozenset(_members(archive))
    return ReleaseWheels(
        tuple(requirements), tuple(file.path for file in differs), tuple(brings), tuple(resolved), members
    )


def alias(version: str, old: str, new: str) -> str:
    """Return VERSION, of an alias, with or without a local part, of the release NEW if it is of OLD."""
    return new + version.removeprefix(old) if version.removeprefix(old)[:1] in ("", "+") else version


def _members(archive: zipfile.ZipFile) -> set[str]:
    """Return the files and directories of ARCHIVE, without a slash at the end."""
    files = {info.filename for info in archive.infolist()}
    return {"/".join(parts[:end]) for name in files for parts in [name.split("/")] for end in range(1, len(parts) + 1)}
