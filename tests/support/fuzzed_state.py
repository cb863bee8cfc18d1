"""What reads nvllm's own state, which another version, a full disk or a hand may have changed.

Also recorded digests, and images that lie in files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from nvllm.bisect import journal
from nvllm.bisect.records import JournalEntry
from nvllm.bisect.trial_cache import TrialCache
from nvllm.cache.revocations import Revocations
from nvllm.cache.seen_versions import Versions
from nvllm.core import canonical, documents
from nvllm.core.gaterules import GateRules, MemoryGateRule
from nvllm.host import gate_records, gates
from nvllm.host import locks as holds
from nvllm.host.gates import GateState
from nvllm.host.locks import Holder, Key
from nvllm.host.memtester import MemtesterOutput
from nvllm.image import buildrecord, contents, digests, sketch
from nvllm.image.buildrecord import Record, RecordedLayer
from nvllm.image.digests import BuildDigests, Digests, LayerDigest
from nvllm.models.memo import HashCache, Known
from nvllm.serve import exposition
from nvllm.serve.exposition import Exposed
from nvllm.serve.kernel_reports import KernelReports
from nvllm.serve.rundir import InstanceState, RunDirectory
from nvllm.serve.timeline import MissingKernel
from nvllm.trials.trial import Trial
from support import gate_samples
from support.bisect_world import free
from support.bisect_world import start as begun
from support.fuzzed import Reader

_DIFF = "sha256:" + "5" * 64
_HASH = "5" * 64


def _written(write: Callable[[Path], object], pattern: str = "*") -> Callable[[], bytes]:
    """Return what returns the one file that matches PATTERN in the directory that WRITE is given."""

    def seed() -> bytes:
        with tempfile.TemporaryDirectory() as name:
            write(Path(name))
            (path,) = (one for one in Path(name).rglob(pattern) if one.is_file())
            return path.read_bytes()

    return seed


def _digests() -> bytes:
    layers = (LayerDigest("base", _DIFF, 5, sketch.EMPTY),)
    return digests.encode(Digests(digests.SCHEMA, "demo", {"linux/amd64": BuildDigests(_HASH, layers, _DIFF, _DIFF)}))


def _record(directory: Path) -> None:
    buildrecord.write(directory, Record("demo", _HASH, _DIFF, (RecordedLayer("base", _DIFF, 5),), _DIFF))


def _state(directory: Path) -> None:
    state = InstanceState("i", "demo", "eager", False, "ready", _HASH, _HASH, 8000, 1, _HASH, 1.0)
    RunDirectory(directory).write_state(state)


def _holder() -> bytes:
    return json.dumps(dataclasses.asdict(Holder(1, "2026-11-20T10:00:00Z", "nvllm serve"))).encode() + b"\n"


def _holds(path: Path) -> None:
    """Look at locks, one of which holds what PATH holds."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name, "locks")
        with holds.acquire_all(directory, [Key("port", "8000")], Holder(1, "now", "test")):
            (place,) = (one for one in directory.iterdir() if "port" in one.name)
            place.write_bytes(path.read_bytes())
            for one in holds.status(directory):
                str(one)


def _memo(directory: Path) -> None:
    (directory / "model").touch()
    known = HashCache.load(directory / "verified.json")
    known.put((directory / "model").stat(), Known(_HASH, 2**20, b""), (1 << 63) - 1)
    known.save()


def _private(path: Path) -> Path:
    path.chmod(0o600)
    return path


def _first_journal() -> bytes:
    start = dataclasses.replace(begun(free(3)), schema="nvllm.journal/1")
    text, _ = journal.line(0, JournalEntry(1.0, start), "")
    return text


def _archive(directory: Path) -> None:
    """Write an archive of an image with one layer, as an engine saves it."""
    layer = b"\0" * 1024
    diff = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    config = canonical.encode(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Labels": {}},
            "rootfs": {"type": "layers", "diff_ids": [diff]},
            "history": [{"created_by": "nvllm base"}],
        }
    )
    listed = [{"Config": "config.json", "RepoTags": [], "Layers": ["layer.tar"]}]
    with tarfile.open(directory / "image.tar", "w") as tar:
        for name, data in {
            "config.json": config,
            "layer.tar": layer,
            "manifest.json": json.dumps(listed).encode(),
        }.items():
            member = directory / name
            member.write_bytes(data)
            tar.add(member, name)
            member.unlink()


def _stored(path: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        found = contents.stored(str(path), Path(name))
        assert found is not None
        for layer in found.layers:
            layer.tar().head(512)


def _moved(path: Path, place: Path) -> Path:
    """Copy PATH to PLACE, and return the directory of that."""
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, place)
    return place.parent


def _gate(path: Path) -> None:
    """Judge a profile by PATH, the record of a gate, and say it in all ways."""
    rules = GateRules(memory=MemoryGateRule(30, 1 << 30))
    with tempfile.TemporaryDirectory() as name:
        filed = gate_records.filed(_moved(path, Path(name, "gates", path.name)))
        (one,) = filed
        gates.judge(GateState(rules, filed, gate_samples.NOW), gate_samples.FACTS)
        gates.outdated(filed, [("memory", 3)], gate_samples.NOW)
        exposition.text(Exposed((), {}, filed, gate_samples.HERE))
        if one.record is not None:
            gates.problems(one.record)
            again = gate_records.write(Path(name, "again"), one.record)
            assert again.read_bytes() == path.read_bytes()


def _memtester(path: Path) -> None:
    """Hear PATH from memtester, in two parts, and keep what that makes as a band."""
    output, data = MemtesterOutput(lambda _: None), path.read_bytes()
    output.heard(data[: len(data) // 2])
    output.heard(data[len(data) // 2 :])
    with tempfile.TemporaryDirectory() as name:
        made = gate_samples.record(bands=(output.band(1 << 20, 1.5),), versions={"memtester": output.version})
        gate_records.write(Path(name, "gates"), made)
        (one,) = gate_records.filed(Path(name, "gates"))
        assert one.record == made, one.problem


_MEMTESTER = b"""memtester version 4.6.0 (64-bit)
want 1MB (1048576 bytes)
got  1MB (1048576 bytes), trying mlock ...locked.
Loop 1/1:
  Stuck Address       : ok
  Solid Bits          : \b\bFAILURE: 0x0000000000000001 != 0x0000000000000000 at offset 0x0000000000abc008.
Done.
"""


READERS: Mapping[str, Reader] = {
    "digests": Reader("demo.digests.json", _digests, lambda path: digests.read(path, path.name)),
    "build record": Reader(f"{_HASH}.json", _written(_record), lambda path: buildrecord.read(path.parent, _HASH)),
    "state": Reader("state.json", _written(_state), lambda path: RunDirectory(path.parent).read_state()),
    "holder": Reader("holder", _holder, _holds),
    "memo": Reader("verified.json", _written(_memo, "verified.json"), lambda path: HashCache.load(_private(path))),
    "revocation": Reader(
        f"{_HASH}.json",
        _written(lambda directory: Revocations(directory / "a", directory / "b").add(_HASH, "wrong", 1.0), "a/*"),
        lambda path: Revocations(path.parent, path.parent / "none").reason(_HASH),
    ),
    "seen version": Reader(
        f"{_HASH}.json",
        lambda: canonical.encode({"schema": "nvllm.seen/1", "version": 1, "sha256": _HASH}),
        lambda path: Versions(path.parent).newest(_HASH),
    ),
    "kernel report": Reader(
        f"{_HASH}.json",
        _written(lambda directory: KernelReports(directory).add(_HASH, [MissingKernel("A", "zero", 1.0, "i32")])),
        lambda path: KernelReports(path.parent).read(_HASH),
    ),
    "trials": Reader(
        "trials.jsonl",
        _written(lambda directory: TrialCache(directory, _HASH, "cpu").remember(_HASH, Trial("good")), "*.jsonl"),
        lambda path: TrialCache(_moved(path, path.parent / "trials" / _trials_name()), _HASH, "cpu").recall(_HASH),
    ),
    "gate record": Reader(
        "memory-20261117T122640Z.json", lambda: documents.encode(gates.FORM, gate_samples.PASSED), _gate
    ),
    "memtester": Reader("memtester.txt", lambda: _MEMTESTER, _memtester),
    "first journal": Reader("journal.jsonl", _first_journal, lambda path: journal.load(path).state),
    "archive": Reader("image.tar", _written(_archive), _stored),
}


def _trials_name() -> str:
    with tempfile.TemporaryDirectory() as name:
        TrialCache(Path(name), _HASH, "cpu").remember(_HASH, Trial("good"))
        (path,) = Path(name).iterdir()
        return path.name
