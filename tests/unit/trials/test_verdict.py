"""What proofs prove: real runs of pytest with the plugin, and what their results amount to for a patch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from nvllm.patches.unified import Diff, FileDiff
from nvllm.runtime import proving
from nvllm.trials import verdict
from nvllm.trials.verdict import Ran

DIFF = Diff("a patch", (FileDiff("vllm/old.py", "vllm/old.py"), FileDiff(None, "vllm/nvllm/new.py")))
"""It changes a module, and adds one in a package of its own."""

TESTS = """\
import pytest

@pytest.fixture
def broken(): raise ValueError("in the fixture")

def test_of_another_node(): assert False
def test_passes(): pass
def test_asserts(): assert 1 == 2, "one is not two"
def test_fails(): pytest.fail("it says so")
def test_other_error(): {}["a"]
@pytest.mark.nvllm_error("KeyError")
def test_named_error(): {}["a"]
@pytest.mark.nvllm_error("LookupError")
def test_named_above(): {}["a"]
def test_setup(broken): assert False
def test_skipped(): pytest.skip("not here")
def test_new_module(): import vllm.nvllm.new
def test_new_name(): from vllm.old import added
def test_library(): import no_library_of_this_name
def test_no_vllm(): raise ModuleNotFoundError("no vllm", name="vllm")
@pytest.mark.parametrize("number", [1, 2])
def test_control(number): assert number == 1
class TestAll:
    def test_within(self): assert False
"""
EXPECTED = {
    "test_passes": "passed",
    "test_asserts": "failed",
    "test_fails": "failed",
    "test_other_error": "error",
    "test_named_error": "failed",
    "test_named_above": "failed",
    "test_setup": "error",
    "test_skipped": "none",
    "test_new_module": "failed",
    "test_new_name": "failed",
    "test_library": "error",
    "test_no_vllm": "error",
    "test_control": "failed",
    "TestAll::test_within": "failed",
    "test_of_no_such_name": "none",
}


def outcomes(tmp_path: Path) -> dict[str, Ran]:
    """Run TESTS with pytest and the plugin, beside a vLLM without the patch, and return what each node did."""
    for name in ("vllm", "plugin"):
        (tmp_path / name).mkdir()
    (tmp_path / "vllm/__init__.py").touch()
    (tmp_path / "vllm/old.py").touch()
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "test_top.py").write_text("from vllm.nvllm.new import it\n\ndef test_it(): pass\n")
    (tmp_path / "test_lacks.py").write_text("import no_library_of_this_name\n\ndef test_it(): pass\n")
    shutil.copy(proving.__file__, tmp_path / "plugin/nvllm_proving.py")
    argv = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--import-mode=importlib"]
    argv += ["--continue-on-collection-errors", "--strict-markers", "--rootdir", ".", "-c", "/dev/null"]
    argv += ["-p", "nvllm_proving", "test_it.py", "test_top.py", "test_lacks.py"]
    nodes = [f"test_it.py::{name}" for name in EXPECTED] + ["test_top.py::test_it", "test_lacks.py::test_it"]
    path = f"{tmp_path}:{tmp_path / 'plugin'}"
    env = {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", proving.NODES: json.dumps(nodes)}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    listed = list(verdict.results(done.stdout + '\nnvllm-proof {"node": 1}\nnvllm-proof no json\n'))
    assert "of_another_node" not in done.stdout
    return {node: verdict.ran(verdict.of_node(listed, node), DIFF) for node in nodes}


def test_what_counts_as_a_failure_without_the_patch(tmp_path: Path) -> None:
    ran = outcomes(tmp_path)
    assert {node.removeprefix("test_it.py::"): one.outcome for node, one in ran.items()} == {
        **EXPECTED,
        "test_top.py::test_it": "failed",  # its module imports what the patch adds
        "test_lacks.py::test_it": "error",
    }
    assert ran["test_it.py::test_asserts"].text.startswith("AssertionError: one is not two")
    assert ran["test_lacks.py::test_it"].text == "ModuleNotFoundError: No module named 'no_library_of_this_name'"
    assert ran["test_it.py::test_setup"].text == "ValueError: in the fixture"


def test_the_verdict_is_of_both_runs() -> None:
    table = {
        ("failed", "passed"): "proved",
        ("passed", "passed"): "passes-without",
        ("error", "passed"): "other-error",
        ("failed", "failed"): "fails-with",
        ("passed", "error"): "fails-with",
        ("none", "passed"): "not-run",
        ("failed", "none"): "not-run",
    }
    answers = {pair: verdict.verdict(Ran(pair[0]), Ran(pair[1])) for pair in table}  # type: ignore[arg-type]  # the table has plain words
    assert answers == table
