"""Garbage: on a cache tree that is made up, exactly what nothing refers to, nothing that is young, nothing in use."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvllm.cache.store import TreeStore
from nvllm.core import clock
from nvllm.core.paths import Places, Project
from nvllm.core.refusal import Refusal, Refused
from nvllm.gc import garbage
from nvllm.gc.garbage import Kind, Piece, References
from nvllm.host import gate_records
from nvllm.host.facts import INSTANCE_LABEL, ContainerFact, ImageFacts, StoredImage
from nvllm.image import buildrecord
from nvllm.image.buildrecord import Record
from nvllm.serve import planner, startup
from support import blessings_world, gate_samples
from support.plansamples import PLAN, places

OLD, NOW = 1000.0, 5000.0

NOTHING = References(frozenset(), frozenset(), frozenset(), frozenset())


@dataclass
class Cache:
    """A cache and a state as nvllm leaves them, with two of everything: one that is referred to and one that is not."""

    places: Places

    def put(self, path: Path, data: bytes = b"12345", when: float = OLD) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (when, when))
        return path

    def tree(self, path: Path, when: float = OLD) -> Path:
        self.put(path / "usr/bin/tool", b"123")
        self.put(path / "usr/lib", b"1234567")
        for directory, _, _ in os.walk(path, topdown=False):
            os.utime(directory, (when, when))
        return path

    def layer(self, key: str, diff_id: str, when: float = OLD) -> Path:
        self.put(self.places.layers / f"{key}.json", json.dumps({"diff_id": diff_id, "size": 5}).encode(), when)
        return self.put(self.places.layers / f"{key}.tar", when=when)

    def run(self, name: str, when: float = OLD) -> Path:
        path = self.places.runs / name
        self.put(path / "state.json", b"{}")
        os.utime(path, (when, when))
        return path

    def pieces(
        self, referred: References = NOTHING, *containers: ContainerFact, oldest: float = NOW
    ) -> list[tuple[Kind, str]]:
        return [(one.kind, one.name) for one in garbage.files(self.places, referred, containers, oldest)]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(places(tmp_path))


def sha(digit: str) -> str:
    return digit * 64


def filled(cache: Cache) -> References:
    """Fill CACHE with two of everything, and return what refers to one of each."""
    where = cache.places
    for digit in "ab":
        cache.put(where.store / "sha256" / (digit * 2) / sha(digit))
        cache.put(where.layers / "bytecode" / f"{sha(digit)}-0123456789abcdef.zip")
        cache.put(where.builds / f"{sha(digit)}.json")
        cache.layer(f"layer-{digit}", f"sha256:{digit}")
        cache.tree(where.layers / f"tree-{digit}.tree")
    cache.put(where.store / "partial" / sha("c"))
    cache.tree(where.differing / "0123456789ab")
    return References(
        frozenset({sha("a")}),
        frozenset({sha("a")}),
        frozenset({"sha256:a"}),
        frozenset({where.layers / "tree-a.tree"}),
    )


def ours(name: str, *, running: bool = True) -> ContainerFact:
    return ContainerFact(name, {INSTANCE_LABEL: name}, running, "4f" * 32)


# What goes


def test_exactly_what_nothing_refers_to(cache: Cache) -> None:
    assert cache.pieces(filled(cache)) == [
        ("locked file", sha("b")),
        ("partial download", sha("c")),
        ("layer", "layer-b.tar"),
        ("base tree", "tree-b.tree"),
        ("bytecode", f"{sha('b')}-0123456789abcdef.zip"),
        ("record", f"{sha('b')}.json"),
        ("differing build", "0123456789ab"),
    ]


def test_sizes_are_those_of_the_files(cache: Cache) -> None:
    found = {one.kind: one for one in garbage.files(cache.places, filled(cache), (), NOW)}
    tree = cache.places.layers / "tree-b.tree"
    named: dict[Kind, list[Path]] = {
        "locked file": [cache.places.store / "sha256/bb" / sha("b")],
        "layer": [cache.places.layers / "layer-b.tar", cache.places.layers / "layer-b.json"],
        "base tree": [tree, *tree.rglob("*")],
    }
    for kind, paths in named.items():
        assert found[kind].size == sum(path.lstat().st_blocks * 512 for path in paths) > 0, kind


def test_what_is_younger_stays(cache: Cache) -> None:
    filled(cache)
    assert cache.pieces(oldest=OLD) == []
    cache.layer("layer-young", "sha256:young", when=NOW)
    cache.put(cache.places.store / "partial/young", when=NOW + 1)
    found = cache.pieces(oldest=NOW)
    assert len(found) == 12
    assert not [name for _, name in found if "young" in name]


def test_an_empty_cache_has_no_garbage(cache: Cache) -> None:
    assert cache.pieces() == []


def test_locks_and_notes_are_no_garbage(cache: Cache) -> None:
    """A lock file that is unlinked lets two processes lock two files of one name."""
    cache.put(cache.places.layers / "layer-a.lock")
    cache.put(cache.places.locks / "guard.lock")
    cache.put(cache.places.state / "verified.json")
    cache.put(cache.places.state / "supervisors/nvllm-demo-eager.log")
    assert cache.pieces() == []


@pytest.mark.parametrize("note", [None, b"", b"{", b"[]", b"null", b"{}", b"\xff"])
def test_a_layer_without_a_note_that_can_be_read_is_nobodys(cache: Cache, note: bytes | None) -> None:
    referred = filled(cache)
    path = cache.places.layers / "layer-a.json"
    path.unlink()
    if note is not None:
        cache.put(path, note)
    assert ("layer", "layer-a.tar") in cache.pieces(referred)


# Instances


def test_a_cache_that_a_manifest_names_stays(cache: Cache) -> None:
    store = TreeStore(cache.places.trees)
    tree = store.adopt(blessings_world.cache(cache.places.cache / "fresh"), blessings_world.CURE)
    os.utime(store.path(tree.hash), (OLD, OLD))
    assert cache.pieces(replace(NOTHING, blessed=frozenset({tree.hash}))) == []
    assert cache.pieces() == [("blessed cache", tree.hash)]
    for piece in garbage.files(cache.places, NOTHING, (), NOW):
        garbage.remove(piece, cache.places)
    assert store.list() == []
    assert blessings_world.leftovers(store) == []


def test_the_cache_that_is_mounted_in_a_container_stays(cache: Cache) -> None:
    """It was blessed anew while it is served: no manifest in force names what runs."""
    store = TreeStore(cache.places.trees)
    tree = store.adopt(blessings_world.cache(cache.places.cache / "fresh"), blessings_world.CURE)
    os.utime(store.path(tree.hash), (OLD, OLD))
    served = planner.loading(PLAN, tree)
    running = ContainerFact(served.instance, startup.labels(served, Path("/runs/it")), True, "4f" * 32)
    assert cache.pieces(NOTHING, running) == []
    assert cache.pieces(NOTHING, replace(running, labels=startup.labels(PLAN, Path("/runs/it")))) == [
        ("blessed cache", tree.hash)
    ]


def test_a_cache_that_only_an_archived_manifest_names_goes_and_that_is_said(cache: Cache) -> None:
    store = TreeStore(cache.places.trees)
    tree = store.adopt(blessings_world.cache(cache.places.cache / "fresh"), blessings_world.CURE)
    os.utime(store.path(tree.hash), (OLD, OLD))
    for referred, note in [
        (NOTHING, ""),
        (replace(NOTHING, archived=frozenset({tree.hash})), "only an archived manifest names it"),
    ]:
        (piece,) = garbage.files(cache.places, referred, (), NOW)
        assert (piece.kind, piece.name, piece.note) == ("blessed cache", tree.hash, note)


def test_staged_copies_of_what_runs_or_is_being_blessed_stay(cache: Cache) -> None:
    store = TreeStore(cache.places.trees)
    tree = store.adopt(blessings_world.cache(cache.places.cache / "fresh"), blessings_world.CURE)
    for name in ("nvllm-demo-ended", "nvllm-demo-eager", "nvllm-demo-tried"):
        store.stage(tree, cache.places.staged / name, blessings_world.CURE)
        os.utime(cache.places.staged / name, (OLD, OLD))
    referred = replace(NOTHING, blessed=frozenset({tree.hash}), instances=frozenset({"nvllm-demo-tried"}))
    assert cache.pieces(referred, ours("nvllm-demo-eager")) == [("staged cache", "nvllm-demo-ended")]
    (piece,) = garbage.files(cache.places, referred, [ours("nvllm-demo-eager")], NOW)
    garbage.remove(piece, cache.places)
    assert not (cache.places.staged / "nvllm-demo-ended").exists()
    assert (cache.places.staged / "nvllm-demo-eager").is_dir()


def test_the_run_directory_of_a_running_instance_stays(cache: Cache) -> None:
    for name in ("nvllm-demo-eager", "nvllm-demo-other"):
        cache.run(name)
    assert cache.pieces(NOTHING, ours("nvllm-demo-eager")) == [("run directory", "nvllm-demo-other")]


def test_a_container_that_only_has_the_name_keeps_nothing(cache: Cache) -> None:
    cache.run("nvllm-demo-eager")
    foreign = ContainerFact("nvllm-demo-eager", {}, True, "aa" * 32)
    renamed = replace(foreign, labels={INSTANCE_LABEL: "another"})
    assert cache.pieces(NOTHING, foreign, renamed) == [("run directory", "nvllm-demo-eager")]


def test_a_run_that_just_began_stays(cache: Cache) -> None:
    """Its container is not there yet."""
    cache.run("nvllm-demo-eager", when=NOW)
    assert cache.pieces() == []


def test_evidence_that_a_manifest_names_stays_and_so_does_the_last(cache: Cache) -> None:
    instance = cache.places.blessing / "nvllm-demo-eager"
    for number in ("1", "2", "3", "4"):
        cache.put(instance / number / "trial-1/engine.log", number.encode())
        os.utime(instance / number, (OLD, OLD))
    named = replace(NOTHING, logs=frozenset({hashlib.sha256(b"2").hexdigest()}))
    assert cache.pieces(named) == [
        ("evidence of a bless", "nvllm-demo-eager/1"),
        ("evidence of a bless", "nvllm-demo-eager/3"),
    ]
    assert cache.pieces(replace(NOTHING, instances=frozenset({"nvllm-demo-eager"}))) == []
    for piece in garbage.files(cache.places, named, (), NOW):
        garbage.remove(piece, cache.places)
    assert sorted(path.name for path in instance.iterdir()) == ["2", "4"]


# Images


def image(build_hash: str, *tags: str) -> StoredImage:
    return StoredImage(ImageFacts("sha256:" + build_hash, (), tags, 7), ((f"sha256:layer-{build_hash}", 7),))


def recorded(cache: Cache, *builds: str, when: float = OLD) -> None:
    for build_hash in builds:
        buildrecord.write(cache.places.builds, Record("cpu", build_hash, "sha256:" + build_hash, ()))
        os.utime(cache.places.builds / f"{build_hash}.json", (when, when))


def image_names(cache: Cache, found: list[StoredImage], containers: list[ContainerFact], *builds: str) -> list[str]:
    referred = replace(NOTHING, builds=frozenset(builds))
    return [one.name for one in garbage.images(cache.places, found, containers, referred, NOW)]


def test_older_generations_go_and_the_present_one_stays(cache: Cache) -> None:
    recorded(cache, "a", "b", "c")
    found = [image("a", "nvllm:cpu-a", "nvllm:cpu"), image("b", "nvllm:cpu-b"), image("c")]
    assert image_names(cache, found, [], "a") == ["nvllm:cpu-b", "sha256:c"]


def test_an_image_is_known_by_whichever_of_its_ids_the_engine_says(cache: Cache) -> None:
    buildrecord.write(cache.places.builds, Record("cpu", "b", "sha256:config", (), "sha256:manifest"))
    os.utime(cache.places.builds / "b.json", (OLD, OLD))
    for name in ("sha256:config", "sha256:manifest"):
        named = StoredImage(ImageFacts(name, (), ("nvllm:cpu-b",), 7), ())
        assert image_names(cache, [named], [], "a") == ["nvllm:cpu-b"]


def test_an_image_that_was_just_built_stays(cache: Cache) -> None:
    recorded(cache, "b", when=NOW)
    assert image_names(cache, [image("b", "nvllm:cpu-b")], [], "a") == []


def test_an_image_that_is_on_nobodys_record_here_stays(cache: Cache) -> None:
    recorded(cache, "a")
    assert image_names(cache, [image("b", "nvllm:cpu-b")], []) == []


@pytest.mark.parametrize("running", [True, False])
def test_an_image_that_a_container_was_started_from_stays(cache: Cache, running: bool) -> None:
    recorded(cache, "b", "c")
    used = ContainerFact("nvllm-demo-eager", {"nvllm.build-hash": "b"}, running, "4f" * 32)
    found = [image("b", "nvllm:cpu-b"), image("c", "nvllm:cpu-c")]
    assert image_names(cache, found, [used], "a") == ["nvllm:cpu-c"]
    assert cache.pieces(NOTHING, used) == [("record", "c.json")]


def test_beside_a_project_that_cannot_be_read_only_that_goes_which_it_cannot_need(cache: Cache) -> None:
    recorded(cache, "known", "unknown", "both", "older")
    mine, gone = Project(cache.places.cache / "mine"), Project(cache.places.cache / "gone")
    for build_hash, makers in {"known": [mine], "unknown": [gone], "both": [mine, gone]}.items():
        for one in makers:
            buildrecord.use(cache.places, one, build_hash)
    filled(cache)
    cache.run("nvllm-demo-other")
    vanished = Refusal("NV914", str(gone.root), "the project", "nothing", "nvllm gc --forget it")
    referred = replace(NOTHING, projects=frozenset({mine.id}), unknown=(vanished,))
    stored = [image(name, f"nvllm:cpu-{name}") for name in ("known", "unknown", "both", "older")]
    pieces = garbage.images(cache.places, stored, [], referred, NOW)
    assert [piece.name for piece in pieces] == ["nvllm:cpu-known"]
    assert cache.pieces(referred) == [
        ("partial download", sha("c")),
        ("record", "known.json"),
        ("differing build", "0123456789ab"),
        ("run directory", "nvllm-demo-other"),
    ]
    forgotten = replace(referred, projects=frozenset({mine.id, gone.id}), unknown=())
    assert len(list(garbage.images(cache.places, stored, [], forgotten, NOW))) == 4
    lost = replace(referred, unknown=())  # its entry in the list of projects is gone
    pieces = garbage.images(cache.places, stored, [], lost, NOW)
    assert [piece.name for piece in pieces] == ["nvllm:cpu-known", "nvllm:cpu-older"]


def test_a_container_without_a_build_hash_keeps_nothing(cache: Cache) -> None:
    recorded(cache, "b")
    other = ContainerFact("other", {}, True, "aa" * 32)
    assert image_names(cache, [image("b", "nvllm:cpu-b")], [other]) == ["nvllm:cpu-b"]


# Removing


def test_removing_leaves_what_is_referred_to(cache: Cache) -> None:
    referred = filled(cache)
    cache.run("nvllm-demo-other")
    for piece in list(garbage.files(cache.places, referred, (), NOW)):
        garbage.remove(piece, cache.places)
    assert cache.pieces(referred) == []
    left = {path.name for path in cache.places.layers.iterdir()}
    assert left == {"layer-a.tar", "layer-a.json", "tree-a.tree", "bytecode"}
    assert (cache.places.store / "sha256/aa" / sha("a")).exists()
    assert list(cache.places.runs.iterdir()) == []


def test_the_note_of_a_layer_goes_before_the_layer(cache: Cache) -> None:
    """Killed between the two, what is left is a tar that nobody trusts. Here the note cannot be removed."""
    tar = cache.layer("key", "sha256:a")
    note = tar.with_suffix(".json")
    note.unlink()
    note.mkdir()
    with pytest.raises(OSError):
        garbage.remove(Piece("layer", tar.name, 5, tar), cache.places)
    assert tar.exists()


def test_a_layer_whose_note_is_gone_is_removed(cache: Cache) -> None:
    tar = cache.layer("key", "sha256:a")
    tar.with_suffix(".json").unlink()
    garbage.remove(Piece("layer", tar.name, 5, tar), cache.places)
    assert not tar.exists()


def test_what_is_gone_already_is_well(cache: Cache) -> None:
    """Two may clear up at once."""
    for kind in ("locked file", "layer"):
        garbage.remove(Piece(kind, "gone", 0, cache.places.layers / "gone.tar"), cache.places)


def test_a_link_is_removed_and_not_followed(cache: Cache, tmp_path: Path) -> None:
    precious = cache.tree(tmp_path / "precious")
    cache.places.runs.mkdir(parents=True)
    link = cache.places.runs / "link"
    link.symlink_to(precious)
    os.utime(link, (OLD, OLD), follow_symlinks=False)
    (piece,) = garbage.files(cache.places, NOTHING, (), NOW)
    assert piece.size == link.lstat().st_blocks * 512
    garbage.remove(piece, cache.places)
    assert (precious / "usr/bin/tool").exists()
    assert not link.is_symlink()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.sampled_from("ab")), st.sets(st.sampled_from("ab")))
def test_what_is_referred_to_never_goes(tmp_path_factory: pytest.TempPathFactory, one: set[str], two: set[str]) -> None:
    cache = Cache(places(tmp_path_factory.mktemp("cache")))
    filled(cache)
    referred = References(
        frozenset(map(sha, one)),
        frozenset(map(sha, two)),
        frozenset(f"sha256:{digit}" for digit in one),
        frozenset(cache.places.layers / f"tree-{digit}.tree" for digit in two),
    )
    gone = cache.pieces(referred)
    assert len(gone) == len(set(gone)) == 12 - 2 * len(one) - 3 * len(two)


# Records of hardware gates


def gate_record(cache: Cache, age: float, **changes: object) -> Path:
    """Put a record of a memory gate that is AGE days old, and return its path."""
    made = gate_samples.record(**{"measured": clock.stamp(NOW_OF_GATES - age * gate_samples.DAY), **changes})
    path = gate_records.write(cache.places.gates, made)
    os.utime(path, (OLD, OLD))
    return path


NOW_OF_GATES = gate_samples.NOW


def test_a_record_that_satisfies_no_profile_goes_and_the_newest_of_each_machine_stays(cache: Cache) -> None:
    elsewhere = replace(gate_samples.HERE, id="1" * 64)
    ages = [(90, gate_samples.HERE), (89, elsewhere), (60, gate_samples.HERE), (45, gate_samples.HERE)]
    oldest, _, old, _ = [gate_record(cache, age, machine=one) for age, one in ages]
    (cache.places.gates / "memory-20260101T000000Z.json").write_text("damaged")
    (cache.places.gates / "notes.json").write_text("not ours")
    found = [one for one in garbage.files(cache.places, NOTHING, (), NOW_OF_GATES) if one.kind == "gate record"]
    assert [one.path for one in found] == [oldest, old]
    assert found[0].size == oldest.stat().st_blocks * 512
    patient = replace(NOTHING, gate_days=frozenset({("memory", 70), ("memory", 3), ("disk", 3650)}))
    assert cache.pieces(patient, oldest=NOW_OF_GATES) == [("gate record", oldest.name)]
    for one in found:
        garbage.remove(one, cache.places)
    assert cache.pieces(oldest=NOW_OF_GATES) == []


def test_no_record_younger_than_thirty_days_goes(cache: Cache) -> None:
    for age in (29, 2, 1):
        gate_record(cache, age)
    assert cache.pieces(oldest=NOW_OF_GATES) == []


def test_records_that_cannot_be_listed_are_refused(cache: Cache) -> None:
    cache.places.state.mkdir(parents=True)
    cache.places.gates.write_text("")
    with pytest.raises(Refused) as caught:
        cache.pieces()
    assert [one.code for one in caught.value.refusals] == ["NV109"]
