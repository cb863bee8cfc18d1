"""Wheels: laid out as an installer would, without what an installer leaves behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.layers import tarlayer, wheel
from nvllm.layers.tarlayer import TarEntry
from nvllm.layers.wheel import Scheme, Wheel
from support import layersamples
from support.layersamples import PYTHON, Packed

SCHEME = Scheme("opt/venv", PYTHON)
SITE = f"opt/venv/lib/python{PYTHON}/site-packages"


def _entries(path: Path, scheme: Scheme = SCHEME) -> dict[str, tuple[int, bytes]]:
    """Return mode and bytes of what the wheel at PATH brings."""
    with Wheel(path) as opened:
        found = {entry.path: (entry.mode, _content(entry)) for entry in opened.entries(scheme)}
        assert len(found) == len(list(opened.entries(scheme)))
    return {place: one for place, one in found.items() if ".dist-info/" not in place}


def _content(entry: TarEntry) -> bytes:
    with entry.content() as stream:
        return stream.read()


def _lay(entries: list[TarEntry], root: Path) -> None:
    for entry in tarlayer.complete(entries):
        place = root / entry.path
        if entry.kind == "directory":
            place.mkdir(parents=True)
        elif entry.kind == "link":
            place.symlink_to(entry.target)
        else:
            place.write_bytes(_content(entry))
            place.chmod(entry.mode)


def test_files_go_where_their_scheme_says(tmp_path: Path) -> None:
    path = layersamples.wheel(
        tmp_path,
        "my-demo",
        {
            "demo/__init__.py": b"x = 1\n",
            "demo/tool.so": Packed(b"\x7fELF", 0o755),
            "my_demo-1.0.data/purelib/pure.py": b"p\n",
            "my_demo-1.0.data/platlib/plat/x.py": b"q\n",
            "my_demo-1.0.data/data/share/doc/x.txt": b"d\n",
            "my_demo-1.0.data/data/etc/tool.sh": Packed(b"#!/bin/sh\n"),
            "my_demo-1.0.data/headers/demo.h": b"h\n",
            "my_demo-1.0.data/scripts/run": b"#!python\nimport demo\n",
        },
    )
    assert _entries(path) == {
        f"{SITE}/demo/__init__.py": (0o644, b"x = 1\n"),
        f"{SITE}/demo/tool.so": (0o755, b"\x7fELF"),
        f"{SITE}/pure.py": (0o644, b"p\n"),
        f"{SITE}/plat/x.py": (0o644, b"q\n"),
        "opt/venv/share/doc/x.txt": (0o644, b"d\n"),
        "opt/venv/etc/tool.sh": (0o755, b"#!/bin/sh\n"),
        f"opt/venv/include/site/python{PYTHON}/my_demo/demo.h": (0o644, b"h\n"),
        "opt/venv/bin/run": (0o755, f"#!/opt/venv/bin/python{PYTHON}\nimport demo\n".encode()),
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"#!python\nx\n", b"#!/opt/venv/bin/python3.11\nx\n"),
        (b"#!pythonw\r\nx\r\n", b"#!/opt/venv/bin/python3.11\nx\r\n"),
        (b"#!/usr/bin/env python3\nx\n", b"#!/opt/venv/bin/python3.11\nx\n"),
        (b"#!/bin/sh\nexec python\n", b"#!/bin/sh\nexec python\n"),
        (b"# no interpreter\n#!python\n", b"# no interpreter\n#!python\n"),
        (b"\x7fELF\x00#!python", b"\x7fELF\x00#!python"),
        (b"", b""),
    ],
)
def test_scripts_get_the_images_interpreter(tmp_path: Path, before: bytes, after: bytes) -> None:
    path = layersamples.wheel(tmp_path, "demo", {"demo-1.0.data/scripts/run": before})
    assert _entries(path, Scheme("opt/venv", "3.11")) == {"opt/venv/bin/run": (0o755, after)}


def test_foreign_bytecode_stays_out(tmp_path: Path) -> None:
    path = layersamples.wheel(
        tmp_path,
        "demo",
        {
            "demo/a.py": b"",
            "demo/__pycache__/a.cpython-311.pyc": b"from another machine",
            "__pycache__/b.cpython-311.pyc": b"from another machine",
            "demo/not__pycache__/c.py": b"",
        },
    )
    assert sorted(_entries(path)) == [f"{SITE}/demo/a.py", f"{SITE}/demo/not__pycache__/c.py"]


def test_what_is_omitted_is_left_out(tmp_path: Path) -> None:
    files = {"demo/a.py": b"", "demo/lib/b.so": b"", "demo/lib/deep/c.so": b"", "demo/library.py": b"", "build.py": b""}
    path = layersamples.wheel(tmp_path, "demo", files)
    with Wheel(path, omitted=("build.py", "demo/lib")) as opened:
        placed = opened.placed(SCHEME)
    assert [place for place in placed if ".dist-info" not in place] == [f"{SITE}/demo/a.py", f"{SITE}/demo/library.py"]


def test_what_is_omitted_is_there(tmp_path: Path) -> None:
    path = layersamples.wheel(tmp_path, "demo", {"demo/a.py": b""})
    with Wheel(path, omitted=("demo/a", "demo/a.py")) as opened, pytest.raises(Refused) as caught:
        opened.placed(SCHEME)
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV306", f"{path.name}: demo/a")
    assert refusal.cure == "remove demo/a from python.omit in the spec, and lock again"


def test_no_installers_leftovers(tmp_path: Path) -> None:
    path = layersamples.wheel(tmp_path, "demo", {"a.py": b""})
    with Wheel(path) as opened:
        names = {entry.path.removeprefix(f"{SITE}/") for entry in opened.entries(SCHEME)}
        assert opened.dist_info == "demo-1.0.dist-info"
        assert opened.text("METADATA").startswith("Metadata-Version")
        assert opened.text("entry_points.txt") == ""
    assert names == {"a.py", "demo-1.0.dist-info/METADATA", "demo-1.0.dist-info/RECORD"}


ENTRY_POINTS = b"""\
# a comment
[other.group]
run = nothing:here
[console_scripts]
Plain = demo.cli:main
with-extra = demo.cli:main [fast, other]
dotted = demo.cli:App.run
 [gui_scripts]
"""


def test_console_entry_points_become_scripts_that_run(tmp_path: Path) -> None:
    module = b"def main():\n    return 'main'\nclass App:\n    @staticmethod\n    def run():\n        return 'run'\n"
    files = {"demo/__init__.py": b"", "demo/cli.py": module, "demo-1.0.dist-info/entry_points.txt": ENTRY_POINTS}
    path = layersamples.wheel(tmp_path, "demo", files)
    with Wheel(path) as opened:
        _lay(list(opened.entries(SCHEME)), tmp_path / "root")
    scripts = sorted((tmp_path / "root/opt/venv/bin").iterdir())
    assert [script.name for script in scripts] == ["Plain", "dotted", "with-extra"]
    for script, said in zip(scripts, ["main", "run", "main"], strict=True):
        assert script.stat().st_mode & 0o777 == 0o755
        assert script.read_text().splitlines()[0] == f"#!/opt/venv/bin/python{PYTHON}"
        done = subprocess.run(
            [sys.executable, str(script)],
            env={"PYTHONPATH": str(tmp_path / "root" / SITE)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (1, said + "\n"), "sys.exit was given what the function returned"


def test_a_script_that_is_imported_again_does_nothing(tmp_path: Path) -> None:
    """The processes that vLLM spawns import the main module again, under another name."""
    files = {"demo.py": b"def main():\n    raise SystemExit('ran')\n"}
    files["demo-1.0.dist-info/entry_points.txt"] = b"[console_scripts]\nrun = demo:main\n"
    with Wheel(layersamples.wheel(tmp_path, "demo", files)) as opened:
        _lay(list(opened.entries(SCHEME)), tmp_path / "root")
    code = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__mp_main__')"
    around = layersamples.Surroundings(cwd=tmp_path / "root" / SITE)
    layersamples.child(code, tmp_path / "root/opt/venv/bin/run", around=around)


def test_importlib_finds_distributions_aliases_and_entry_points(tmp_path: Path) -> None:
    files = {"demo/__init__.py": b"", "my_demo-1.0.dist-info/entry_points.txt": ENTRY_POINTS}
    with Wheel(layersamples.wheel(tmp_path, "my-demo", files)) as opened:
        entries = [
            *opened.entries(SCHEME),
            *wheel.environment(SCHEME, "/usr/bin/python3.11"),
            *wheel.alias("other-name", "2.0+cpu", "my-demo", SCHEME),
        ]
        _lay(entries, tmp_path / "root")
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from importlib import metadata
print(metadata.version("my-demo"), metadata.version("other-name"), metadata.version("other_name"))
print(metadata.metadata("other-name")["Name"], not metadata.files("other-name"))
print(sorted(entry.name for entry in metadata.distribution("my-demo").entry_points if entry.group == "console_scripts"))
"""
    assert layersamples.child(code, tmp_path / "root" / SITE).splitlines() == [
        "1.0 2.0+cpu 2.0+cpu",
        "other-name True",
        "['Plain', 'dotted', 'with-extra']",
    ]


def test_an_environment_is_one_of_the_bases_interpreter(tmp_path: Path) -> None:
    _lay(list(wheel.environment(Scheme("opt/venv", "3.11"), "/usr/bin/python3.11")), tmp_path)
    links = {path.name: str(path.readlink()) for path in (tmp_path / "opt/venv/bin").iterdir()}
    assert links == {"python3.11": "/usr/bin/python3.11", "python3": "python3.11", "python": "python3.11"}
    assert (tmp_path / "opt/venv/pyvenv.cfg").read_text().splitlines() == [
        "home = /usr/bin",
        "include-system-site-packages = false",
        "version = 3.11",
    ]


def test_a_whole_wheel_makes_a_layer(tmp_path: Path) -> None:
    path = layersamples.wheel(tmp_path, "demo", {"demo/__init__.py": b"x", "big.bin": bytes(3 << 20)})
    with Wheel(path) as opened:
        entries = tarlayer.complete(opened.entries(SCHEME))
        assert {entry.size for entry in entries if entry.path.endswith("big.bin")} == {3 << 20}
