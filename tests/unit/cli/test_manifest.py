"""`nvllm manifest`: each command, on text and as JSON, and its exit code."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from nvllm.cache import manifest, promotion
from nvllm.cache.blessings import Blessings
from nvllm.cache.cachetree import Tree
from nvllm.cache.store import TreeStore
from nvllm.cli.main import main
from nvllm.core.refusal import Refused
from support.blessings_world import FILES, NOW, TREE, as_another_user, bless, cache, other_tree, query, writable


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Blessings, TreeStore, Tree]:
    """Stand in a project with one blessing, whose cache is on this host."""
    for directory in ("images", "manifests", "patches"):
        (tmp_path / "project" / directory).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    store = TreeStore(tmp_path / "home/cache/trees")
    tree = store.adopt(cache(tmp_path / "fresh"), "bless")
    held = Blessings(tmp_path / "project/manifests/blessed", tmp_path / "home/state/blessings")
    promotion.promote(held, bless(tree, created="2026-01-01T00:00:00Z"))
    return held, store, tree


def said(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 0) -> Any:
    assert main(["--json", "manifest", *argv]) == status
    printed = json.loads(capsys.readouterr().out)
    assert printed["command"] == f"manifest {argv[0]}"
    return printed["result"] if status == 0 else [one["code"] for one in printed["refusals"]]


def test_list(world: tuple[Blessings, TreeStore, Tree], capsys: pytest.CaptureFixture[str]) -> None:
    held, store, tree = world
    (held.directory / "broken_0000000.json").write_bytes(b"{")
    one, other = said(capsys, "list")["blessings"]
    assert (one["state"], other["state"], other["tree_hash"], other["here"]) == ("damaged", "in force", tree.hash, True)
    store.remove(tree.hash)
    assert said(capsys, "list")["blessings"][1]["here"] is False
    assert main(["manifest", "list"]) == 0
    out = capsys.readouterr().out
    assert "in force" in out
    assert "damaged" in out


LIST_AS_ANOTHER = """
import os, sys
from nvllm.cli.main import main
from support.blessings_world import become_another_user

become_another_user()
os.chdir(sys.argv[1] + "/project")
os.environ["NVLLM_HOME"] = sys.argv[1] + "/home"
print(main(["--json", "manifest", "list"]))
"""


def test_list_for_a_user_who_cannot_look_at_the_revocations(capsys: pytest.CaptureFixture[str]) -> None:
    """Revoked by root under umask 077, and listed by somebody else: it was once shown as in force."""
    assert main(["--json", "manifest", "--help"]) == 0  # so that the child has nothing left to import
    capsys.readouterr()
    with as_another_user() as (directory, run):
        for name in ("images", "manifests", "patches"):
            (directory / "project" / name).mkdir(parents=True)
        held = Blessings(directory / "project/manifests/blessed", directory / "home/state/blessings")
        promotion.promote(held, bless(TREE))
        held.revocations.add(TREE.hash, "wrong tokens", NOW)
        held.revocations.project.chmod(0)
        *document, status = run(LIST_AS_ANOTHER, str(directory)).splitlines()
    found = json.loads("\n".join(document))
    assert (status, found["ok"]) == ("3", False)
    assert [one["state"] for one in found["result"]["blessings"]] == ["revoked"]
    (one,) = found["refusals"]
    assert (one["code"], one["where"]) == ("NV903", str(held.revocations.project))
    assert one["cure"] == f"chmod a+rx {held.revocations.project}"


def test_list_of_nothing(world: tuple[Blessings, TreeStore, Tree], capsys: pytest.CaptureFixture[str]) -> None:
    held, _, _ = world
    next(iter(held.all())).path.unlink()
    assert main(["manifest", "list"]) == 0
    assert "nothing is blessed" in capsys.readouterr().out


def test_show(world: tuple[Blessings, TreeStore, Tree], capsys: pytest.CaptureFixture[str]) -> None:
    _, _, tree = world
    found = said(capsys, "show", "demo-eager")
    assert (found["state"], found["manifest"]["tree_hash"]) == ("in force", tree.hash)
    assert main(["manifest", "show", "demo-eager"]) == 0
    out = capsys.readouterr().out
    assert tree.hash in out
    assert "5, all good: at least 54 % of boots are" in out
    assert "80 answers to 10 prompts; repeats" in out
    assert "1 saved; 2 compiles in its log, 3 kernels in no cache" in out
    assert found["signed"] is False
    trials, phases = (table.splitlines() for table in out.split("\n\n")[1:])
    assert trials[0].split("  ")[0] == "trial"
    signs = [line.split()[:6] for line in trials[1:]]
    assert signs == [[str(number), "yes", "yes", "yes", "no", "yes"] for number in range(1, 6)]
    assert {tuple(line.split()[6:9]) for line in trials[1:]} == {("16", "0", "4096")}
    assert phases[0].split() == ["seconds", "of", "compile", "server", "processor"]
    assert [line.split() for line in phases[1:3]] == [["bootstrap", "30.5", "20.5", "80.0"], ["1", "-", "20.5", "25.0"]]
    assert said(capsys, "show", "none", status=2) == ["NV107"]


def test_verify(world: tuple[Blessings, TreeStore, Tree], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, store, tree = world
    assert said(capsys, "verify", "demo-eager")["tree_hash"] == tree.hash
    assert main(["manifest", "verify", "demo-eager"]) == 0
    assert f"{len(FILES)} files as blessed" in capsys.readouterr().out
    assert said(capsys, "verify", "demo-eager", "--signers", str(tmp_path / "none"), status=3) == ["NV909"]
    writable(store.path(tree.hash) / next(iter(FILES))).write_bytes(b"tampered")
    assert set(said(capsys, "verify", "demo-eager", status=3)) == {"NV907"}


def test_revoke(world: tuple[Blessings, TreeStore, Tree], capsys: pytest.CaptureFixture[str]) -> None:
    held, _, tree = world
    assert said(capsys, "revoke", "demo-eager", status=2) == ["NV108"]
    found = said(capsys, "revoke", "demo-eager", "--reason", "wrong tokens")
    assert found["record"] == f"manifests/blessed/revoked/{tree.hash}.json"
    assert held.revocations.reason(tree.hash) == "wrong tokens"
    assert said(capsys, "verify", "demo-eager", status=3) == ["NV903"]
    assert said(capsys, "list")["blessings"][0]["state"] == "revoked"


@pytest.fixture
def archived(world: tuple[Blessings, TreeStore, Tree]) -> tuple[Blessings, str]:
    """Another blessing of the serve hash is in force, by another tree; also return the file of the archived one."""
    held, _, _ = world
    (old,) = held.all()
    promotion.promote(held, bless(other_tree(1), version=2, created="2026-01-02T00:00:00Z"), old)
    (gone,) = held.archived()
    return held, gone.path.stem


def test_restore_what_was_in_force_before(
    world: tuple[Blessings, TreeStore, Tree], archived: tuple[Blessings, str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, store, tree = world
    held, name = archived
    assert held.restorable() == {tree.hash}
    assert said(capsys, "restore", "demo-eager", status=3) == ["NV108", "NV907"], "in force, and its tree lies nowhere"
    found = said(capsys, "restore", name)
    assert (found["version"], found["restored"], found["tree_hash"], found["signed"]) == (3, 1, tree.hash, False)
    (now,) = held.all()
    assert now.manifest is not None
    assert held.lookup(query()) == now.manifest
    before = held.named(name).manifest
    assert before is not None
    assert dataclasses.replace(now.manifest, version=1) == before, (
        "its trials, its age and its end are those that it had"
    )
    assert held.restorable() == {other_tree(1).hash}
    said(capsys, "restore", f"{name[:-1]}2", status=3)  # its tree lies nowhere
    writable(store.path(tree.hash) / next(iter(FILES))).write_bytes(b"tampered")
    assert "NV907" in said(capsys, "restore", name, status=3)
    assert held.all() == (now,)


def test_what_is_not_restored(
    world: tuple[Blessings, TreeStore, Tree], archived: tuple[Blessings, str], capsys: pytest.CaptureFixture[str]
) -> None:
    held, name = archived
    before = held.named(name).manifest
    assert before is not None
    place = held.signature(before)
    place.parent.mkdir()
    place.write_bytes(b"a signature")
    assert said(capsys, "restore", name, status=3) == ["NV909"], "its new version has to be signed as well"
    place.unlink()
    held.revocations.add(before.tree_hash, "wrong tokens", NOW)
    assert said(capsys, "restore", name, status=3) == ["NV903"]
    assert [one.manifest.version for one in held.all() if one.manifest is not None] == [2]


def test_what_was_in_force_before(
    world: tuple[Blessings, TreeStore, Tree], archived: tuple[Blessings, str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, store, tree = world
    held, name = archived
    assert [one["archived"] for one in said(capsys, "list")["blessings"]] == [False]
    one, other = said(capsys, "list", "--all")["blessings"]
    assert (one["state"], other["archived"], other["tree_hash"], other["here"]) == ("in force", True, tree.hash, True)
    assert other["state"].startswith("archived, "), "this host has seen the newer one"
    assert main(["manifest", "list", "--all"]) == 0
    assert name in capsys.readouterr().out
    for called in (name, f"{name}.json", tree.hash, tree.hash[:7]):
        found = said(capsys, "show", called)
        assert (found["archived"], found["manifest"]["version"]) == (True, 1)
    assert said(capsys, "show", "demo-eager")["manifest"]["version"] == 2, "a label is that of the one in force"
    assert said(capsys, "verify", name, status=3) == ["NV906"]
    assert store.has(tree.hash)
    (held.directory / "archive/broken_0000000_v1.json").write_bytes(b"{")
    assert said(capsys, "list", "--all")["blessings"][1]["state"] == "archived, damaged"
    assert said(capsys, "show", "broken_0000000_v1", status=3) == ["NV908"]


def test_what_was_in_force_before_is_revoked(
    world: tuple[Blessings, TreeStore, Tree],
    archived: tuple[Blessings, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It would be served again on a host that never saw the newer one, once somebody brings it back."""
    _, _, tree = world
    held, name = archived
    found = said(capsys, "revoke", name, "--reason", "wrong tokens")
    assert (found["tree_hash"], found["manifests"]) == (tree.hash, [f"{name}.json"])
    (gone,) = held.archived()
    (new,) = held.all()
    new.path.write_bytes(gone.path.read_bytes())
    elsewhere = dataclasses.replace(held, memory=tmp_path / "another host")
    with pytest.raises(Refused, match="wrong tokens"):
        elsewhere.lookup(query())


@pytest.mark.parametrize("digits", [7, 64])
def test_a_tree_hash_is_revoked(
    world: tuple[Blessings, TreeStore, Tree], digits: int, capsys: pytest.CaptureFixture[str]
) -> None:
    held, _, tree = world
    found = said(capsys, "revoke", tree.hash[:digits], "--reason", "wrong tokens")
    assert found["manifests"] == [one.path.name for one in held.all()]
    assert held.revocations.reason(tree.hash) == "wrong tokens"


def test_the_tree_of_a_damaged_manifest_is_revoked_by_its_hash(
    world: tuple[Blessings, TreeStore, Tree], capsys: pytest.CaptureFixture[str]
) -> None:
    held, _, tree = world
    (one,) = held.all()
    one.path.write_bytes(b"{" + one.path.read_bytes())
    assert said(capsys, "revoke", one.path.stem, "--reason", "wrong tokens", status=3) == ["NV908"]
    assert said(capsys, "revoke", tree.hash[:12], "--reason", "wrong tokens", status=2) == ["NV107"]
    assert said(capsys, "revoke", tree.hash, "--reason", "wrong tokens")["manifests"] == []
    assert held.revocations.reason(tree.hash) == "wrong tokens"


@pytest.mark.parametrize(
    "factor", [b"1152921504606846976", b'"\\ud800"', b"[" * 990 + b"]" * 990, b"1" + b"0" * 400, b"NaN"]
)
def test_one_bad_manifest_is_in_the_way_of_no_other(
    world: tuple[Blessings, TreeStore, Tree], capsys: pytest.CaptureFixture[str], factor: bytes
) -> None:
    held, _, tree = world
    (good,) = held.all()
    bad = held.directory / "bad_1234567.json"
    text = good.path.read_bytes().replace(b'"factors": {', b'"factors": {"x": ' + factor + b",", 1)
    bad.write_bytes(text.replace(query().serve_hash.encode(), b"1" * 64))
    assert [one["state"] for one in said(capsys, "list")["blessings"]] == ["damaged", "in force"]
    assert said(capsys, "show", bad.stem, status=3) == ["NV908"]
    assert said(capsys, "show", good.path.stem)["state"] == "in force"
    assert said(capsys, "verify", good.path.stem)["tree_hash"] == tree.hash
    assert held.lookup(query()).tree_hash == tree.hash
    assert promotion.next_version(held, query().serve_hash) == 2
    assert said(capsys, "revoke", good.path.stem, "--reason", "wrong tokens")["tree_hash"] == tree.hash
    assert said(capsys, "revoke", bad.stem, "--reason", "wrong tokens", status=3) == ["NV908"]


def test_a_name_of_several_trees_revokes_none(
    world: tuple[Blessings, TreeStore, Tree], archived: tuple[Blessings, str], capsys: pytest.CaptureFixture[str]
) -> None:
    held, _ = archived
    for number in (2, 3):
        (now,) = held.all()
        promotion.promote(held, bless(other_tree(number), version=number + 1), now)
    (now,) = held.all()
    now.path.unlink()
    assert said(capsys, "revoke", "demo-eager", "--reason", "wrong tokens", status=2) == ["NV107"]
    assert not held.revocations.project.exists()


def test_a_manifest_is_the_same_on_the_command_line(
    world: tuple[Blessings, TreeStore, Tree], capsys: pytest.CaptureFixture[str]
) -> None:
    held, _, _ = world
    (one,) = held.all()
    assert one.manifest is not None
    assert said(capsys, "show", "demo-eager")["manifest"] == json.loads(manifest.encode(one.manifest))
