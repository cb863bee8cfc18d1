"""NV506, disk too small: a file system has less free space than the work needs."""

from __future__ import annotations

from pathlib import Path

from nvllm.host import checks
from nvllm.host import facts as host
from support.host_samples import GIB, refusals


def test_more_than_this_disk_holds(tmp_path: Path) -> None:
    facts = host.probe([tmp_path / "cache", tmp_path / "runs"])
    needs = (
        checks.DiskNeed(str(tmp_path / "cache"), 2**60, "the image"),
        checks.DiskNeed(str(tmp_path / "runs"), GIB, "this run"),
    )
    (found,) = (r for r in refusals(checks.Subject(None, facts, needs)) if r.code == "NV506")
    assert found.where == f"{tmp_path}/cache, {tmp_path}/runs"
    assert found.expected == "at least 1073741825.0 GiB free (1073741824.0 GiB for the image, 1.0 GiB for this run)"
    assert found.found.endswith(" GiB free")
    assert found.cure == "nvllm gc"


def test_what_fits_is_not_refused(tmp_path: Path) -> None:
    facts = host.probe([tmp_path])
    subject = checks.Subject(None, facts, (checks.DiskNeed(str(tmp_path), 1, "one byte"),))
    assert [refusal for refusal in refusals(subject) if refusal.code == "NV506"] == []
