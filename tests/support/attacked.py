"""What is attacked at each boundary of its writing: everything that a later command of nvllm trusts."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from nvllm.bisect import journal
from nvllm.bisect.records import Skip
from nvllm.bisect.trial_cache import TrialCache
from nvllm.cache import manifest, promotion
from nvllm.cache.store import TreeStore
from nvllm.core.lock import Lock
from nvllm.core.paths import Project
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.gc.projects import Projects
from nvllm.host import locks as holds
from nvllm.host.locks import Holder, Key
from nvllm.image import buildrecord
from nvllm.image.buildrecord import Record
from nvllm.kernels import devicecode
from nvllm.layers import tarlayer
from nvllm.layers.cache import LayerCache
from nvllm.layers.tarlayer import Layer
from nvllm.lock import lockdoc
from nvllm.models.memo import HashCache as Hashes
from nvllm.models.memo import Known
from nvllm.patches import edit as patchedit
from nvllm.patches import seriesfile
from nvllm.serve.rundir import Death, InstanceState, RunDirectory
from nvllm.sources.store import Store
from nvllm.trials.trial import Trial
from support import codesamples, locks, series_samples
from support.bisect_world import free, start
from support.blessings_world import CURE, NOW, TREE, bless, blessings, leftovers, other_tree, query, read_tree
from support.boundaries import Scenario
from support.plansamples import PLAN
from support.series_samples import MappingTree


def nothing(_: Path) -> None:
    """Prepare nothing: there is no old one."""


def only(code: str, refused: Refused) -> None:
    """Raise REFUSED again unless all that it says is CODE."""
    if {one.code for one in refused.refusals} != {code}:
        raise refused


# The content store

BYTES = b"the locked bytes" * 1000
SHA = hashlib.sha256(BYTES).hexdigest()


def adopt_file(place: Path, _: int) -> None:
    store = Store(place / "store")
    with store.locked(SHA):
        if not store.has(SHA):
            store.partial(SHA).write_bytes(BYTES)
            store.adopt(store.partial(SHA), SHA)


def file_found(place: Path) -> str:
    store = Store(place / "store")
    for name in store.list():
        assert hashlib.sha256(store.path(name).read_bytes()).hexdigest() == name
    return "new" if store.has(SHA) else "old"


# The store of trees


def fresh(place: Path) -> None:
    """A cache of what there is in one: a file of more than one read, code that is executable, a place for locks."""
    root = place / "fresh"
    (root / "locks").mkdir(parents=True)
    (root / "model").write_bytes(b"a pickle" * 20_000)
    (root / "code.so").write_bytes(b"code")
    (root / "code.so").chmod(0o755)


def adopt_tree(place: Path, _: int) -> None:
    TreeStore(place / "trees").adopt(place / "fresh", CURE)


def tree_found(place: Path) -> str:
    """Whatever has the name of a tree is that tree; what else lies there is said to be nothing."""
    store = TreeStore(place / "trees")
    for name in store.list():
        assert read_tree(store.path(name), CURE).hash == name
    others = {path.name for path in store.root.glob("*")} - {*store.list(), *(path.name for path in leftovers(store))}
    assert others == set()
    return "new" if store.list() else "old"


def stored(place: Path) -> None:
    fresh(place)
    adopt_tree(place, 0)


def remove_tree(place: Path, _: int) -> None:
    store = TreeStore(place / "trees")
    for name in store.list():
        store.remove(name)


def removal_found(place: Path) -> str:
    return {"new": "old", "old": "new"}[tree_found(place)]


def stage(place: Path, who: int) -> None:
    """Stage the stored tree as a serve does, and leave the copy as the engine would be given it."""
    tree = read_tree(_only(place / "trees"), CURE)
    staged = TreeStore(place / "trees").stage(tree, place / f"staged-{who}", CURE)
    os.symlink(staged.path, place / f"mounted-{who}")


def staged_found(place: Path) -> str:
    """Only a copy that is whole is ever mounted, and whatever happens to a copy, the stored tree stays what it is."""
    tree = read_tree(_only(place / "trees"), CURE)
    assert tree.hash == _only(place / "trees").name
    mounted = sorted(place.glob("mounted-*"))
    for one in mounted:
        assert read_tree(one.resolve(), CURE) == tree
    return "new" if mounted else "old"


def _only(directory: Path) -> Path:
    (one,) = (path for path in directory.iterdir() if not path.name.startswith("partial-"))
    return one


# What is in force

OLD = bless(TREE)


@functools.cache
def _bless(who: int, version: int) -> manifest.Manifest:
    return bless(other_tree(1 + who), version=version)


def promote_first(place: Path, who: int) -> None:
    held = blessings(place)
    promotion.promote(held, _bless(who, promotion.next_version(held, PLAN.serve_hash)))


def rebless(place: Path, who: int) -> None:
    held = blessings(place)
    new = _bless(who, promotion.next_version(held, PLAN.serve_hash))
    promotion.promote(held, new, held.named("demo-eager"), b"signature of " + str(who).encode())


def blessed(place: Path) -> None:
    promotion.promote(blessings(place), OLD)


def in_force(place: Path) -> str:
    """By the lookup of a serve. A new blessing brings all that it needs: its signature, its archived predecessor."""
    held = blessings(place)
    for kept in (held.directory / "archive").glob("*.json"):
        manifest.read(kept, kept.name)
    try:
        found = held.lookup(query())
    except Refused as refused:
        only("NV901", refused)
        return "old"
    if found == OLD:
        return "old"
    who = int(found.tree.files[0].sha256, 16) - 1
    if (held.directory / "archive").is_dir():
        assert held.signature(found).read_bytes() == b"signature of " + str(who).encode()
        assert manifest.read(held.directory / "archive" / OLD.archived, OLD.archived) == OLD
    return f"new {who}"


def revoke(place: Path, _: int) -> None:
    blessings(place).revocations.add(OLD.tree_hash, "wrong tokens", NOW)


def revoked_found(place: Path) -> str:
    try:
        found = blessings(place).lookup(query())
    except Refused as refused:
        only("NV903", refused)
        return "new"
    assert found == OLD
    return "old"


# The series that people write


def old_series(place: Path) -> None:
    series_samples.two_patches(place)
    series_samples.write_tree(place / "before", series_samples.SOURCE)
    after = series_samples.changed(one=(b"one 5\n", b"one five\n"))
    series_samples.write_tree(place / "after", after)


def _series(place: Path) -> Path:
    return place / "patches/v1"


def new_patch(place: Path, _: int) -> None:
    proof = ["tests/unit/test_x.py::test_x"]
    diff = patchedit.compare(place / "before", place / "after", "after")
    patchedit.add(_series(place), "patches/v1", "third", "s", proof, diff)


def patch_found(place: Path) -> str:
    """A patch file without an entry is refused as one; its cure leaves what was before."""
    try:
        series = seriesfile.load(_series(place), "patches/v1")
    except Refused as refused:
        only("NV104", refused)
        (stray,) = refused.refusals
        assert stray.cure.startswith("remove it")
        (_series(place) / Path(stray.where).name).unlink()
        series = seriesfile.load(_series(place), "patches/v1")
    assert len(seriesfile.diffs(_series(place), series.patches, "patches/v1")) == len(series.patches)
    return "old" if len(series.patches) == 2 else "new"


def _moved() -> dict[str, bytes]:
    """The source with other line numbers, by which the second patch is to be written again."""
    return {**series_samples.SOURCE, "vllm/two.py": b"import x\n" * 9 + series_samples.SOURCE["vllm/two.py"]}


def refresh_patch(place: Path, _: int) -> None:
    patchedit.refresh(_series(place), "patches/v1", "second", MappingTree(_moved()))


def refresh_found(place: Path) -> str:
    """A patch file that is not the one of its entry is refused as one; its cure is to say that it is meant."""
    try:
        series = seriesfile.load(_series(place), "patches/v1")
    except Refused as refused:
        only("NV105", refused)
        (half,) = refused.refusals
        entries = _series(place) / seriesfile.NAME
        entries.write_text(entries.read_text().replace(half.expected.split()[1], half.found.split()[1]))
        series = seriesfile.load(_series(place), "patches/v1")
    found = seriesfile.diffs(_series(place), series.patches, "patches/v1")["second"]
    return "new" if found.files[0].hunks[0].old_start == 26 else "old"


# Whose things must stay


def remember_project(place: Path, _: int) -> None:
    Projects(place / "state/projects").remember(Project(place))


def project_found(place: Path) -> str:
    roots = [*Projects(place / "state/projects").roots().values()]
    assert roots in ([], [place])
    return "new" if roots else "old"


# The lock of an image, and what is known of builds


@functools.cache
def _lock(epoch: int) -> Lock:
    return dataclasses.replace(locks.GOOD, epoch=epoch)


def write_lock(place: Path, who: int) -> None:
    lockdoc.write(place / "manifests/demo.lock.json", _lock(1 + who))


def old_lock(place: Path) -> None:
    lockdoc.write(place / "manifests/demo.lock.json", locks.GOOD)


def lock_found(place: Path) -> str:
    found = lockdoc.read(place / "manifests/demo.lock.json", "manifests/demo.lock.json")
    return "old" if found == locks.GOOD else f"new {found.epoch - 1}"


def _record(image: str) -> Record:
    return Record("demo", "b" * 64, image, ())


def write_record(place: Path, who: int) -> None:
    buildrecord.write(place / "builds", _record(f"new {who}"))


def old_record(place: Path) -> None:
    buildrecord.write(place / "builds", _record("old"))


def record_found(place: Path) -> str:
    found = buildrecord.read(place / "builds", "b" * 64)
    assert found is not None
    assert found == _record(found.image_id)
    return found.image_id


def make_layer(place: Path, _: int) -> None:
    LayerCache(place / "layers").layer("demo", {"a": 1}, _layer)


def _layer(path: Path) -> Layer:
    return tarlayer.write("demo", [tarlayer.blob("a", BYTES)], epoch=1, path=path, progress=Silent())


def layer_found(place: Path) -> str:
    """A layer is taken only if it is whole; one that is not is made again, by whoever asks for it."""
    made = []

    def make(path: Path) -> Layer:
        made.append(path)
        return _layer(path)

    layer = LayerCache(place / "layers").layer("demo", {"a": 1}, make)
    assert f"sha256:{hashlib.sha256(layer.path.read_bytes()).hexdigest()}" == layer.diff_id
    return "old" if made else "new"


def model_file(place: Path) -> None:
    (place / "model").touch()


def remember_hash(place: Path, _: int) -> None:
    known = Hashes.load(place / "state/verified.json")
    known.put((place / "model").stat(), Known(SHA, 2**20, b""), (1 << 63) - 1)
    known.save()


def hash_found(place: Path) -> str:
    found = Hashes.load(place / "state/verified.json").get((place / "model").stat())
    assert found in {None, SHA}
    return "old" if found is None else "new"


def wheel_with_code(place: Path) -> None:
    code = codesamples.container([codesamples.code("ptx sm_80")])
    codesamples.wheel(place, {"p/libx.so": codesamples.library(code)})


def remember_code(place: Path, _: int) -> None:
    (wheel,) = place.glob("*.whl")
    devicecode.cached_libraries(wheel, wheel.name, SHA, place / "device-code")


def code_found(place: Path) -> str:
    """What is remembered is what is in the wheel; what is not whole is not remembered, and read again."""
    (wheel,) = place.glob("*.whl")
    found = [path for path in (place / "device-code").glob("*.json") if path.stat().st_size]
    if found:
        assert devicecode.cached_libraries(wheel, wheel.name, SHA, place / "device-code") == devicecode.libraries(
            wheel, "w"
        )
    return "new" if found else "old"


# Instances, locks and bisects


def prepare_run(place: Path, who: int) -> None:
    """As a start does: what is mounted, the plan, the first line of evidence, and then that there is a start."""
    with _locked(place):
        run = RunDirectory(place / "runs/i")
        run.prepare({"who": who}, b"{}" * 40_000, ("drain",))
        run.say(1.0, "started", {"who": who})
        run.keep([b"a line of the engine"])
        run.write_state(_state(8001 + who))


def run_found(place: Path) -> str:
    """Without a state nobody takes it for a start, and the next start begins with nothing of it."""
    found = RunDirectory(place / "runs/i").read_state()
    return "old" if found is None else f"new {found.port - 8001}"


DEATH = Death(2.0, "NV703 engine died", ("Segmentation fault",))


def died_once(place: Path) -> None:
    """An engine has died; its supervisor has recorded that, and starts the next one."""
    run = RunDirectory(place / "runs/i")
    run.prepare({"who": "first"}, b"{}", ("drain",))
    run.say(1.0, "started", {"who": "first"})
    run.write_state(dataclasses.replace(_state(8000), stage="restarting", deaths=(DEATH,)))


def restart(place: Path, who: int) -> None:
    with _locked(place):
        run = RunDirectory(place / "runs/i")
        run.prepare_again({"who": who}, b"{}" * 40_000, ("drain",))
        run.say(3.0, "started", {"who": who})
        run.write_state(dataclasses.replace(_state(8001 + who), deaths=(DEATH,)))


def restart_found(place: Path) -> str:
    """The death stays known at every instant: it is in the state, which is replaced whole."""
    run = RunDirectory(place / "runs/i")
    found = run.read_state()
    assert found is not None
    assert found.deaths == (DEATH,)
    return "old" if found.port == 8000 else f"new {found.port - 8001}"


def _state(port: int) -> InstanceState:
    return InstanceState("i", "demo", "eager", False, "ready", "b" * 64, "c" * 64, port, 1, "d" * 64, 1.0)


def write_state(place: Path, who: int) -> None:
    RunDirectory(place).write_state(_state(8001 + who))


def old_state(place: Path) -> None:
    RunDirectory(place).write_state(_state(8000))


def state_found(place: Path) -> str:
    found = RunDirectory(place).read_state()
    assert found is not None
    assert found == _state(found.port)
    return "old" if found.port == 8000 else f"new {found.port - 8001}"


@contextlib.contextmanager
def _locked(place: Path) -> Iterator[holds.HeldLocks]:
    holder = Holder(os.getpid(), "2026-11-20T10:00:00Z", "nvllm bisect run")
    with holds.acquire_all(place / "locks", [Key("bisect", "demo"), Key("port", "8000")], holder) as taken:
        yield taken


def take_locks(place: Path, _: int) -> None:
    """Do something, under the locks, that cannot be done by two at once."""
    with _locked(place) as taken:
        os.mkdir(place / "inside")
        taken.annotate("d" * 64)
        os.rmdir(place / "inside")
        (place / "done").touch()


def locks_found(place: Path) -> str:
    """Whoever held the locks and died holds them no more, and what he had written into them does not matter."""
    assert holds.status(place / "locks") == ()
    with _locked(place), contextlib.suppress(FileNotFoundError):
        os.rmdir(place / "inside")
    return "new" if (place / "done").exists() else "old"


def journalled(place: Path, who: int) -> None:
    path = place / "bisect/journal.jsonl"
    with _locked(place):
        try:
            log = journal.load(path)
        except Refused as refused:
            only("NV107", refused)
            log = journal.create(path, start(free(2)))
        log.append(Skip((f"p0{1 + who}",)))


def journal_found(place: Path) -> str:
    try:
        records = [entry.record for entry in journal.load(place / "bisect/journal.jsonl").entries]
    except Refused as refused:
        only("NV107", refused)
        return "old"
    assert records[0] == start(free(2))
    match records[-1]:
        case Skip((patch,)):
            return f"new {int(patch[1:]) - 1}"
        case last:
            assert last == records[0]
            return "old"


def remember_trial(place: Path, _: int) -> None:
    with _locked(place):
        trials = TrialCache(place / "memo", "a" * 64, "cpu-x86_64")
        trials.remember("b" * 64, Trial("good"))


def trial_found(place: Path) -> str:
    found = TrialCache(place / "memo", "a" * 64, "cpu-x86_64").recall("b" * 64)
    assert set(found) <= {Trial("good")}
    return "new" if found else "old"


_LOCKS = frozenset({"NV513", "NV920"})
_REFRESHED = frozenset({"NV105"})
"""Whoever looks at the series while another writes the one file and not yet the other."""
SECOND = frozenset({"NV902", "NV906"})
"""Whoever wants to bring a blessing into force and comes second."""

SCENARIOS: Mapping[str, Scenario] = {
    one.name: one
    for one in [
        Scenario("store: a file comes", nothing, adopt_file, file_found, frozenset({"NV920"})),
        Scenario("trees: a tree comes", fresh, adopt_tree, tree_found, frozenset({"NV911"})),
        Scenario("trees: a tree goes", stored, remove_tree, removal_found, frozenset({"NV911"})),
        Scenario("staging", stored, stage, staged_found, frozenset({"NV911"})),
        Scenario("promotion: bless", nothing, promote_first, in_force, frozenset({"NV911"}), SECOND),
        Scenario("promotion: rebless, signed", blessed, rebless, in_force, frozenset({"NV911"}), SECOND),
        Scenario("revocation", blessed, revoke, revoked_found, frozenset({"NV911"})),
        Scenario("image lock", old_lock, write_lock, lock_found, frozenset({"NV920"})),
        Scenario("build record", old_record, write_record, record_found, frozenset({"NV920"})),
        Scenario("layer", nothing, make_layer, layer_found, frozenset({"NV920"})),
        Scenario("hashes of models", model_file, remember_hash, hash_found, frozenset({"NV920"})),
        Scenario("patch new", old_series, new_patch, patch_found, frozenset({"NV920"}), frozenset({"NV104"})),
        Scenario("patch refresh", old_series, refresh_patch, refresh_found, frozenset({"NV920"}), _REFRESHED),
        Scenario("projects that are remembered", nothing, remember_project, project_found, frozenset({"NV911"})),
        Scenario("device code of wheels", wheel_with_code, remember_code, code_found, frozenset({"NV920"})),
        Scenario("run directory", nothing, prepare_run, run_found, _LOCKS, frozenset({"NV508"})),
        Scenario("restart in a run directory", died_once, restart, restart_found, _LOCKS, frozenset({"NV508"})),
        Scenario("state of an instance", old_state, write_state, state_found, frozenset({"NV920"})),
        Scenario("locks", nothing, take_locks, locks_found, _LOCKS, frozenset({"NV508"})),
        Scenario("journal", nothing, journalled, journal_found, _LOCKS | {"NV806"}, frozenset({"NV508"})),
        Scenario("trials of bisects", nothing, remember_trial, trial_found, _LOCKS, frozenset({"NV508"}), strict=False),
    ]
}
