"""`nvllm store export` and `import`: from one home to another, which then has all that a build needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.buildable import IMAGE, Buildable


def test_a_store_is_carried_to_another_home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there, place = Buildable(tmp_path), str(tmp_path / "demo.tar")
    status, said = there.nvllm(capsys, "store", "export", IMAGE, place)
    count = len({one.sha256 for one in there.lock.files})
    assert (status, said["result"]["files"], said["result"]["bytes"]) == (0, count, Path(place).stat().st_size)

    there.home = tmp_path / "other"
    assert there.nvllm(capsys, "fetch", IMAGE)[0] == 3
    status, said = there.nvllm(capsys, "store", "import", place)
    assert (status, said["result"]["new"], said["result"]["files"]) == (0, count, count)
    assert there.nvllm(capsys, "fetch", IMAGE)[1]["result"]["missing_files"] == 0
    assert there.nvllm(capsys, "store", "import", place)[1]["result"]["new"] == 0


def test_what_the_store_lacks_is_refused_with_the_command_that_fetches_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = Buildable(tmp_path)
    demo.home = tmp_path / "other"
    status, said = demo.nvllm(capsys, "store", "export", IMAGE, str(tmp_path / "demo.tar"))
    assert status == 3
    assert {(one["code"], one["cure"]) for one in said["refusals"]} == {
        ("NV204", f"nvllm fetch {IMAGE} --platform linux/amd64")
    }


def test_no_such_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = Buildable(tmp_path).nvllm(capsys, "store", "import", str(tmp_path / "missing.tar"))
    assert (status, said["refusals"][0]["code"]) == (2, "NV108")
