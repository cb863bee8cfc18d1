"""`nvllm dev`: from patches to commits that git itself edits, and back; no engine, a small image of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nvllm.patches import proofs, seriesfile
from nvllm.spec import specfile
from support import layersamples
from support.buildable import IMAGE, Buildable

PATCHES = ("guard", "key", "top", "end")
WHO = {f"GIT_{part}_{what}": "dev" for part in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
PROOF = "tests/test_new.py::test_new"


class Dev:
    """A work tree of a small image with four patches, and its project."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.made = Buildable(root, PATCHES)
        self.project = self.made.project
        self.tree = root / "tree"
        self._capsys = capsys
        status, document = self.nvllm("start", IMAGE, str(self.tree))
        assert status == 0, document
        self.base = document["result"]["base"]

    def nvllm(self, *words: str) -> tuple[int, dict[str, Any]]:
        return self.made.nvllm(self._capsys, "dev", *words)

    def git(self, *words: str, env: Mapping[str, str] | None = None) -> str:
        argv = ["git", "-C", str(self.tree), *words]
        environment = {**os.environ, **WHO, "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", **(env or {})}
        return subprocess.run(argv, env=environment, check=True, capture_output=True, text=True).stdout

    def edit(self, path: str, text: str, *commit: str) -> None:
        (self.tree / path).write_text(text)
        self.git("add", "--all")
        self.git("commit", *commit)

    def finish(self, *words: str) -> dict[str, str]:
        status, document = self.nvllm("finish", str(self.tree), *words)
        assert status == 0, document
        return {one["id"]: one["change"] for one in document["result"]["patches"]}

    def refused(self) -> list[dict[str, str]]:
        before = self.files()
        status, document = self.nvllm("finish", str(self.tree))
        assert status in (2, 3), document
        assert self.files() == before
        listed: list[dict[str, str]] = document["refusals"]
        return listed

    def files(self) -> dict[str, bytes]:
        paths = [*self.project.series("v0.28.0").iterdir(), self.project.spec(IMAGE)]
        return {path.name: path.read_bytes() for path in paths}

    def enabled(self) -> tuple[str, ...]:
        return specfile.of(self.project, IMAGE).patches.enable

    def rebase(self, editor: str) -> None:
        self.git("rebase", "-i", "--autosquash", self.base, env={"GIT_SEQUENCE_EDITOR": editor, "GIT_EDITOR": ":"})


@pytest.fixture
def dev(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Dev:
    monkeypatch.setattr(proofs, "refusals", lambda root, nodes: iter(()))  # pytest itself is asked in test_nv108_proofs
    return Dev(tmp_path, capsys)


def test_the_source_and_each_patch_are_a_commit(dev: Dev) -> None:
    subjects = dev.git("log", "--reverse", "--format=%s").splitlines()
    assert subjects[0].startswith("vLLM 0.28.0, commit ")
    ids = dev.git("log", "--reverse", "--format=%(trailers:key=Nvllm-Patch,valueonly)", f"{dev.base}..").split()
    assert tuple(ids) == PATCHES
    assert (dev.tree / "vllm/long.py").read_text().startswith("TOP = 1\n")
    assert dev.git("show", f"{dev.base}:vllm/__init__.py").encode() == layersamples.PACKAGE["vllm/__init__.py"]
    assert dev.git("status", "--porcelain") == ""


def test_what_nobody_touched_stays_byte_for_byte(dev: Dev) -> None:
    before = dev.files()
    assert dev.finish() == dict.fromkeys(PATCHES, "unchanged")
    assert dev.files() == before


def test_a_fixup_a_new_commit_and_one_that_is_gone(dev: Dev) -> None:
    subject = dev.git("log", "-1", "--format=%s", "--grep=Nvllm-Patch: guard").strip()
    dev.edit("vllm/__init__.py", "VALUE = 'guarded twice'\n", "-qm", f"fixup! {subject}")
    dev.rebase("true")
    dev.edit("vllm/fresh.py", "FRESH = 1\n", "-qm", f"Bring a fresh module\n\nProved-by: {PROOF}\nUpstream: a/b#12")
    dev.rebase("sed -i /core.py/d")
    changes = {"guard": "changed", "top": "unchanged", "end": "unchanged", "bring-a-fresh-module": "new"}
    before = dev.files()
    assert dev.finish("--dry-run") == {**changes, "key": "left out"}
    assert dev.files() == before
    assert dev.finish() == {**changes, "key": "left out"}
    series = seriesfile.of(dev.project, "v0.28.0")  # hashes, paths and files fit
    assert [patch.id for patch in series.patches] == [*PATCHES, "bring-a-fresh-module"]
    new = series.patches[-1]
    assert (new.proved_by, new.upstream.reference, new.touches) == ((PROOF,), "a/b#12", ("vllm/fresh.py",))
    assert dev.enabled() == ("guard", "top", "end", "bring-a-fresh-module")
    assert "guarded twice" in (dev.project.series("v0.28.0") / "0001-guard.patch").read_text()


def test_a_commit_that_gets_no_id_is_known_again_by_its_subject(dev: Dev) -> None:
    dev.edit("vllm/fresh.py", "FRESH = 1\n", "-qm", f"Bring a fresh module\n\nProved-by: {PROOF}")
    assert dev.finish()["bring-a-fresh-module"] == "new"
    before = dev.files()
    assert dev.finish() == dict.fromkeys((*PATCHES, "bring-a-fresh-module"), "unchanged")
    assert dev.files() == before


def test_the_message_of_a_new_commit_may_say_its_id(dev: Dev) -> None:
    dev.edit("vllm/fresh.py", "FRESH = 1\n", "-qm", f"Bring a fresh module\n\nNvllm-Patch: My_Fix\nProved-by: {PROOF}")
    refusals = {one["where"]: one for one in dev.refused()}
    allowed = "an id: words of a-z and 0-9, joined by -"
    assert refusals["the new patch: .id"] == {
        "code": "NV108",
        "title": "bad argument",
        "kind": "usage",
        "where": "the new patch: .id",
        "expected": allowed,
        "found": '"My_Fix"',
        "cure": f"write {allowed}",
    }
    dev.git("commit", "-q", "--amend", "-m", f"Bring a fresh module\n\nNvllm-Patch: my-fix\nProved-by: {PROOF}")
    assert dev.finish()["my-fix"] == "new"
    assert dev.finish()["my-fix"] == "unchanged"
    new = seriesfile.of(dev.project, "v0.28.0").patches[-1]
    assert (new.id, new.file, new.summary) == ("my-fix", "0005-my-fix.patch", "Bring a fresh module")


def test_a_patch_that_is_made_on_another_one_requires_it(dev: Dev) -> None:
    text = (dev.tree / "vllm/top.py").read_text()
    dev.edit("vllm/top.py", f"{text}MORE = 2\n", "-qm", f"More of it\n\nProved-by: {PROOF}")
    dev.finish()
    assert seriesfile.of(dev.project, "v0.28.0").patches[-1].requires == ("top",)


def test_what_cannot_be_finished_is_refused_and_changes_nothing(dev: Dev) -> None:
    (dev.tree / "vllm/core.py").write_text("x = 1\n")
    (refusal,) = dev.refused()
    assert (refusal["code"], refusal["found"]) == ("NV610", "vllm/core.py")
    dev.git("commit", "-qam", "fixup! nothing")
    dev.edit("vllm/fresh.py", "FRESH = 1\n", "-qm", "No proof")
    assert [(one["code"], one["expected"]) for one in dev.refused()] == [
        ("NV610", "a commit for each patch"),
        ("NV610", "a test that fails without no-proof"),
    ]
    dev.git("reset", "-q", "--hard", "HEAD~2")
    dev.git("checkout", "-q", "-b", "side", dev.base)
    dev.edit("vllm/side.py", "SIDE = 1\n", "-qm", "Aside")
    dev.git("merge", "-q", "-m", "Both", "patches")
    assert [one["expected"] for one in dev.refused()] == ["commits in one line"]


def test_only_a_tree_of_this_series_can_be_finished(dev: Dev, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    status, document = dev.nvllm("finish", str(tmp_path / "other"))
    assert (status, document["refusals"][0]["code"]) == (3, "NV610")
    record = dev.tree / ".git/nvllm.json"
    record.write_text(record.read_text().replace('"series": "v0.28.0"', '"series": "v0.29.0"'))
    assert [one["code"] for one in dev.refused()] == ["NV610"]
    shutil.rmtree(dev.tree)
    status, document = dev.nvllm("start", IMAGE, str(dev.tree.parent))
    assert (status, document["refusals"][0]["code"]) == (2, "NV108")
