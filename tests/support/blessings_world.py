"""A small compile cache on disk, manifests that bless it, and a child process that is killed at a trace point."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from nvllm.cache import cachetree, manifest
from nvllm.cache import store as treestore
from nvllm.cache.blessings import BlessingQuery, Blessings
from nvllm.cache.cachetree import Rule, Tree, TreeDirectory, TreeFile
from nvllm.cache.manifest import ColdStart, Manifest, PhaseTime, TrialRecord
from nvllm.cache.store import TreeStore
from nvllm.core import clock
from nvllm.core.plan import LaunchPlan
from nvllm.core.refusal import refuse_any
from nvllm.serve import servehash
from support.plansamples import PLAN

NOW = 1_790_000_000.0
AOT = f"torch_compile_cache/torch_aot_compile/{'ab' * 32}"
LOCKS = f"{AOT}/inductor_cache/locks"
FILES: Mapping[str, tuple[bytes, int]] = {
    f"{AOT}/rank_0_0/model": (b"a pickle" * 40_000, 0o600),
    f"{AOT}/inductor_cache/c4/c45.so": (b"\x7fELF code", 0o755),
    f"{AOT}/inductor_cache/c4/c45.cpp": (b"int main;", 0o644),
    "modelinfos/Lfm2.json": (b"{}", 0o600),
}
OTHER_USER = 65534
"""The uid and gid of nobody, who has a name on every host: ssh-keygen runs for nobody without one."""
CURE = "nvllm bless demo --profile eager --rebless"


TREE = cachetree.of(
    [TreeFile("a/model", 3, "0444", "0" * 64)],
    [TreeDirectory(".", "0555"), TreeDirectory("a", "0555"), TreeDirectory("locks", "0755")],
)
"""A tree that lies nowhere."""


def other_tree(number: int) -> Tree:
    return cachetree.of([TreeFile("a/model", 3, "0444", f"{number:064x}")], TREE.directories)


def cache(root: Path) -> Path:
    """Write a cache at ROOT as a cold compile leaves it: its modes, its empty lock files."""
    for path, (data, mode) in FILES.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        place.chmod(mode)
    (root / LOCKS).mkdir(parents=True)
    (root / LOCKS / "c45.lock").touch(0o644)
    for directory, _, _ in os.walk(root):
        Path(directory).chmod(0o755)
    return root


def read_tree(root: Path, cure: str, *, owner: int | None = None, left_out: Rule = cachetree.nothing) -> Tree:
    """Return the tree at ROOT. Raises Refused with everything in it that is not fit."""
    tree, refusals = cachetree.walk(root, cure, cachetree.digest, owner=owner, left_out=left_out)
    refuse_any(refusals)
    return tree


def leftovers(store: TreeStore) -> list[Path]:
    """Return what unfinished writes have left in STORE."""
    return sorted(store.root.glob("partial-*"))


def stored(tmp_path: Path, written: Set[str] = cachetree.WRITTEN) -> tuple[TreeStore, Tree]:
    """Return a store below TMP_PATH that holds the cache, whose directories WRITTEN an engine writes into; its tree."""
    store = TreeStore(tmp_path / "trees")
    return store, store.adopt(cache(tmp_path / "fresh"), CURE, written=written)


def writable(path: Path) -> Path:
    """Give everything from PATH up to the store back the right to be written, as a tampering owner would."""
    path.parent.chmod(0o755)
    if path.exists() and not path.is_symlink():
        path.chmod(0o755 if path.is_dir() else 0o644)
    return path


def trial(number: int, **changes: Any) -> TrialRecord:
    base = TrialRecord(
        number=number,
        boot=f"{number:064x}",
        coherent=True,
        independent=True,
        loaded=True,
        saved=False,
        unchanged=True,
        prompts=2,
        replays=16,
        compiles=0,
        kv_tokens=4096,
        peak_memory=1 << 30,
        processor=25.0,
        phases=(PhaseTime("server", 20.5),),
        log="e" * 64,
    )
    return dataclasses.replace(base, **changes)


def bless(tree: Tree, plan: LaunchPlan = PLAN, trials: int = 5, **changes: Any) -> Manifest:
    """Return a manifest for TREE and PLAN with TRIALS good trials, and CHANGES to its fields."""
    made = tuple(trial(number) for number in range(1, trials + 1))
    base = Manifest(
        schema=manifest.SCHEMA,
        label="demo-eager",
        image=plan.image,
        profile=plan.profile,
        version=1,
        created=clock.stamp(NOW - 3600),
        expires=None,
        unsafe=trials < manifest.LEAST_BOOTS,
        domain=servehash.DOMAIN,
        serve_hash=servehash.serve_hash(plan),
        factors=servehash.factors(plan),
        build_hash=plan.build_hash,
        tree_hash=tree.hash,
        tree=tree,
        claim=manifest.claimed(made, None),
        trials=made,
        kv_tokens=4096,
        phases=(PhaseTime("server", 20.5),),
        cold=ColdStart((PhaseTime("compile", 30.5), PhaseTime("server", 20.5)), 80.0, compiles=2, saved=1, kernels=3),
    )
    return dataclasses.replace(base, **changes)


def blessings(tmp_path: Path) -> Blessings:
    return Blessings(tmp_path / "project/manifests/blessed", tmp_path / "state/blessings")


def query(plan: LaunchPlan = PLAN, **changes: Any) -> BlessingQuery:
    factors: Mapping[str, Any] = servehash.factors(plan)
    base = BlessingQuery(plan.image, plan.profile, servehash.serve_hash(plan), factors, dev=False, now=NOW)
    return dataclasses.replace(base, **changes)


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a child ended: as subprocess.CompletedProcess says it."""

    returncode: int
    stdout: bytes
    stderr: bytes


def child(program: str, *arguments: str) -> Ended:
    """Run PROGRAM with ARGUMENTS in a child process, in which everything is imported already.

    A fork takes milliseconds where a new Python takes the better part of a second. What it is left with dies with it.
    """
    out, err = os.pipe(), os.pipe()  # no files: a child may have a limit on what it can write to those
    process = os.fork()
    if process == 0:
        status = 1
        try:
            os.dup2(out[1], 1)
            os.dup2(err[1], 2)
            sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), write_through=True)
            sys.argv = ["-c", *arguments]
            exec(program, {"__name__": "__main__"})
            status = 0
        except BaseException:  # noqa: BLE001 - nothing of the tests may go on in the child
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)
    os.close(out[1])
    os.close(err[1])
    with open(out[0], "rb") as said, open(err[0], "rb") as complained:
        texts = said.read(), complained.read()
    return Ended(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), *texts)


@contextlib.contextmanager
def as_another_user() -> Iterator[tuple[Path, Callable[..., str]]]:
    """Yield a directory, and what runs a program in a child and returns its stdout.

    The program calls `become_another_user`. Then it is no longer root, whom no mode keeps out, but the owner of the
    directory and of everything in it, whom a directory of mode 0 keeps out.
    """

    def run(program: str, *arguments: str) -> str:
        if os.geteuid() == 0:
            for place, _, names in os.walk(name):
                for one in (place, *(os.path.join(place, below) for below in names)):
                    os.chown(one, OTHER_USER, OTHER_USER)
        done = child(program, *arguments)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    with tempfile.TemporaryDirectory() as name:
        try:
            yield Path(name), run
        finally:  # so that whoever is not root can remove it
            for place, below, _ in os.walk(name):
                for one in below:
                    os.chmod(os.path.join(place, one), 0o700)


def become_another_user() -> None:
    """In a child process: from here on be OTHER_USER, if this is root."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(OTHER_USER)
        os.setuid(OTHER_USER)


def environment() -> dict[str, str]:
    """Return the environment in which a new Python finds the package and the tests' helpers."""
    package = Path(sys.modules[treestore.__name__].__file__ or "").parents[2]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([os.fspath(package), os.fspath(Path(__file__).parents[1])])}
