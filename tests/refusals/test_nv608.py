"""NV608, proof does not run: pytest is not there for a proof, or says nothing where it runs."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.trials import imagetests, proving


def test_a_host_without_pytest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(Refused) as refused:
        imagetests.pytest_files()
    (refusal,) = refused.value.refusals
    assert (refusal.code, refusal.expected) == ("NV608", "the distribution pytest")
    assert refusal.cure == "install pytest for the Python that runs nvllm"


def test_a_run_in_which_no_test_says_anything_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        proving.by_node({"tests/a.py::b": "0/a.py::b"}, "Traceback\nSyntaxError: invalid syntax", "container nvllm-cpu")
    (refusal,) = refused.value.refusals
    assert (refusal.code, refusal.where) == ("NV608", "container nvllm-cpu")
    assert refusal.found == "Traceback\nSyntaxError: invalid syntax"


def test_what_a_container_gets_is_all_that_pytest_needs() -> None:
    files = {path.name for path in imagetests.pytest_files()}
    assert files >= {"pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"}
    assert all(path.exists() for path in imagetests.pytest_files())
    assert all(Path(pytest.__file__).parents[1] == path.parent for path in imagetests.pytest_files())
