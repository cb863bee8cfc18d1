"""NV108, bad argument: a patch is said to be proved by a test that pytest does not collect."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nvllm.cli.main import main
from nvllm.core.refusal import Refusal
from nvllm.patches import proofs
from support.rows import samples
from support.series_samples import SOURCE, changed, series_directory, write, write_tree

TESTS = """\
import pytest

@pytest.mark.parametrize("size", ["small", "large"])
def test_sizes(size): ...

class TestAll:
    def test_within(self): ...
"""
FILE = "tests/test_one.py"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with tests, a series, and two copies of a source. Its pytest loads no plugins, which take longest."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --disable-plugin-autoload\n")
    write_tree(tmp_path, {FILE: TESTS.encode(), "tests/test_broken.py": b"import nothing_of_that_name\n"})
    (tmp_path / "images").mkdir()
    write(series_directory(tmp_path))
    (tmp_path / "patches/v1/series.yaml").write_text(
        (tmp_path / "patches/v1/series.yaml").read_text().replace("patches:\n", "patches: []\n")
    )
    write_tree(tmp_path / "before", SOURCE)
    write_tree(tmp_path / "after", changed(one=(b"one 20\n", b"one twenty\n")))
    return tmp_path


def refused(root: Path, *nodes: str) -> list[Refusal]:
    found = list(proofs.refusals(root, nodes))
    assert {(one.code, one.expected) for one in found} <= {("NV108", "a test that pytest collects")}
    return found


@pytest.mark.parametrize("node", samples(["test_sizes[small]", "TestAll::test_within"], ["test_sizes", "TestAll"]))
def test_what_pytest_collects_is_a_proof(root: Path, node: str) -> None:
    assert refused(root, f"{FILE}::{node}") == []


@pytest.mark.parametrize(
    ("node", "found"),
    samples(
        [
            (f"{FILE}::test_sizes[huge]", "not found: "),
            ("tests/test_none.py::test_one", "no file tests/test_none.py"),
            ("tests/test_broken.py::test_one", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
            (FILE, "not FILE::TEST"),
            (f"--rootdir=/::{FILE}", "not FILE::TEST"),
        ],
        [(f"{FILE}::test_none", "not found: "), (f"{FILE}::TestAll::test_none", "not found: ")],
    ),
)
def test_what_it_does_not_collect_is_none(root: Path, node: str, found: str) -> None:
    (refusal,) = refused(root, node)
    assert refusal.where == f"--proved-by {node}"
    assert refusal.found.startswith(found)
    assert refusal.cure.startswith("write the test first; see it collected: python -m pytest --collect-only ")


def test_of_many_those_that_are_none_are_named(root: Path) -> None:
    good = [f"{FILE}::test_sizes", f"{FILE}::TestAll::test_within"]
    assert refused(root, *good) == []
    bad = [f"{FILE}::test_none", "tests/test_broken.py::test_one"]
    assert [refusal.where for refusal in refused(root, *good, *bad)] == [f"--proved-by {node}" for node in bad]
    assert [refusal.found for refusal in refused(root, *good, FILE)] == ["not FILE::TEST"]


def test_without_pytest_the_file_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytest", None)
    assert not proofs.pytest_is_here()
    assert refused(root, f"{FILE}::test_sizes[huge]", f"{FILE}::TestAll::test_within") == []
    (refusal,) = refused(root, f"{FILE}::test_none")
    assert refusal.found == f"no such test in {FILE}"


def test_no_patch_is_written_that_nothing_proves(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NVLLM_HOME", str(root / "home"))
    monkeypatch.chdir(root)  # BEFORE and AFTER are given as one would type them
    before = (root / "patches/v1/series.yaml").read_bytes()
    argv = [
        "--project",
        str(root),
        "patch",
        "new",
        "louder",
        "before",
        "after",
        "--summary",
        "Greet louder",
        "--proved-by",
    ]
    assert main([*argv, f"{FILE}::test_none"]) == 2
    assert capsys.readouterr().err.startswith(
        "NV108 bad argument\n  where     --proved-by tests/test_one.py::test_none\n"
    )
    assert (root / "patches/v1/series.yaml").read_bytes() == before
    assert [path.name for path in (root / "patches/v1").iterdir()] == ["series.yaml"]
    assert main([*argv, f"{FILE}::test_sizes"]) == 0
    assert not list(root.rglob("__pycache__")) + list(root.rglob(".pytest_cache"))
