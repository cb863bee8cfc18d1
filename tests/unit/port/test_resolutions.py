"""What is remembered of a resolution, and where it is taken: one table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nvllm.port import gitmerge
from nvllm.port.resolutions import Resolutions

PATH = "vllm/a.py"
OLD = b"".join(b"line %d\n" % number for number in range(40))
NEW = OLD.replace(b"line 15\n", b"15\n")


def merged(old: bytes, new: bytes) -> bytes:
    """Return what git makes of NEW and a patch of OLD that changes lines 15 and 30."""
    patched = old.replace(b"line 15\n", b"line 15, patched\n").replace(b"line 30\n", b"line 30, patched\n")
    return gitmerge.merge(new, old, patched).content


FIRST = merged(OLD, NEW)
BY_HAND = NEW.replace(b"15\n", b"15, patched\n", 1).replace(b"line 30\n", b"line 30, patched\nas a person wrote it\n")
OLDER = OLD.replace(b"line 2\n", b"")
"""The old source of another series with the same patch."""
LATER = b"more\n" + NEW.replace(b"line 22\n", b"22\n")
CASES: Mapping[str, tuple[str, bytes, bytes | None]] = {
    "the same": (PATH, FIRST, BY_HAND),
    "another series": (PATH, merged(OLDER, NEW.replace(b"line 2\n", b"")), BY_HAND.replace(b"line 2\n", b"")),
    "a later release": (PATH, merged(OLD, LATER), b"more\n" + BY_HAND.replace(b"line 22\n", b"22\n")),
    "another file": ("vllm/b.py", FIRST, None),
    "another conflict": (PATH, merged(OLD, NEW.replace(b"15\n", b"fifteen\n")), None),
    "the same conflict, and other lines where the person wrote": (
        PATH,
        merged(OLD, NEW.replace(b"line 32\n", b"32\n")),
        None,
    ),
    "the same conflict, and another": (PATH, merged(OLD, NEW.replace(b"line 30\n", b"30\n")), None),
    "a merge without a conflict": (PATH, merged(OLD, OLD), None),
}


def test_a_resolution_is_taken_where_the_same_conflicted_and_it_applies(tmp_path: Path) -> None:
    kept = Resolutions(tmp_path / "resolutions")
    assert kept.recall(PATH, FIRST) is None
    kept.remember(PATH, FIRST, BY_HAND)
    assert {name: kept.recall(path, content) for name, (path, content, _) in CASES.items()} == {
        name: expected for name, (_, _, expected) in CASES.items()
    }


def test_what_a_person_wrote_where_nothing_conflicted_is_taken_for_the_same_text(tmp_path: Path) -> None:
    kept, clean = Resolutions(tmp_path), merged(OLD, OLD)
    kept.remember(PATH, clean, b"another file\n")
    assert kept.recall(PATH, clean) == b"another file\n"
    assert kept.recall(PATH, merged(OLDER, OLDER)) is None


def test_the_last_resolution_counts_and_one_that_is_damaged_is_asked_again(tmp_path: Path) -> None:
    kept = Resolutions(tmp_path)
    for content in (BY_HAND, NEW):
        kept.remember(PATH, FIRST, content)
    assert kept.recall(PATH, FIRST) == NEW
    (file,) = tmp_path.iterdir()
    for damaged in (b"", b"no diff\n", file.read_bytes().replace(b"-<<<<<<< the new source\n", b"")):
        file.write_bytes(damaged)
        assert kept.recall(PATH, FIRST) is None
