"""Tampering with each file of a blessed cache, in each way, and who refuses it: staging, the gate, the later look.

The cache has the shape of the nvllm fork's, one artefact, its graph, two small files and twenty kernels, in fewer
bytes. A stored tree is tampered with before a serve stages it; a staged copy, which nobody but its owner can reach,
after. All files are tampered with at once, because whoever refuses says all that is wrong: each must be named.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvllm.cache import staging
from nvllm.cache.cachetree import Tree
from nvllm.cache.store import TreeStore
from nvllm.core import durable
from nvllm.core.refusal import Refused
from nvllm.runtime import gate
from support import boundaries
from support.blessings_world import AOT, CURE, LOCKS, child, writable

SIZES: Mapping[str, int] = {
    f"{AOT}/rank_0_0/model": 200_000,
    f"{AOT}/rank_0_0/graph": 17_000,
    f"{AOT}/computation_graph.py": 8_317,
    "modelinfos/Lfm2.json": 760,
    **{f"{AOT}/inductor_cache/{number:02x}/kernel.so": 1_250 for number in range(4)},
    **{f"{AOT}/triton_cache/{number:02x}/kernel.cubin": 858 for number in range(16)},
}


def cache(root: Path) -> Path:
    """Write the cache at ROOT as a cold compile leaves it."""
    for number, (path, size) in enumerate(SIZES.items()):
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(bytes([number]) * size)
        place.chmod(0o755 if place.suffix == ".so" else 0o644)
    (root / LOCKS).mkdir(parents=True)
    for directory, _, _ in os.walk(root):
        Path(directory).chmod(0o755)
    return root


# What is done to a file. OUTSIDE is a place that is not in the tree.

Tampering = Callable[[Path, Path], None]


def flip(place: Path, _: Path) -> None:
    """A bit of one byte; neither its size nor its mode."""
    info = writable(place).stat()
    data = bytearray(place.read_bytes())
    data[len(data) // 2] ^= 1
    place.write_bytes(data)
    os.utime(place, ns=(info.st_atime_ns, info.st_mtime_ns))
    _restore(place)


def truncate(place: Path, _: Path) -> None:
    os.truncate(writable(place), place.stat().st_size - 1)
    _restore(place)


def grow(place: Path, _: Path) -> None:
    with writable(place).open("ab") as stream:
        stream.write(b"!")
    _restore(place)


def link(place: Path, outside: Path) -> None:
    """To a file with the very same bytes."""
    outside.write_bytes(place.read_bytes())
    writable(place).unlink()
    place.symlink_to(outside)
    _restore(place)


def hard_link(place: Path, outside: Path) -> None:
    """A second name, through which the bytes could be changed later."""
    outside.write_bytes(place.read_bytes())
    mode = stat.S_IMODE(place.stat().st_mode)
    writable(place).unlink()
    os.link(outside, place)
    place.chmod(mode)
    _restore(place)


def add(place: Path, _: Path) -> None:
    """An artefact that nobody listed."""
    writable(place).with_name(f"{place.name}.extra").write_bytes(b"payload")
    _restore(place)


def remove(place: Path, _: Path) -> None:
    writable(place).unlink()
    _restore(place)


def chmod(place: Path, _: Path) -> None:
    place.chmod(stat.S_IMODE(place.stat().st_mode) | 0o200)


def fifo(place: Path, _: Path) -> None:
    writable(place).unlink()
    os.mkfifo(place, 0o444)
    _restore(place)


def directory(place: Path, _: Path) -> None:
    writable(place).unlink()
    place.mkdir()
    _restore(place)


def swap_parent(place: Path, outside: Path) -> None:
    """The directory of the file becomes a link to a copy of it."""
    above = place.parent.parent
    writable(place.parent)
    os.rename(place.parent, outside)
    outside.chmod(0o555)
    (above / place.parent.name).symlink_to(outside)
    above.chmod(0o555)


def chown(place: Path, _: Path) -> None:
    """Only root can, so only root does; for anybody else there is nothing to refuse."""
    os.chown(place, 4242, 4242)


def _restore(place: Path) -> None:
    """Give back the modes that tampering needed otherwise: what differs is what was done, and nothing else."""
    if place.is_file() and not place.is_symlink():
        place.chmod(0o555 if place.suffix == ".so" else 0o444)
    place.parent.chmod(0o555)


BY_DIRECTORY = "make its directory a link"

TAMPERINGS: Mapping[str, Tampering] = {
    "flip a bit": flip,
    "truncate": truncate,
    "grow": grow,
    "replace by a link": link,
    "give it a second name": hard_link,
    "add a file beside it": add,
    "remove": remove,
    "chmod": chmod,
    "replace by a FIFO": fifo,
    "replace by a directory": directory,
    BY_DIRECTORY: swap_parent,
}


ALL: Mapping[str, Tampering] = {**TAMPERINGS, "chown": chown}


# What is done to a file while it is read


def rewritten(place: Path) -> None:
    writable(place).write_bytes(b"X" * place.stat().st_size)
    _restore(place)


def exchanged(place: Path) -> None:
    """By a file with the same bytes: the copy would be right, but somebody is at work there."""
    data = writable(place).read_bytes()
    place.with_name("other").write_bytes(data)
    place.with_name("other").replace(place)
    _restore(place)


def grown(place: Path) -> None:
    with writable(place).open("ab") as stream:
        stream.write(b"!" * 300_000)
    _restore(place)


def restored(place: Path) -> None:
    """Changed and changed back, with its times: the change time still tells."""
    info = writable(place).stat()
    data = place.read_bytes()
    place.write_bytes(b"X" * len(data))
    place.write_bytes(data)
    os.utime(place, ns=(info.st_atime_ns, info.st_mtime_ns))
    _restore(place)


SWAPS: Mapping[str, Callable[[Path], None]] = {
    "rewrite while it is read": rewritten,
    "exchange while it is read": exchanged,
    "grow while it is read": grown,
    "change and restore while it is read": restored,
}


# The gate


_GATE = """
import hashlib, os, sys, types
from pathlib import Path
from support import tampering
from nvllm.runtime import gate

directory, swap = sys.argv[1:]
gate.RUN, gate.IDENTITY, gate.STATUS = f"{directory}/run", f"{directory}/identity.json", f"{directory}/status"
os.statvfs = os.fstatvfs = lambda _: types.SimpleNamespace(f_flag=os.ST_RDONLY)
os.getuid = os.getgid = lambda: 1000
os.environ.clear()
hashing = hashlib.file_digest

def digest(stream, name):
    if swap:
        tampering.SWAPS[swap](Path(os.readlink(f"/proc/self/fd/{stream.fileno()}")))
    return hashing(stream, name)

hashlib.file_digest = digest
try:
    gate.main(["/bin/true"])
except SystemExit as ended:
    os._exit(ended.code)
"""


def gate_world(directory: Path, mounted: Path, tree: Tree) -> None:
    """Make in DIRECTORY what the gate of a container sees that has TREE at MOUNTED and is else as planned."""
    (directory / "run").mkdir()
    (directory / "model").mkdir()
    capabilities = dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), 16 * "0")
    rights = {**capabilities, "NoNewPrivs": "1", "Seccomp": "2"}
    status = "".join(f"{name}:\t{value}\n" for name, value in rights.items())
    (directory / "status").write_text(status)
    (directory / "identity.json").write_text(json.dumps({"build_hash": 64 * "b"}))
    expected: dict[str, Any] = {
        "build_hash": 64 * "b",
        "user": "1000:1000",
        "waivers": [],
        "sentinels": [],
        "environment": [],
        "command": ["/bin/true"],
        "models": [{"path": str(directory / "model"), "files": []}],
        "cache": gate_cache(mounted, tree),
    }
    (directory / "run" / gate.EXPECTATIONS).write_text(json.dumps(expected))


def gate_cache(mounted: Path, tree: Tree) -> dict[str, Any]:
    """Return what the gate is told of the cache TREE at MOUNTED."""
    return {
        "path": str(mounted),
        "files": [{"path": one.path, "size": one.size, "mode": one.mode, "sha256": one.sha256} for one in tree.files],
        "directories": [{"path": one.path, "mode": one.mode} for one in tree.directories],
        "locks": list(tree.lock_directories),
    }


def gate_findings(directory: Path, swap: str = "") -> set[str]:
    """Run the gate of `gate_world` in a process and return where it found something: nowhere if the engine may start.

    Meanwhile SWAP, one of `SWAPS`, is done to each file of the cache when that is read.
    """
    done = child(_GATE, str(directory), swap)
    said = json.loads(done.stdout.decode().removeprefix("nvllm.gate "))
    if (done.returncode, said["event"]) not in {(0, "passed"), (gate.REFUSED, "refused")}:
        raise AssertionError(done)
    return {one["where"] for one in said.get("findings", [])}


# The matrix


@dataclass(frozen=True, slots=True)
class Outcome:
    """One file tampered with in one way, and who refused it."""

    tampering: str
    path: str
    before_start: bool
    by_gate: bool
    by_recheck: bool


def matrix(directory: Path, name: str) -> Iterator[Outcome]:
    """Tamper with each file of the cache by NAME, of `TAMPERINGS`, `SWAPS` or ``chown``, below DIRECTORY."""
    with tempfile.TemporaryDirectory(dir=directory) as top, boundaries.no_disk():
        store = TreeStore(Path(top, "trees"))
        tree = store.adopt(cache(Path(top, "fresh")), CURE)
        # A directory that becomes a link takes other files with it, so there it is one file after the other.
        for paths in [[path] for path in SIZES] if name == BY_DIRECTORY else [list(SIZES)]:
            with tempfile.TemporaryDirectory(dir=top) as world:
                yield from _tampered(Path(world), store, tree, name, paths)


def _tampered(world: Path, store: TreeStore, tree: Tree, name: str, paths: Sequence[str]) -> Iterator[Outcome]:
    staged = store.stage(tree, world, CURE)
    gate_world(world, staged.path, tree)
    swap = name if name in SWAPS else ""
    # A swap happens once, while it is read, so the staging and the gate each have a tree of their own to read.
    source = store.stage(tree, world, CURE).path if swap else staged.path
    for number, path in enumerate(paths if not swap else ()):
        ALL[name](staged.path / path, world / f"outside-{number}")
    before = _staging_findings(source, tree, world / "again", swap)
    at_gate = gate_findings(world, swap)
    after = {refusal.where for refusal in staging.recheck(staged, CURE)}
    for path in paths:
        named = (_named(before, source / path), _named(at_gate, staged.path / path), _named(after, staged.path / path))
        yield Outcome(name, path, *named)


def _named(found: set[str], place: Path) -> bool:
    """Say whether what was FOUND names the file at PLACE: itself, what was put beside it, or a link above it."""
    links = [os.fspath(above) for above in place.parents if above.is_symlink()]
    return not found.isdisjoint({os.fspath(place), f"{place}.extra", *links})


def _staging_findings(source: Path, tree: Tree, parent: Path, swap: str) -> set[str]:
    """Stage SOURCE, which ought to be TREE, in PARENT, while SWAP is done to each file, and return what is refused."""

    def swapped(point: str, path: str = "") -> None:
        if swap and point == "opened":
            SWAPS[swap](source / path)

    untouched = durable.reached
    durable.reached = swapped
    try:
        staging.stage(source, tree, parent, CURE)
    except Refused as refused:
        if {one.code for one in refused.refusals} != {"NV907"} or list(parent.iterdir()):
            raise
        return {one.where for one in refused.refusals}
    finally:
        durable.reached = untouched
    return set()
