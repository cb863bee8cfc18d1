"""Which patches of a set do not apply one after the other, and which two it takes."""

from __future__ import annotations

from nvllm.patches import together, unified
from nvllm.patches.series import Patch, Series, Upstream
from nvllm.patches.unified import Diff, FileDiff
from support.series_samples import SOURCE, MappingTree

PATH = "vllm/one.py"


def diff(name: str, old: bytes, new: bytes, path: str = PATH) -> Diff:
    text = SOURCE[path]
    return Diff(f"{name}.patch", (FileDiff(path, path, unified.hunks(text, text.replace(old, new))),))


def patch(name: str, path: str = PATH, requires: tuple[str, ...] = ()) -> Patch:
    return Patch(name, "carried", name, Upstream("none"), touches=(path,), requires=requires)


def refused(*entries: tuple[Patch, Diff]) -> list[tuple[str, str, str]]:
    """Return code, expected and found of what is wrong with ENTRIES, applied in this order."""
    series = Series("nvllm.series/1", "v1", "1.2.3", 40 * "a", tuple(one for one, _ in entries))
    diffs = {one.id: change for one, change in entries}
    problems = together.conflicts(
        series, series.patches, diffs, MappingTree(SOURCE), "images/cpu.yaml: .patches.enable"
    )
    return [(one.code, one.expected, one.found) for one in problems]


def test_the_two_patches_are_named() -> None:
    harmless = patch("harmless", "vllm/two.py"), diff("harmless", b"two 5\n", b"two five\n", "vllm/two.py")
    first = patch("first"), diff("first", b"one 20\n", b"one twenty\n")
    far = patch("far"), diff("far", b"one 35\n", b"one thirty-five\n")
    second = patch("second"), diff("second", b"one 21\n", b"one twenty-one\n")
    assert refused(harmless, first, far) == []
    assert refused(harmless, first, far, second) == [
        ("NV609", "second applies with first", f"not at {PATH} @@ -18,7 +18,7 @@")
    ]


def test_a_patch_that_fits_no_source_is_a_conflict_with_nobody() -> None:
    first = patch("first"), diff("first", b"one 20\n", b"one twenty\n")
    hunks = unified.hunks(b"another line\n", b"and another\n")
    strange = patch("strange"), Diff("strange.patch", (FileDiff(PATH, PATH, hunks),))
    assert [code for code, _, _ in refused(first, strange)] == ["NV301"]


def test_what_a_patch_requires_is_no_conflict() -> None:
    first = patch("first"), diff("first", b"one 20\n", b"one twenty\n")
    on_top = unified.hunks(
        SOURCE[PATH].replace(b"one 20\n", b"one twenty\n"), SOURCE[PATH].replace(b"one 20\n", b"20\n")
    )
    second = patch("second", requires=("first",)), Diff("second.patch", (FileDiff(PATH, PATH, on_top),))
    assert refused(first, second) == []
