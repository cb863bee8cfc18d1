"""NV920, file not written: a lock, a patch, a record or a memo that found no place. A file stands in its way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvllm.core import durable
from nvllm.core.refusal import Refusal, Refused
from nvllm.image import buildrecord
from nvllm.image.buildrecord import Record
from nvllm.lock import lockdoc
from support import locks


def refused(caught: pytest.ExceptionInfo[Refused]) -> Refusal:
    (one,) = caught.value.refusals
    assert caught.value.exit_code == 1
    return one


def test_a_lock_in_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "manifests").write_bytes(b"")
    with pytest.raises(Refused) as caught:
        lockdoc.write(tmp_path / "manifests/demo.lock.json", locks.GOOD)
    one = refused(caught)
    assert (one.code, one.where) == ("NV920", str(tmp_path / "manifests/demo.lock.json"))
    assert (one.expected, one.found) == ("a place that takes what is written", "File exists")
    assert one.cure == f"make room or give access at {tmp_path / 'manifests'}, then run the command again"


def test_a_record_of_a_build_that_is_a_directory(tmp_path: Path) -> None:
    (tmp_path / f"{'b' * 64}.json").mkdir()
    with pytest.raises(Refused) as caught:
        buildrecord.write(tmp_path, Record("demo", "b" * 64, f"sha256:{'c' * 64}", ()))
    assert (refused(caught).code, refused(caught).found) == ("NV920", "Is a directory")
    assert [path.name for path in tmp_path.iterdir()] == [f"{'b' * 64}.json"], "nothing half is left"


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_a_full_disk_wherever_it_is_met(options: list[str], unbuffered: str) -> None:
    """What is printed goes to a device that the kernel keeps full; Python may find that out when it ends."""
    package = os.fspath(Path(durable.__file__).parents[2])
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "nvllm", "patch", "list", *options],
            env={**os.environ, "PYTHONPATH": package, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("NV920 file not written\n")
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_another_error_is_not_taken_for_a_full_disk() -> None:
    error = PermissionError(13, "Permission denied", "/etc/shadow")
    assert durable.full(error) is None
