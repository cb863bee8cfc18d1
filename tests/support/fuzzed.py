"""What reads files of other people, by name: each with a file that it takes, and what it may do with any other one.

A reader gets a path and either returns or raises Refused. The files here are the seeds; `tests/fuzz` changes them.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nvllm.bisect import journal
from nvllm.cache import manifest
from nvllm.cli import inspect as cli_inspect
from nvllm.core import canonical, reading, yamlnodes
from nvllm.core.lock import LockedFile
from nvllm.core.progress import Silent
from nvllm.image import cyclonedx
from nvllm.image.identity import Build
from nvllm.kernels import devicecode, fatbin
from nvllm.kernels.fatbin import Code
from nvllm.layers import deb, wheelmetadata
from nvllm.layers.wheel import Scheme, Wheel
from nvllm.lock import lockdoc, wheel_matches_source
from nvllm.patches import seriesfile, source, unified
from nvllm.sources import bundle, gitsource, indexes
from nvllm.sources.store import Store
from nvllm.spec import specfile
from nvllm.trials.trial import Built
from support import blessings_world, codesamples, layersamples, locks, series_samples
from support.bisect_world import free
from support.bisect_world import start as begun
from support.specs import GOOD

SCHEME = Scheme("opt/venv", layersamples.PYTHON)


@dataclass(frozen=True, slots=True)
class Reader:
    """What READS a file called FILENAME, and a SEED that it takes."""

    filename: str
    seed: Callable[[], bytes]
    reads: Callable[[Path], object]


def _series(path: Path) -> None:
    """Read PATH as the series in place of that of the sample, whose patch files stay."""
    with tempfile.TemporaryDirectory() as name:
        directory = series_samples.two_patches(Path(name))
        (directory / seriesfile.NAME).write_bytes(path.read_bytes())
        seriesfile.load(directory, "patches/v1")


def _series_seed() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        return (series_samples.two_patches(Path(name)) / seriesfile.NAME).read_bytes()


def _patch_seed() -> bytes:
    return series_samples.patch_text(series_samples.SOURCE, series_samples.changed(one=(b"one 5\n", b"one five\n")))


def _journal_seed() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "demo/journal.jsonl")
        log = journal.create(path, begun(free(3)))
        log.append(Built(("p01",), "", "0" * 64, "sha256:" + "0" * 64, 1.0))
        return path.read_bytes()


def _wheel_seed() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("vllm/__init__.py", "x = 1\n")
        archive.writestr("vllm/_C.so", codesamples.library(codesamples.container([Code("cubin", "sm_120")])))
        archive.writestr("vllm-1.0.dist-info/entry_points.txt", "[console_scripts]\nvllm = vllm:main\n")
        archive.writestr("vllm-1.0.data/scripts/tool", "#!python\nx\n")
    return out.getvalue()


def _wheel(path: Path) -> None:
    wheel_matches_source.wheel_files(path)
    with Wheel(path, "some.whl") as wheel:
        for entry in wheel.entries(SCHEME):
            if entry.content is not None:
                entry.content().read()
    devicecode.libraries(path, "some.whl")


def _metadata_seed() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:  # not packed, so that changes reach the documents
        archive.writestr("demo-1.0.dist-info/METADATA", "Metadata-Version: 2.4\nName: demo\nLicense-Expression: MIT\n")
        parts = [{"name": "zlib", "version": "1.3", "purl": "pkg:generic/zlib@1.3"}]
        document = json.dumps({"bomFormat": "CycloneDX", "components": parts})
        archive.writestr("demo-1.0.dist-info/sboms/auditwheel.cdx.json", document)
    return out.getvalue()


def _metadata(path: Path) -> None:
    cyclonedx.document(
        Build(specfile.parse(GOOD, "demo.yaml"), locks.GOOD, ()), {"torch": wheelmetadata.read(path, path.name)}
    )


def _bundle_seed() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        store, data = Store(Path(name, "store")), b"the bytes of a wheel"
        sha = hashlib.sha256(data).hexdigest()
        store.partial(sha).write_bytes(data)
        store.adopt(store.partial(sha), sha)
        bundle.write([LockedFile("demo.whl", sha, len(data), "pypi")], store, Path(name, "demo.tar"), "cure", Silent())
        return Path(name, "demo.tar").read_bytes()


def _bundle(path: Path) -> None:
    """Read PATH into an empty store, in which every file then has the bytes of its name."""
    with tempfile.TemporaryDirectory() as name:
        store = Store(Path(name))
        try:
            bundle.read(path, store, Silent())
        finally:
            for sha in store.list():
                store.verify(sha)


def _sdist_seed() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        files = {"vllm/_version.py": b"__commit_id__ = 'g2cf0a6915'\n", "vllm/a.py": b"a\n"}
        return layersamples.sdist(Path(name), files).read_bytes()


def _sdist(path: Path) -> None:
    wheel_matches_source.source_files(path)
    source.archive(path, ["vllm/a.py"])
    gitsource.contents(path)


def _deb_seed() -> bytes:
    return layersamples.deb_bytes("demo", [layersamples.directory("./usr"), layersamples.symlink("./usr/x", "y")])


READERS: Mapping[str, Reader] = {
    "yaml": Reader("x.yaml", lambda: GOOD.encode(), lambda path: yamlnodes.parse(text(path), "x.yaml")),
    "spec": Reader("demo.yaml", lambda: GOOD.encode(), lambda path: specfile.load(path, "images/demo.yaml")),
    "series": Reader("series.yaml", _series_seed, _series),
    "patch": Reader("a.patch", _patch_seed, lambda path: unified.parse(path.read_bytes(), "a.patch")),
    "lock": Reader("demo.lock.json", lambda: lockdoc.encode(locks.GOOD), lambda path: lockdoc.read(path, path.name)),
    "manifest": Reader(
        blessings_world.bless(blessings_world.TREE).filename,
        lambda: manifest.encode(blessings_world.bless(blessings_world.TREE)),
        lambda path: manifest.read(path, path.name),
    ),
    "journal": Reader("journal.jsonl", _journal_seed, lambda path: journal.load(path).state),
    "identity": Reader(
        "identity.json",
        lambda: canonical.encode({"build_hash": "0" * 64, "factors": {"a": 1}}),
        lambda path: cli_inspect.read_identity("nvllm:demo", path.read_bytes()),
    ),
    "pip": Reader(
        "pip.txt",
        lambda: b"global.index-url='https://a/b c'\nglobal.timeout='5'\n:env:.proxy='http://me:x@[::1]:80'\n",
        lambda path: indexes.parse_configuration(path.read_bytes().decode(errors="replace")),
    ),
    "deb": Reader("demo.deb", _deb_seed, lambda path: (deb.control(path, "demo"), [*deb.files(path, "demo")])),
    "wheel": Reader("some.whl", _wheel_seed, _wheel),
    "wheel metadata": Reader("demo-1.0-py3-none-any.whl", _metadata_seed, _metadata),
    "bundle": Reader("demo.tar", _bundle_seed, _bundle),
    "source": Reader("vllm.tar.gz", _sdist_seed, _sdist),
    "library": Reader(
        "x.so",
        lambda: codesamples.library(codesamples.container([Code("cubin", "sm_120"), Code("ptx", "sm_80")])),
        lambda path: fatbin.modules(path.read_bytes(), "x.so"),
    ),
}


def text(path: Path) -> str:
    return reading.required(path, reading.SPEC, path.name).decode(errors="replace")


@functools.cache
def seed(reader: Reader) -> bytes:
    """Return the seed of READER."""
    return reader.seed()
