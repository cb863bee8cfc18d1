"""Every file and directory that nvllm trusts, in each bad condition, and what nvllm answers then.

`tests/unit/test_trusted_files.py` walks the table, and `tools/trusted_files.py` writes it as a page. A world is made
for each cell. It belongs to an ordinary user, as whom the question is asked; who is root makes everything his first.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from nvllm.cache import manifest, promotion, signature
from nvllm.cache.pins import Pin, Pins
from nvllm.cache.store import TreeStore
from nvllm.core import paths
from nvllm.core.lock import LockedModel
from nvllm.core.refusal import Refused
from nvllm.host import gate_records
from nvllm.host import locks as hostlocks
from nvllm.host.locks import Holder, Key
from nvllm.image import buildrecord, digests
from nvllm.image.buildrecord import Record
from nvllm.image.digests import BuildDigests, Digests, LayerDigest
from nvllm.lock import lockdoc
from nvllm.models.memo import HashCache
from nvllm.models.modeltree import tree_of, verify
from nvllm.serve import rundir
from nvllm.serve.rundir import InstanceState, RunDirectory
from support import blessings_world, gate_samples, locks
from support.blessings_world import CURE, NOW, OTHER_USER, TREE, bless, blessings, other_tree, query

STRANGER = 4343
"""A uid that is neither root's, nor the asking user's."""

GOOD = "as usual"
"""The answer of most rows where nothing is wrong."""

HASH = "b" * 64
KEY = Key("serve", HASH)
PIN = "state/pins/one.json"


@dataclasses.dataclass(frozen=True)
class Row:
    """What is trusted, as the page calls it (NAME), and where (PATH in the world, which PREPARE makes).

    ASK returns the answer. ANSWERS has the expected one for each condition, USUAL is that where nothing is wrong.
    """

    name: str
    path: str
    prepare: Callable[[Path], None]
    ask: Callable[[Path], str]
    answers: Mapping[str, str]
    usual: str = GOOD


def codes(refused: Refused) -> str:
    return ", ".join(dict.fromkeys(one.code for one in refused.refusals))


# What is done to the path. A directory is emptied, or replaced; a file is emptied, cut, or replaced.


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _absent(path: Path) -> None:
    _remove(path)


def _empty(path: Path) -> None:
    is_directory, mode = path.is_dir(), path.stat().st_mode & 0o777
    _remove(path)
    path.mkdir(mode=mode) if is_directory else path.touch(mode)


def _other_kind(path: Path) -> None:
    is_directory = path.is_dir()
    _remove(path)
    path.touch(0o600) if is_directory else path.mkdir(0o700)


def _dangling(path: Path) -> None:
    _remove(path)
    path.symlink_to(path.with_name("nowhere"))


def _link_to_empty(path: Path) -> None:
    _remove(path)
    elsewhere = path.with_name("elsewhere")
    elsewhere.mkdir(0o700)
    path.symlink_to(elsewhere)


def _loop(path: Path) -> None:
    _remove(path)
    path.symlink_to(path.name)


def _other_owner(path: Path) -> None:
    path.chmod(0o755 if path.is_dir() else 0o644)  # so that it can be read all the same


def _closed(path: Path) -> None:
    path.chmod(0)


def _world_writable(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o002)


def _group_writable(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o020)


def _torn(path: Path) -> None:
    if path.is_dir():  # what one of several files says is lost
        path = max((one for one in path.rglob("*") if one.is_file()), key=lambda one: one.stat().st_size, default=path)
    if path.is_file():
        mode = path.stat().st_mode
        path.chmod(0o600)
        os.truncate(path, path.stat().st_size // 2)
        path.chmod(mode)


CONDITIONS: Mapping[str, Callable[[Path], None]] = {
    "absent": _absent,
    "empty": _empty,
    "other kind": _other_kind,
    "dangling link": _dangling,
    "link to an empty directory": _link_to_empty,
    "loop": _loop,
    "other owner": _other_owner,
    "no permission": _closed,
    "world-writable": _world_writable,
    "group-writable": _group_writable,
    "torn": _torn,
}


# The worlds, and what is asked of them


def _looked_up(world: Path) -> str:
    try:
        blessings(world).lookup(query())
    except Refused as refused:
        return codes(refused)
    return GOOD


def _blessed(world: Path) -> None:
    """A blessing in force, and the revocation of another tree both in the project and in the memory."""
    known = blessings(world)
    promotion.promote(known, bless(TREE))
    known.revocations.add(other_tree(2).hash, "wrong tokens", NOW)


def _revoked_in(which: str) -> Callable[[Path], None]:
    def prepare(world: Path) -> None:
        known = blessings(world)
        promotion.promote(known, bless(TREE))
        known.revocations.add(TREE.hash, "wrong tokens", NOW)
        other = known.revocations.memory if which == "project" else known.revocations.project
        shutil.rmtree(other)

    return prepare


def _signed(world: Path) -> None:
    """A blessing in force with the signature that its profile demands."""
    made, key = bless(TREE), world / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ops", "-f", str(key)], check=True)
    promotion.promote(blessings(world), made, signed=signature.sign(manifest.encode(made), key, made.filename))
    _signers(world).write_text(f"ops@example.org {key.with_suffix('.pub').read_text()}")
    _signers(world).chmod(0o644)


def _signers(world: Path) -> Path:
    return world / "project/manifests/allowed_signers"


def _demanded(world: Path) -> str:
    try:
        blessings(world).lookup(query(signers=_signers(world)))
    except Refused as refused:
        return codes(refused)
    return GOOD


def _pinned(world: Path) -> None:
    """A pin that a process holds: this one, until it ends."""
    paths.ensure(world / "state/pins")
    descriptor = os.open(world / PIN, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    Pin(world / PIN, descriptor, [HASH]).write()


def _kept(world: Path) -> str:
    """What `gc` keeps because of pins."""
    try:
        with Pins(world / "state/pins").still() as names:
            return GOOD if HASH in names else "not kept"
    except Refused as refused:
        return codes(refused)


def _locked(world: Path) -> None:
    holder = Holder(os.getpid(), "2026-11-20T10:00:00Z", "nvllm serve")
    hostlocks.acquire_all(world / "state/locks", [KEY], holder).release()


def _lock(world: Path) -> str:
    try:
        hostlocks.status(world / "state/locks")
        holder = Holder(os.getpid(), "2026-11-20T10:00:00Z", "nvllm serve")
        hostlocks.acquire_all(world / "state/locks", [KEY], holder).release()
    except Refused as refused:
        return codes(refused)
    return GOOD


def _settled() -> int:
    return 1 << 62


def _model(world: Path) -> LockedModel:
    tree, files = tree_of(world / "model")
    return LockedModel("directory", tree, files)


def _hashed(world: Path) -> None:
    (world / "model").mkdir()
    (world / "model/weights").write_bytes(b"weights")
    os.chown(world / "model/weights", OTHER_USER if os.geteuid() == 0 else -1, -1)  # before, for it moves the time
    hashes = HashCache.load(world / "state/verified.json", _settled)
    assert verify(_model(world), world / "model", hashes, cure=CURE) == []


def _memo(world: Path) -> str:
    known = HashCache.load(world / "state/verified.json").get((world / "model/weights").stat())
    return GOOD if known is not None else "hashed again"


def _tree(world: Path) -> None:
    TreeStore(world / "cache/trees").adopt(blessings_world.cache(world / "fresh"), CURE)


def _verified(world: Path) -> str:
    """The tree is read from the copy it was made of, which nobody touched; the store must hold the same."""
    owner = (world / "fresh").stat().st_uid
    tree = blessings_world.read_tree(world / "fresh", CURE, owner=owner, left_out=_lock_files).sealed()
    try:
        TreeStore(world / "cache/trees").verify(tree, CURE)
    except Refused as refused:
        return codes(refused)
    return GOOD


def _lock_files(path: str, _info: os.stat_result) -> bool:
    return path.endswith(".lock")


def _recorded(world: Path) -> None:
    (world / "project/manifests").mkdir(parents=True)
    layer = LayerDigest("patch", f"sha256:{HASH}", 5)
    built = BuildDigests(HASH, (layer,), f"sha256:{HASH}", f"sha256:{HASH}")
    digests.write(_digests(world), Digests(digests.SCHEMA, "demo", {"linux/amd64": built}))


def _digests(world: Path) -> Path:
    return world / "project/manifests/demo.digests.json"


def _record(world: Path) -> str:
    try:
        found = digests.read(_digests(world), str(_digests(world)))
    except Refused as refused:
        return codes(refused)
    return "not recorded" if found is None else GOOD


def _image_locked(world: Path) -> None:
    (world / "project/manifests").mkdir(parents=True)
    lockdoc.write(world / "project/manifests/demo.lock.json", locks.GOOD)


def _image_lock(world: Path) -> str:
    try:
        lockdoc.read(world / "project/manifests/demo.lock.json", "manifests/demo.lock.json")
    except Refused as refused:
        return codes(refused)
    return GOOD


def _gated(world: Path) -> None:
    (world / "state").mkdir()
    gate_records.write(world / "state/gates", gate_samples.PASSED)


def _gate(world: Path) -> str:
    """What a profile is told that requires the gate."""
    try:
        filed = gate_records.filed(world / "state/gates")
    except Refused as refused:
        return codes(refused)
    return GOOD if filed and all(one.record is not None for one in filed) else "NV516"


STATE = InstanceState("i", "demo", "eager", False, "ready", HASH, HASH, 8001, 1, HASH, 1.0)


def _running(world: Path) -> None:
    run = RunDirectory(world / "state/runs/i")
    run.prepare({}, b"{}", ())
    run.write_state(STATE)


def _runs(world: Path) -> str:
    try:
        rundir.private_directory(world / "state/runs")
    except Refused as refused:
        return codes(refused)
    return GOOD if RunDirectory(world / "state/runs/i").read_state() == STATE else "not shown"


def _built(world: Path) -> None:
    buildrecord.write(world / "state/builds", Record("demo", HASH, f"sha256:{HASH}", ()))


def _build(world: Path) -> str:
    try:
        return "NV302" if buildrecord.read(world / "state/builds", HASH) is None else GOOD
    except Refused as refused:
        return codes(refused)


def _every(answer: str, **others: str) -> Mapping[str, str]:
    """Return ANSWER for every condition but OTHERS, in which ``_`` stands for a space and ``__`` for a hyphen."""
    named = {name.replace("__", "-").replace("_", " "): other for name, other in others.items()}
    assert named.keys() <= CONDITIONS.keys()
    return {condition: named.get(condition, answer) for condition in CONDITIONS}


_TREE_FILE = f"{TREE.hash}.json"
_SERVED = bless(TREE)
_DIRECTORY = {"absent": GOOD, "empty": GOOD, "torn": GOOD}
"""A directory in which something may be missing."""
_GIT = {"group__writable": GOOD}
"""git makes such files where the umask is 002."""
_BY_HASH = {"other_owner": GOOD, "world__writable": GOOD, "group__writable": GOOD}
"""What lies there is compared with hashes, or only shown."""

ROWS: tuple[Row, ...] = (
    Row(
        "revocations of the project",
        "project/manifests/blessed/revoked",
        _blessed,
        _looked_up,
        _every("NV903", **_DIRECTORY, **_GIT),
    ),
    Row(
        "a revocation of the project",
        f"project/manifests/blessed/revoked/{_TREE_FILE}",
        _revoked_in("project"),
        _looked_up,
        _every("NV903", absent=GOOD),
        "NV903",
    ),
    Row(
        "revocations of this host",
        "state/blessings/revoked",
        _blessed,
        _looked_up,
        _every("NV903", **_DIRECTORY),
    ),
    Row(
        "a revocation of this host",
        f"state/blessings/revoked/{_TREE_FILE}",
        _revoked_in("memory"),
        _looked_up,
        _every("NV903", absent=GOOD),
        "NV903",
    ),
    Row("the memory of this host", "state/blessings", _blessed, _looked_up, _every("NV903, NV906", **_DIRECTORY)),
    Row(
        "the newest version seen",
        f"state/blessings/{_SERVED.serve_hash}.json",
        _blessed,
        _looked_up,
        _every("NV906", absent=GOOD),
    ),
    Row(
        "manifests",
        "project/manifests/blessed",
        _blessed,
        _looked_up,
        _every("NV908", absent="NV901", empty="NV901", **_GIT),
    ),
    Row(
        "a manifest",
        f"project/manifests/blessed/{_SERVED.filename}",
        _blessed,
        _looked_up,
        _every("NV908", absent="NV901", **_GIT),
    ),
    Row("allowed signers", "project/manifests/allowed_signers", _signed, _demanded, _every("NV909")),
    Row("pins", "state/pins", _pinned, _kept, _every("NV513", absent="not kept", empty="not kept", torn="NV109")),
    Row(
        "a pin",
        PIN,
        _pinned,
        _kept,
        _every("NV513", absent="not kept", empty="not kept", no_permission="NV109", torn="NV109"),
    ),
    Row("the store of caches", "cache/trees", _tree, _verified, _every("NV907", **_BY_HASH)),
    Row("locks of serves", "state/locks", _locked, _lock, _every("NV513", **_DIRECTORY)),
    Row("a lock of a serve", f"state/locks/{KEY.filename}", _locked, _lock, _every("NV513", **_DIRECTORY)),
    Row("hashes of models", "state/verified.json", _hashed, _memo, _every("hashed again")),
    Row(
        "recorded digests",
        "project/manifests/demo.digests.json",
        _recorded,
        _record,
        _every("NV109", absent="not recorded", empty="NV309", torn="NV309", **_BY_HASH),
    ),
    Row(
        "the lock of an image",
        "project/manifests/demo.lock.json",
        _image_locked,
        _image_lock,
        _every("NV109", absent="NV201", dangling_link="NV201", empty="NV210", torn="NV210", **_BY_HASH),
    ),
    Row("records of gates", "state/gates", _gated, _gate, _every("NV109", absent="NV516", empty="NV516", torn="NV516")),
    Row(
        "run directories",
        "state/runs",
        _running,
        _runs,
        _every("NV513", absent="not shown", empty="not shown", no_permission="not shown", torn="not shown"),
    ),
    Row("the state of an instance", "state/runs/i/state.json", _running, _runs, _every("not shown", **_BY_HASH)),
    Row(
        "records of builds",
        "state/builds",
        _built,
        _build,
        _every("NV513", absent="NV302", empty="NV302", torn="NV302"),
    ),
    Row(
        "the record of a build",
        f"state/builds/{HASH}.json",
        _built,
        _build,
        _every("NV513", absent="NV302", empty="NV302", torn="NV302"),
    ),
)


ASKED = """
import sys
from pathlib import Path
from support import trusted_table
from support.blessings_world import become_another_user

become_another_user()
print(trusted_table.asked(sys.argv[1], Path(sys.argv[2])))
"""


def asked(name: str, world: Path) -> str:
    """Return the answer of the row NAME in WORLD, or the exception that a user would see as a crash."""
    row = next(row for row in ROWS if row.name == name)
    try:
        return row.ask(world)
    except (OSError, ValueError, AssertionError) as error:
        return f"crash: {error!r}"


def answers(row: Row) -> Iterator[tuple[str, str]]:
    """Yield each condition, and what is answered in it; also `GOOD`, in which nothing is wrong."""
    for condition, change in {GOOD: lambda _: None, **CONDITIONS}.items():
        if condition == "other owner" and os.geteuid() != 0:
            continue  # only root gives a file away
        with tempfile.TemporaryDirectory() as name:
            world = Path(name)
            row.prepare(world)
            change(world / row.path)
            if os.geteuid() == 0:
                for place, below, files in os.walk(world):
                    for one in (place, *(os.path.join(place, entry) for entry in (*below, *files))):
                        if os.lstat(one).st_uid != OTHER_USER:  # a second one would move the change time
                            os.chown(one, OTHER_USER, OTHER_USER, follow_symlinks=False)
            if condition == "other owner":
                os.chown(world / row.path, STRANGER, STRANGER)
            done = blessings_world.child(ASKED, row.name, name)
            yield condition, done.stdout.decode().strip() or f"crash: {done.stderr.decode()}"
