"""What a port reports of a series: the range-diff, evidence, what was dropped, and what a person decides."""

from __future__ import annotations

from nvllm.patches.series import Patch, Series, SourceEvidence, Upstream
from nvllm.patches.source import ArchiveTree
from nvllm.patches.unified import Diff, FileDiff, hunks
from nvllm.port import report, written
from nvllm.port.merge import Ported, Unmerged
from nvllm.port.newspec import Need
from nvllm.port.report import ReportLine

OLD = b"".join(b"line %d\n" % number for number in range(30))


def diff(path: str, new: bytes, *others: str) -> Diff:
    files = (FileDiff(path, path, hunks(OLD, new)), *(FileDiff(other, other, hunks(OLD, new)) for other in others))
    return Diff(path, files)


def carried(name: str, requires: tuple[str, ...] = (), evidence: tuple[SourceEvidence, ...] = ()) -> Patch:
    return Patch(name, "carried", name, Upstream("none"), ("vllm/a.py",), ("t",), requires=requires, evidence=evidence)


MADE = OLD.replace(b"line 15\n", b"line 15, patched by somebody\n")
PORTED = OLD.replace(b"line 15\n", b"line 15, ported by somebody\n")
OTHERWISE = (SourceEvidence("vllm/c.py", ("otherwise",), ("line 15",)),)
SERIES = Series(
    "nvllm.series/1",
    "v1",
    "1.0.0",
    40 * "a",
    (
        carried("same"),
        carried("merged", ("there",)),
        carried("there"),
        carried("otherwise", (), OTHERWISE),
        carried("conflict"),
        Patch("gone", "upstream", "gone", Upstream("merged"), ("vllm/a.py",)),
    ),
)
DIFFS = {
    "same": diff("vllm/a.py", MADE),
    "merged": diff("vllm/a.py", MADE, "vllm/b.py", "vllm/old.py"),
    "there": diff("vllm/a.py", MADE),
    "otherwise": diff("vllm/a.py", MADE),
    "conflict": diff("vllm/a.py", MADE),
}
ALL = (
    Ported("same", "moved", "at other lines", DIFFS["same"], DIFFS["same"]),
    Ported(
        "merged",
        "merged",
        "by hand",
        diff("vllm/a.py", PORTED, "vllm/new.py"),
        DIFFS["merged"],
        renamed=(("vllm/old.py", "vllm/new.py"),),
        otherwise=("otherwise",),
    ),
    Ported("there", "upstream", "all of it"),
    Ported("otherwise", "upstream", "its evidence holds"),
    Ported(
        "conflict", "conflict", "in vllm/a.py", unmerged=(Unmerged("vllm/a.py", "both changed the same lines", b""),)
    ),
    Ported("gone", "missing", "not in this source"),
)
NEEDS = (
    Need("vllm.version", "change", "1.0.0", "2.0.0"),
    Need("environment.VLLM_X", "decide", "VLLM_X", "remove it"),
    Need("device-code", "unread", "", "nothing was asked"),
)


def test_a_report_has_all_four_parts() -> None:
    evidence = written.evidence(SERIES, DIFFS, ALL, ArchiveTree({"vllm/a.py": MADE}))
    reported = report.of(SERIES, DIFFS, ALL, NEEDS, evidence)
    assert {*reported.changes} == {"same", "merged"}
    assert reported.changes["same"] == ()
    assert "-+line 15, patched by somebody" in reported.changes["merged"]
    assert "++line 15, ported by somebody" in reported.changes["merged"]
    assert reported.evidence == {
        "there": (SourceEvidence("vllm/a.py", ("line 15, patched by somebody",)),),
        "otherwise": OTHERWISE,
    }
    assert reported.dropped == (
        ReportLine("merged: vllm/b.py", "the patch changes nothing in it any more"),
        ReportLine("merged: requires there", "there is upstream"),
        ReportLine("there", "all of it"),
        ReportLine("otherwise", "its evidence holds"),
    )
    assert reported.decide == (
        ReportLine("merged", "read what it takes of otherwise, which is upstream in another form"),
        ReportLine("conflict: vllm/a.py", "both changed the same lines"),
        ReportLine("gone", "not in this source"),
        ReportLine("environment.VLLM_X", "VLLM_X: remove it"),
    )
