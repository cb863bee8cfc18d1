"""Bytecode: valid, found by the interpreter, checked against its source, and the same wherever it is made.

What compiles is the script that runs inside `bytecode.Interpreter`, here under the interpreter that runs the
tests; a base tree with an interpreter of its own is 100 MB of packages, which the end-to-end tests have.
"""

from __future__ import annotations

import importlib.util
import json
import marshal
import os
import shlex
import struct
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from nvllm.core.progress import Silent
from nvllm.core.refusal import Refusal, Refused
from nvllm.layers import bytecode, bytecompile
from nvllm.layers.bytecode import Interpreter
from support import layersamples
from support.layersamples import PYTHON

SOURCES: Mapping[str, bytes] = {
    "site/demo/__init__.py": b"NAMES = {'one', 'two', 'three', 'four'}\ndef f(x):\n    return x in {'a', 'b', 'c'}\n",
    "site/demo/encoded.py": "# -*- coding: latin-1 -*-\nTEXT = 'ä'\n".encode("latin-1"),
    "site/demo/broken.py": b"def f(:\n",
    "site/demo/template.py": b"{% for x in y %}\n",
    "site/demo/null.py": b"x = 1\0\n",
    "site/demo/unreadable.py": b"x = '\xff'\n",
    "site/demo/warns.py": b"x = 1 is 1\n",
}


def _compile(job: Mapping[str, object], **environment: str) -> None:
    subprocess.run(
        [sys.executable, "-S", "-s", "-P", "-B", bytecompile.__file__],
        input=json.dumps(job).encode(),
        env=environment,
        capture_output=True,
        check=True,
    )


def _sources(tmp_path: Path) -> dict[str, str]:
    for place, data in SOURCES.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(data)
    return {place: str(tmp_path / place) for place in SOURCES}


def test_bytecode_is_checked_against_its_source(tmp_path: Path) -> None:
    out = tmp_path / "out.zip"
    _compile({"archive": None, "files": _sources(tmp_path), "out": str(out)})
    with zipfile.ZipFile(out) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    tag = sys.implementation.cache_tag
    assert sorted(found) == [f"site/demo/__pycache__/{name}.{tag}.pyc" for name in ("__init__", "encoded", "warns")]
    for name in ("__init__", "encoded"):
        data = found[f"site/demo/__pycache__/{name}.{tag}.pyc"]
        assert data[:4] == importlib.util.MAGIC_NUMBER
        assert struct.unpack("<I", data[4:8]) == (0b11,), "hash-based, and the source is looked at"
        assert data[8:16] == importlib.util.source_hash(SOURCES[f"site/demo/{name}.py"])


def test_the_interpreter_uses_it_until_the_source_changes(tmp_path: Path) -> None:
    out = tmp_path / "out.zip"
    _compile({"archive": None, "files": _sources(tmp_path), "out": str(out)})
    with zipfile.ZipFile(out) as archive:
        archive.extractall(tmp_path)
    bytecode_file = tmp_path / bytecompile.cached("site/demo/__init__.py")
    header = bytecode_file.read_bytes()[:16]
    assert marshal.loads(bytecode_file.read_bytes()[16:]).co_filename == "/site/demo/__init__.py"
    # Code that is not the source's shows which of the two was run.
    bytecode_file.write_bytes(header + marshal.dumps(compile("def f(x): return 'bytecode'", "x", "exec")))
    code = "import sys; sys.path.insert(0, sys.argv[1]); import demo; print(demo.f('a'))"
    around = layersamples.Surroundings(environment={"PYTHONDONTWRITEBYTECODE": "1"})
    assert layersamples.child(code, tmp_path / "site", around=around) == "bytecode\n"
    (tmp_path / "site/demo/__init__.py").write_bytes(b"def f(x):\n    return 'source'\n")
    assert layersamples.child(code, tmp_path / "site", around=around) == "source\n"


def test_the_same_bytes_whatever_surrounds_it(tmp_path: Path) -> None:
    files = _sources(tmp_path)
    found = set()
    for number, environment in enumerate(
        [{}, {}, {"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2", "TZ": "Asia/Kathmandu"}, {"LC_ALL": "C"}]
    ):
        out = tmp_path / f"{number}.zip"
        _compile({"archive": None, "files": dict(reversed(files.items())), "out": str(out)}, **environment)
        found.add(out.read_bytes())
    assert len(found) == 1


def test_members_of_a_wheel_and_files_give_the_same(tmp_path: Path) -> None:
    wheel = layersamples.wheel(tmp_path, "demo", {place.removeprefix("site/"): data for place, data in SOURCES.items()})
    _compile({"archive": None, "files": _sources(tmp_path), "out": str(tmp_path / "1.zip")})
    members = {place: place.removeprefix("site/") for place in SOURCES}
    _compile({"archive": str(wheel), "files": members, "out": str(tmp_path / "2.zip")})
    assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()


def test_the_script_and_the_interpreter_agree_on_the_place() -> None:
    for place in ("a/b.py", "a/__init__.py"):
        assert Interpreter(Path("/"), PYTHON).cached(place) == bytecompile.cached(place)
        assert importlib.util.cache_from_source(place) == bytecompile.cached(place)
    assert Interpreter(Path("/"), "3.14").cached("a/b.py") == "a/__pycache__/b.cpython-314.pyc"


# The interpreter of a base


_PYTHON = shlex.quote(sys.executable)


def _base(tmp_path: Path, loader: str) -> Interpreter:
    place = tmp_path / "tree/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
    place.parent.mkdir(parents=True)
    place.write_text(loader)
    place.chmod(0o755)
    return Interpreter(tmp_path / "tree", PYTHON)


def _refusal(interpreter: Interpreter, tmp_path: Path) -> Refusal:
    with pytest.raises(Refused) as caught:
        interpreter.compile(None, _sources(tmp_path / "sources"), tmp_path / "out.zip")
    assert list(tmp_path.glob("out.zip*")) == [], "what is not whole is taken away"
    (found,) = caught.value.refusals
    assert found.code == "NV512"
    return found


def test_the_interpreter_is_started_through_the_trees_loader(tmp_path: Path) -> None:
    said_by = """for said in "$0" "$@"; do echo "$said"; done"""
    interpreter = _base(tmp_path, f"#!/bin/sh\n{said_by} > {tmp_path}/said\n/usr/bin/env > {tmp_path}/env\n")
    with pytest.raises(FileNotFoundError):
        interpreter.compile(None, {}, tmp_path / "out.zip")
    tree = tmp_path / "tree"
    libraries = f"{tree}/usr/lib/x86_64-linux-gnu"
    said = (tmp_path / "said").read_text().splitlines()
    assert said[:3] == [f"{libraries}/ld-linux-x86-64.so.2", "--library-path", libraries]
    assert said[3:] == [f"{tree}/usr/bin/python{PYTHON}", "-S", "-s", "-P", "-B", bytecompile.__file__]
    variables = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert variables["PYTHONHOME"] == f"{tree}/usr"
    assert variables["PYTHONHASHSEED"] == "0"
    assert not {"PYTHONPATH", "HOME", "TZ"} & variables.keys()


def test_a_tree_without_a_loader(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    found = _refusal(Interpreter(tmp_path / "tree", PYTHON), tmp_path)
    assert (found.where, found.expected) == (f"{tmp_path}/tree", "a dynamic loader in the base tree")
    assert found.cure == "add libc6 to base.packages"


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        ("\x7fELF of another machine", "Exec format error"),
        ("#!/bin/sh\necho no such instruction >&2\nexit 1\n", "no such instruction"),
        ("#!/bin/sh\nexit 3\n", "exit status 3"),
        ("#!/bin/sh\nkill -9 $$\n", "exit status -9"),
    ],
)
def test_a_loader_that_cannot_run(tmp_path: Path, loader: str, said: str) -> None:
    interpreter = _base(tmp_path, loader)
    found = _refusal(interpreter, tmp_path)
    assert (found.where, found.expected) == (interpreter.command()[0], "a host that runs the image's interpreter")
    assert said in found.found
    assert found.cure == "sudo apt-get install qemu-user-static"


# ELF header of another machine than this one: magic, 64 bits, little-endian, and the number of the machine at byte 18
_FOREIGN = {"x86_64": ("aarch64", 183), "aarch64": ("x86_64", 62)}


@pytest.mark.parametrize("name", ["qemu-{}-static", "qemu-{}"])
def test_an_interpreter_of_another_machine_is_run_by_an_emulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The emulator is a script that says how it was called; `tests/series/test_arm64.py` has the real one."""
    machine, number = _FOREIGN[os.uname().machine]
    interpreter = _base(tmp_path, "")
    loader = Path(interpreter.command()[0])
    loader.write_bytes(b"\x7fELF\x02\x01" + bytes(12) + struct.pack("<H", number))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert interpreter.command()[0] == str(loader), "what the kernel may know of is tried"
    assert "Exec format error" in _refusal(interpreter, tmp_path).found
    emulator = tmp_path / "bin" / name.format(machine)
    emulator.parent.mkdir()
    emulator.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/said\necho a wrong instruction >&2\nexit 1\n')
    emulator.chmod(0o755)
    assert interpreter.command()[:2] == [str(emulator), str(loader)]
    found = _refusal(interpreter, tmp_path)
    assert (found.where, found.found) == (str(emulator), "a wrong instruction")
    assert (tmp_path / "said").read_text().startswith(f"{loader} --library-path ")


def test_an_interpreter_of_this_machine_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = _base(tmp_path, "")
    loader = Path(interpreter.command()[0])
    loader.write_bytes(Path(sys.executable).resolve().read_bytes()[:64])
    for machine in ("x86_64", "aarch64"):
        (tmp_path / f"qemu-{machine}-static").write_text("#!/bin/sh\n")
        (tmp_path / f"qemu-{machine}-static").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert interpreter.command()[0] == str(loader)


def test_what_a_dying_interpreter_wrote_is_not_taken_for_whole(tmp_path: Path) -> None:
    """A process that the kernel kills says nothing, and may have written half of its archive."""
    read_out = 'import json, sys; print(json.load(sys.stdin)["out"])'
    loader = f"#!/bin/sh\nunset PYTHONHOME\nout=$({_PYTHON} -c '{read_out}')\necho half > $out\nkill -9 $$\n"
    assert _refusal(_base(tmp_path, loader), tmp_path).found == "exit status -9"


def test_archives_are_made_once_and_returned_in_the_order_of_their_keys(tmp_path: Path) -> None:
    count = f'#!/bin/sh\necho x >> {tmp_path}/count\nunset PYTHONHOME\nshift 3\nexec {_PYTHON} "$@"\n'
    interpreter = _base(tmp_path, count)
    files = _sources(tmp_path)
    jobs = {key: (None, {f"{key}/{place}": path for place, path in files.items()}) for key in ("b", "a", "c")}
    first = bytecode.compile_all(interpreter, jobs, tmp_path / "cache", Silent())
    assert first == [tmp_path / f"cache/{key}.zip" for key in "abc"]
    (tmp_path / "cache/b.zip").unlink()
    assert bytecode.compile_all(interpreter, jobs, tmp_path / "cache", Silent()) == first
    assert (tmp_path / "count").read_text().count("x") == 4
    entries = {entry.path: (entry.mode, entry.size) for entry in bytecode.entries(first[0])}
    assert set(entries) == {
        Interpreter(tmp_path, PYTHON).cached(f"a/site/demo/{n}.py") for n in ("__init__", "encoded", "warns")
    }
    assert {mode for mode, _ in entries.values()} == {0o644}
    assert sorted(os.listdir(tmp_path / "cache")) == ["a.zip", "b.zip", "c.zip"]


def test_an_archive_that_a_power_cut_left_empty_is_compiled_again(tmp_path: Path) -> None:
    files = _sources(tmp_path)
    jobs = {"a": (None, {f"a/{place}": path for place, path in files.items()})}
    interpreter = _base(tmp_path, f'#!/bin/sh\nunset PYTHONHOME\nshift 3\nexec {_PYTHON} "$@"\n')
    (archive,) = bytecode.compile_all(interpreter, jobs, tmp_path / "cache", Silent())
    whole = archive.read_bytes()
    archive.write_bytes(b"")
    assert bytecode.compile_all(interpreter, jobs, tmp_path / "cache", Silent()) == [archive]
    assert archive.read_bytes() == whole


def test_what_takes_longest_is_begun_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Begun last, the wheel with the most modules would keep one processor busy while the others have nothing to do.
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    begun = []

    class Noting:
        """Stands in for an interpreter: notes what it is given."""

        def cached(self, place: str) -> str:
            return place

        def compile(self, archive: Path | None, files: Mapping[str, str], out: Path) -> None:
            begun.append(out.stem)

    jobs = {key: (None, {f"{key}/{n}.py": "" for n in range(count)}) for key, count in (("a", 1), ("b", 3), ("c", 3))}
    bytecode.compile_all(Noting(), jobs, tmp_path / "cache", Silent())
    assert begun == ["b", "c", "a"]
