"""Writing patches: the file, the entry, and what is left when something goes wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.patches import edit as patchedit
from nvllm.patches import patching, seriesfile, unified
from nvllm.patches.series import Patch
from nvllm.patches.source import DirectoryTree
from support.series_samples import (
    HEADER,
    ONE,
    SHOWN,
    SOURCE,
    TWO,
    MappingTree,
    changed,
    patch_text,
    series_directory,
    two_patches,
    write,
    write_tree,
)

_PROOF = ["tests/unit/test_x.py::test_x"]


def _state(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def _trees(tmp_path: Path) -> tuple[Path, Path]:
    before = write_tree(tmp_path / "before", SOURCE)
    after = write_tree(tmp_path / "after", changed(one=(b"one 5\n", b"one five\n")))
    (after / "vllm/new.py").write_bytes(b"new\n")
    (after / "vllm/__pycache__").mkdir()
    (after / "vllm/__pycache__/one.cpython-311.pyc").write_bytes(b"\0")
    (after / "vllm/two.py").chmod(0o755)
    return before, after


def _new(directory: Path, label: str, name: str, summary: str, proof: list[str], before: Path, after: Path) -> Patch:
    """Do what `nvllm patch new` does."""
    return patchedit.add(directory, label, name, summary, proof, patchedit.compare(before, after, str(after)))


def test_new_writes_a_patch_that_makes_one_tree_of_the_other(tmp_path: Path) -> None:
    directory = two_patches(tmp_path)
    before, after = _trees(tmp_path)
    text = (directory / "series.yaml").read_text()
    patch = _new(directory, SHOWN, "third", 'Says: "five" # and more', _PROOF, before, after)
    assert (patch.file, patch.summary) == ("0003-third.patch", 'Says: "five" # and more')
    assert patch.touches == ("vllm/new.py", "vllm/one.py", "vllm/two.py")
    assert (directory / "series.yaml").read_text().startswith(text.rstrip("\n") + "\n")  # comments stay
    diff = seriesfile.diff(directory, patch, SHOWN)
    changes = patching.apply(DirectoryTree(before), diff)
    assert changes == {path: (after / path).read_bytes() for path in patch.touches}
    assert patching.modes(diff) == {"vllm/new.py": 0o644, "vllm/two.py": 0o755}
    assert seriesfile.load(directory, SHOWN).patches[-1] == patch


def test_the_same_trees_give_the_same_bytes(tmp_path: Path) -> None:
    before, after = _trees(tmp_path)
    for name in ("x", "y"):
        os.utime(after / "vllm/one.py", (1, 1))
        (tmp_path / name).mkdir()
        _new(two_patches(tmp_path / name), SHOWN, "third", "s", _PROOF, before, after)
        before, after = before.rename(tmp_path / f"before-{name}"), after.rename(tmp_path / f"after-{name}")
    assert _state(tmp_path / "x/patches/v1") == _state(tmp_path / "y/patches/v1")


@pytest.mark.parametrize(
    "text",
    [
        HEADER.replace("patches:", "patches: []"),
        HEADER.replace("patches:\n", "").replace("base:", "patches: []\n\n# the base\nbase:"),
    ],
)
def test_new_starts_an_empty_list(tmp_path: Path, text: str) -> None:
    directory = series_directory(tmp_path)
    (directory / "series.yaml").write_text(text)
    patch = _new(directory, SHOWN, "first", "s", _PROOF, *_trees(tmp_path))
    assert seriesfile.load(directory, SHOWN).patches == (patch,)
    assert "# A comment that must stay." in (directory / "series.yaml").read_text()


def test_new_goes_before_what_follows_the_list(tmp_path: Path) -> None:
    directory = two_patches(tmp_path)
    file = directory / "series.yaml"
    text = file.read_text()
    moved = text.replace("version: 1.2.3\n", "") + "\nversion: 1.2.3 # the pin"
    file.write_text(moved)
    _new(directory, SHOWN, "third", "s", _PROOF, *_trees(tmp_path))
    series = seriesfile.load(directory, SHOWN)
    assert ([patch.id for patch in series.patches], series.version) == (["first", "second", "third"], "1.2.3")
    assert file.read_text().endswith("version: 1.2.3 # the pin\n")


def _refused(tmp_path: Path, directory: Path, patch_id: str = "third", **trees: Path) -> list[tuple[str, str]]:
    before, after = trees.get("before"), trees.get("after")
    if before is None or after is None:
        before, after = _trees(tmp_path)
    state = _state(directory)
    with pytest.raises(Refused) as caught:
        _new(directory, SHOWN, patch_id, "s", _PROOF, before, after)
    assert _state(directory) == state
    return [(refusal.code, refusal.found) for refusal in caught.value.refusals]


def test_new_refuses_an_id_that_is_taken_or_is_none(tmp_path: Path) -> None:
    directory = two_patches(tmp_path)
    assert _refused(tmp_path, directory, "first") == [("NV104", "first")]
    (tmp_path / "two").mkdir()
    (code, _), *_ = _refused(tmp_path / "two", directory, "Not An Id")
    assert code == "NV108"


def test_new_refuses_a_patch_without_a_proof(tmp_path: Path) -> None:
    directory = two_patches(tmp_path)
    state = _state(directory)
    with pytest.raises(Refused) as caught:
        _new(directory, SHOWN, "third", "s", [], *_trees(tmp_path))
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV108", "the new patch: .proved-by")
    assert _state(directory) == state


def test_new_refuses_what_no_patch_can_hold(tmp_path: Path) -> None:
    before, after = write_tree(tmp_path / "before", SOURCE), write_tree(tmp_path / "after", SOURCE)
    directory = two_patches(tmp_path)
    assert _refused(tmp_path, directory, before=before, after=after) == [("NV104", "none")]
    (after / "vllm/link.py").symlink_to("one.py")
    (after / "vllm/binary").write_bytes(b"\0")
    os.mkfifo(after / "vllm/pipe")
    found = _refused(tmp_path, directory, before=before, after=after)
    assert found == [("NV104", "a binary file"), ("NV104", "a link"), ("NV104", "a special file")]
    assert _refused(tmp_path, directory, before=before, after=tmp_path / "none") == [("NV104", "no directory")]


def test_new_refuses_files_that_are_in_no_image(tmp_path: Path) -> None:
    before, after = write_tree(tmp_path / "before", SOURCE), write_tree(tmp_path / "after", SOURCE)
    (after / "notes.txt").write_bytes(b"x\n")
    assert _refused(tmp_path, two_patches(tmp_path), before=before, after=after) == [("NV104", "notes.txt")]


def test_new_refuses_what_is_no_copy_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = _trees(tmp_path)
    (after / "large").touch()
    os.truncate(after / "large", 2**40)
    with pytest.raises(Refused, match="more"):
        patchedit.compare(before, after, "p")
    (after / "large").unlink()
    monkeypatch.setattr(patchedit, "MOST_FILES", 2)
    with pytest.raises(Refused, match="more"):
        patchedit.compare(before, after, "p")


def test_new_compares_large_files_without_holding_them(tmp_path: Path) -> None:
    before, after = _trees(tmp_path)
    for tree in (before, after):
        (tree / "vllm/large").write_bytes(bytes(20_000_000))
    same = patchedit.compare(before, after, "p")
    assert "vllm/large" not in same.paths
    (after / "vllm/large").write_bytes(bytes(19_999_999) + b"x")
    with pytest.raises(Refused) as caught:
        patchedit.compare(before, after, "p")
    assert [one.found for one in caught.value.refusals] == ["a file of 20000000 bytes"]


def test_new_refuses_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    before, after = write_tree(tmp_path / "before", SOURCE), write_tree(tmp_path / "after", SOURCE)
    Path(os.fsdecode(os.fsencode(after) + b"/vllm/\xff.py")).write_bytes(b"x\n")
    found = _refused(tmp_path, two_patches(tmp_path), before=before, after=after)
    assert found == [("NV104", "a name that is not printable UTF-8")]


def test_new_refuses_a_list_that_it_cannot_extend(tmp_path: Path) -> None:
    directory = write(series_directory(tmp_path))
    file = directory / "series.yaml"
    file.write_text(
        HEADER.rstrip()
        + " [{id: padding, status: rejected, summary: s, upstream: {state: closed}, reason: it is wrong}]\n"
    )
    assert _refused(tmp_path, directory) == [("NV104", "another form")]


def test_replace_takes_paths_over_several_lines_and_refuses_those_of_another_entry(tmp_path: Path) -> None:
    directory = two_patches(tmp_path)
    file = directory / "series.yaml"
    other = (
        "  - {id: old, status: rejected, summary: s, upstream: {state: closed}, reason: r, touches: &one [vllm/one.py]}"
    )
    text = file.read_text().replace("patches:\n", f"patches:\n{other}\n")
    file.write_text(text.replace("    touches: [vllm/one.py]", "    touches: *one"))
    seriesfile.load(directory, SHOWN)
    state = _state(directory)
    both = unified.parse(patch_text(SOURCE, changed(one=ONE, two=TWO)), "both.patch")
    with pytest.raises(Refused) as caught:
        patchedit.replace_patch(directory, SHOWN, "first", both)
    assert [(one.code, one.found) for one in caught.value.refusals] == [("NV104", "another form")]
    assert _state(directory) == state
    file.write_text(text.replace("    touches: [vllm/one.py]", "    touches: [\n      vllm/one.py]"))
    patch = patchedit.replace_patch(directory, SHOWN, "first", both)
    assert patch.touches == ("vllm/one.py", "vllm/two.py")


def test_killed_between_the_two_files_new_leaves_a_stray_that_load_names(tmp_path: Path) -> None:
    directory = two_patches(tmp_path)
    before, after = _trees(tmp_path)
    child = os.fork()
    if child == 0:  # the second rename is the series': end there, as a kill would
        renames = []

        real = os.replace

        def rename(old: str, new: str) -> None:
            renames.append(new)
            if len(renames) == 2:
                os._exit(9)
            real(old, new)

        os.replace = rename  # type: ignore[assignment]  # for what the editor passes it
        try:
            _new(directory, SHOWN, "third", "s", _PROOF, before, after)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with pytest.raises(Refused) as caught:
        seriesfile.load(directory, SHOWN)
    (refusal,) = caught.value.refusals
    assert refusal.where == f"{SHOWN}/0003-third.patch"
    assert "remove it" in refusal.cure
    (directory / "0003-third.patch").unlink()
    assert len(seriesfile.load(directory, SHOWN).patches) == 2


def test_refresh_takes_the_line_numbers_of_the_source(tmp_path: Path) -> None:
    directory = two_patches(tmp_path)
    old = seriesfile.load(directory, SHOWN)
    text = (directory / "series.yaml").read_text()
    shifted = {**SOURCE, "vllm/two.py": b"import x\n" * 9 + SOURCE["vllm/two.py"]}
    patch = patchedit.refresh(directory, SHOWN, "second", MappingTree(shifted))
    assert b"@@ -26,7 +26,7 @@" in (directory / "0002-second.patch").read_bytes()
    new = seriesfile.load(directory, SHOWN)
    assert new.patches == (old.patches[0], patch)
    changed_text = text.replace(str(old.patches[1].sha256), str(patch.sha256))
    assert (directory / "series.yaml").read_text() == changed_text
    state = _state(directory)
    assert patchedit.refresh(directory, SHOWN, "second", MappingTree(shifted)) == patch  # a second time: nothing
    assert _state(directory) == state


@pytest.mark.parametrize(
    ("patch_id", "files", "code"),
    [
        ("second", {**SOURCE, "vllm/two.py": b"other\n"}, "NV301"),
        ("second", {**SOURCE, "vllm/one.py": b"other\n"}, "NV301"),  # what it requires does not apply
        ("first", changed(one=ONE), "NV106"),
        ("third", SOURCE, "NV107"),
    ],
)
def test_refresh_that_is_refused_changes_nothing(
    tmp_path: Path, patch_id: str, files: dict[str, bytes], code: str
) -> None:
    directory = two_patches(tmp_path)
    state = _state(directory)
    with pytest.raises(Refused) as caught:
        patchedit.refresh(directory, SHOWN, patch_id, MappingTree(files))
    assert {refusal.code for refusal in caught.value.refusals} == {code}
    assert _state(directory) == state
