"""Checking that source archive, wheel and pinned commit belong together.

The archive records its commit, the wheel does not. So the wheel is accepted only if its Python files equal those of
the archive, except for those that the spec lists as known to differ.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from nvllm.core import archives
from nvllm.core.archives import ArchiveName
from nvllm.core.lock import FileDifference
from nvllm.core.refusal import Refusal
from nvllm.core.spec import VllmPin
from nvllm.patches import source

ABSENT = "absent"
"""Replaces the sha256 in a :class:`FileDifference` if one side has no such file."""


def source_files(archive: Path) -> Mapping[str, bytes]:
    """Return the Python files of the package ``vllm`` in the source ARCHIVE, by path below its top directory.

    Raises Refused NV306 if it is no whole archive.
    """
    whole = ArchiveName(str(archive), "a whole source archive")
    return source.files(archive, whole, lambda path: path.startswith("vllm/") and path.endswith(".py"))


def wheel_files(wheel: Path) -> Mapping[str, str]:
    """Return the sha256 of the Python files of the package ``vllm`` in WHEEL, by path.

    Raises Refused NV306 if it is no whole wheel.
    """
    with archives.zipped(wheel, ArchiveName(str(wheel), "a whole wheel", "nvllm lock --update wheels")) as archive:
        infos = [
            info for info in archive.infolist() if info.filename.startswith("vllm/") and info.filename.endswith(".py")
        ]
        return {info.filename: hashlib.sha256(archives.member(archive, info)).hexdigest() for info in infos}


def digests(files: Mapping[str, bytes]) -> Mapping[str, str]:
    """Return the sha256 of each of FILES, by path."""
    return {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}


def differences(
    source: Mapping[str, str], wheel: Mapping[str, str], brings: Sequence[str] = ()
) -> tuple[FileDifference, ...]:
    """Return the differences between SOURCE and WHEEL (path to sha256), sorted by path.

    A file that only WHEEL has, in one of the directories BRINGS, is no difference.
    """
    return tuple(
        FileDifference(path, source.get(path, ABSENT), wheel.get(path, ABSENT))
        for path in sorted(source.keys() | wheel.keys())
        if source.get(path) != wheel.get(path) and (path in source or brought(path, brings) is None)
    )


def brought(path: str, brings: Sequence[str]) -> str | None:
    """Return the directory of BRINGS that contains the file PATH, if any."""
    return next((directory for directory in brings if path.startswith(directory + "/")), None)


def other_commit(sources: Mapping[str, bytes], filename: str, pin: VllmPin, label: str) -> list[Refusal]:
    """Return NV207 if SOURCES, of the archive FILENAME, record another commit than PIN, of the spec LABEL."""
    recorded = recorded_commit(sources.get("vllm/_version.py", b""))
    if recorded is not None and pin.commit.startswith(recorded):
        return []
    expected = f"commit {pin.commit} ({label}: .vllm.commit)"
    actual = f"commit {recorded}" if recorded else "no recorded commit"
    tag = f"v{pin.version}"
    ask = f"git ls-remote https://github.com/vllm-project/vllm {tag} '{tag}^{{}}'"
    cure = f"write the last id that `{ask}` prints into .vllm.commit of {label}"
    return [Refusal("NV207", f"{filename}: vllm/_version.py", expected, actual, cure)]


def recorded_commit(version_file: bytes) -> str | None:
    """Return the short commit in a ``_version.py``, or None. The file is parsed, never run."""
    try:
        tree = ast.parse(version_file)
    except (SyntaxError, ValueError):
        return None
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
            value = node.value.value
            # `g`, and at least the seven digits to which git abbreviates an id.
            if "__commit_id__" in names and isinstance(value, str) and len(value) > 7:
                return value.removeprefix("g")
    return None


def bringing(source: Mapping[str, str], wheel: Mapping[str, str], brings: Sequence[str]) -> list[str]:
    """Return those directories of BRINGS with a file that only WHEEL has, and not SOURCE (path to sha256)."""
    used = {brought(path, brings) for path in wheel.keys() - source.keys()}
    return [directory for directory in brings if directory in used]


def directories(source: Mapping[str, str], wheel: Mapping[str, str], brings: Sequence[str]) -> list[str]:
    """Return the topmost directories of WHEEL of which SOURCE has no file (path to sha256), but for those in BRINGS."""
    known = {parent for path in source for parent in PurePosixPath(path).parents}
    topmost: dict[str, None] = {}
    for path in sorted(path for path in wheel.keys() - source.keys() if brought(path, brings) is None):
        top = next((parent for parent in reversed(PurePosixPath(path).parents) if parent not in known), None)
        if top is not None:
            topmost[str(top)] = None
    return list(topmost)


def not_brought(
    source: Mapping[str, str], wheel: Mapping[str, str], brings: Sequence[str], filename: str, label: str
) -> list[Refusal]:
    """Return NV208 for each directory of BRINGS, in the spec LABEL, without a file that only the wheel FILENAME has."""
    used, where = bringing(source, wheel, brings), f"{label}: .vllm.brings"
    expected = f"only directories with files that {filename} has and the source has not"
    return [
        Refusal("NV208", where, expected, f"no such file in {directory}", f"remove {directory} from vllm.brings")
        for directory in brings
        if directory not in used
    ]


def unlisted(differences: Sequence[FileDifference], listed: Sequence[str], wheel: str, label: str) -> list[Refusal]:
    """Return NV208 for each difference DIFFERENCES between WHEEL and source that is not LISTED in the spec LABEL.

    Also for each listed file that does not differ: a needless entry would hide a later difference.
    """
    refusals: list[Refusal] = []
    paths = {difference.path for difference in differences}
    where = f"{label}: .vllm.differs"
    cure = f"use the wheel of the pinned commit; if this difference is known and harmless, list the file in {where}"
    for differing in differences:
        if differing.path not in listed:
            expected = f"the file of the commit, sha256 {differing.source_sha256}"
            refusals.append(
                Refusal("NV208", f"{wheel}: {differing.path}", expected, f"sha256 {differing.wheel_sha256}", cure)
            )
    expected = f"only files in which {wheel} differs from the source"
    for path in listed:
        if path not in paths:
            same = f"{path} is the same in both, or in neither"
            refusals.append(Refusal("NV208", where, expected, same, f"remove {path} from vllm.differs"))
    return refusals
