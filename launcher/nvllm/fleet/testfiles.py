"""The files of tests on their way to the machines that run them: one uncompressed archive, named by its sha256.

::

    REPO:tests-<sha256>      an artifact of one layer, the archive

What travels lies beside the tests in the project: the directory at its top that has them, with what they import from
there, and the settings of pytest. A machine puts it in the place of what its own project has there.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvllm.core import archives, durable, reading
from nvllm.core.archives import ArchiveName
from nvllm.core.lock import LockedFile
from nvllm.core.paths import Places
from nvllm.core.progress import Progress
from nvllm.core.refusal import refuse
from nvllm.fleet.registry import Blob, BlobSource, Repository
from nvllm.layers import oci, tarlayer
from nvllm.layers.oci import LAYER, Descriptor
from nvllm.sources import fetch
from nvllm.sources.store import Store

ARTIFACT = "application/vnd.nvllm.tests.v1"
SETTINGS = ("conftest.py", "pyproject.toml", "pytest.ini", "setup.cfg", "tox.ini")
"""What pytest reads at the top of a project."""

MOST = 64 << 20
"""Bytes of the files that travel; those of nvllm's own tests are 4 MB."""


@dataclass(frozen=True, slots=True)
class PushedTests:
    """The archive in the registry: its DIGEST, and its SIZE in bytes."""

    digest: str
    size: int


def paths(root: Path, nodes: Sequence[str]) -> Iterator[Path]:
    """Yield what travels with the tests NODES below ROOT, by path: no hidden file, and no bytecode."""
    tops = dict.fromkeys(Path(node.partition("::")[0]).parts[0] for node in nodes)
    for top in [root / name for name in (*tops, *SETTINGS)]:
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            parts = path.relative_to(root).parts
            if path.is_file() and not any(part.startswith(".") or part == "__pycache__" for part in parts):
                yield path


def push(root: Path, nodes: Sequence[str], repository: Repository, progress: Progress) -> PushedTests:
    """Send the files of the tests NODES below ROOT to REPOSITORY. Raises Refused NV108 for more than `MOST` bytes."""
    listed = [*dict.fromkeys(paths(root, nodes))]
    size = sum(path.stat().st_size for path in listed)
    if size > MOST:
        top, cure = nodes[0].partition("/")[0], "move the tests to a directory of their own"
        raise refuse("NV108", f"--on: {top}", f"at most {MOST} bytes beside the tests", f"{size} bytes", cure)
    entries = [
        tarlayer.blob(
            str(path.relative_to(root)), reading.content(path, MOST), executable=bool(path.stat().st_mode & 0o100)
        )
        for path in listed
    ]
    with tempfile.TemporaryDirectory(prefix="nvllm-tests-") as scratch:
        # No time: the same files are the same archive, whoever sends them and whenever.
        layer = tarlayer.write("tests", entries, epoch=0, path=Path(scratch, "tests.tar"), progress=progress)
        repository.push_blobs([Blob(layer.diff_id, layer.size, layer.path), Blob.of(oci.EMPTY)])
    manifest = oci.artifact(ARTIFACT, [Descriptor(LAYER, layer.diff_id, layer.size)])
    repository.push_manifest(f"tests-{layer.diff_id.removeprefix('sha256:')}", manifest)  # what none names may go
    return PushedTests(layer.diff_id, layer.size)


def bring(pushed: PushedTests, target: Path, repository: Repository, places: Places, progress: Progress) -> None:
    """Unpack the archive PUSHED to REPOSITORY into the directory TARGET; it stays in the store of PLACES.

    Raises Refused NV205 for other bytes, NV331 if the registry lacks it, and NV306 for what is no such archive.
    """
    store, digest = Store(places.store), pushed.digest.removeprefix("sha256:")
    file = LockedFile(f"tests-{digest[:12]}.tar", digest, pushed.size, "registry")
    fetch.fetch([file], store, BlobSource(repository), progress, offline=False)
    name = ArchiveName(file.filename, "files of tests")
    # Beside its content a member takes a header and padding of 512 bytes each.
    with durable.writing(target), archives.tar(store.path(digest), name, 2 * MOST) as archive:
        for member in archives.members(archive, MOST):
            if not tarlayer.safe(member.name) or not (member.isdir() or member.isreg()):
                raise tarfile.ReadError(f"{member.name[:80]!r}: no file below the top")
            path = target / member.name
            if member.isdir():
                path.mkdir(mode=0o755, exist_ok=True)
                continue
            stored = archive.extractfile(member)
            assert stored is not None
            path.write_bytes(stored.read())
            path.chmod(0o755 if member.mode & 0o100 else 0o644)


def beside(project: Path, target: Path) -> None:
    """Link what PROJECT has at its top into TARGET, but for what is there already, and for what is hidden."""
    for path in project.iterdir():
        if not path.name.startswith(".") and not (target / path.name).exists():
            (target / path.name).symlink_to(path.absolute())
