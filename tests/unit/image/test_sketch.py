"""Sketches of layers: the few files that differ are found among many, without the other layer."""

from __future__ import annotations

import base64
import hashlib
import random
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.progress import Silent
from nvllm.image import sketch
from nvllm.image.contents import FileRange
from nvllm.image.sketch import Row
from nvllm.layers import tarlayer


def row(name: str, content: str = "") -> Row:
    return Row(sketch.hashed(name), 48, 0o644, 0, 0, 10**9, 3, hashlib.sha256(content.encode()).digest())


MANY = {f"file{number}": row(f"file{number}") for number in range(2000)}
ALL = sketch.sketch(MANY.values())


def test_the_order_does_not_matter() -> None:
    turned = list(MANY.values())
    random.Random(1).shuffle(turned)
    assert sketch.sketch(turned) == ALL
    assert len(ALL) < 6000


def test_equal_layers_have_no_changes() -> None:
    assert sketch.changes(ALL, ALL) == sketch.Changes((), (), whole=True)


@given(st.sets(st.sampled_from(sorted(MANY)), max_size=8), st.integers(0))
def test_a_few_changed_files_are_found_with_both_rows(names: set[str], seed: int) -> None:
    after = {**MANY, **{name: row(name, str(seed)) for name in names}}
    found = sketch.changes(ALL, sketch.sketch(after.values()))
    # Decoding fails for one set in some thousands of this size; it says so then, and invents nothing.
    assert set(found.first) <= {MANY[name] for name in names}
    assert set(found.second) <= {after[name] for name in names}
    assert found.whole == (len(found.first) == len(found.second) == len(names))


@pytest.mark.parametrize("number", [1, 2, 5, 10])
def test_ten_files_are_no_problem(number: int) -> None:
    after = {**MANY, **{f"file{one}": row(f"file{one}", "new") for one in range(number)}}
    found = sketch.changes(ALL, sketch.sketch(after.values()))
    assert (len(found.first), len(found.second), found.whole) == (number, number, True)


def test_a_text_that_is_the_sketch_of_no_layer_ends_too() -> None:
    """A row in one of its three cells alone: taking it out of one puts it into the others, and back again."""
    number = int.from_bytes(row("file").packed(), "big")
    data = base64.b64decode(sketch.sketch([row("file")]))
    width = len(data) // sketch.CELLS
    cells = [data[at : at + width] for at in range(0, len(data), width)]
    first = next(index for index, cell in enumerate(cells) if int.from_bytes(cell[4:], "big") == number)
    forged = b"".join(cell if index == first else bytes(width) for index, cell in enumerate(cells))
    assert not sketch.changes(base64.b64encode(forged).decode(), sketch.EMPTY).whole


def test_the_words_of_a_report() -> None:
    after = {name: one for name, one in MANY.items() if name != "file7"} | {
        "new": row("new"),
        "file1": replace(MANY["file1"], mode=0o755, time=2 * 10**9),
    }
    gone = f"a path whose sha256 begins with {sketch.hashed('file7').hex()}"
    found = list(sketch.differences("wheels", ALL, after))
    assert {(one.path, one.attribute, one.first, one.second) for one in found} == {
        ("file1", "mode", "0644", "0755"),
        ("file1", "mtime", "1", "2"),
        ("new", "file", "absent", "present"),
        (gone, "file", "present", "absent"),
    }
    assert {one.layer for one in found} == {"wheels"}


def test_files_that_came_and_went() -> None:
    after = {name: one for name, one in MANY.items() if name != "file7"} | {"new": row("new")}
    found = sketch.changes(ALL, sketch.sketch(after.values()))
    assert (found.first, found.second, found.whole) == ((MANY["file7"],), (row("new"),), True)


def test_too_many_changes_are_said() -> None:
    after = [replace(one, mode=0o755) for one in MANY.values()]
    assert not sketch.changes(ALL, sketch.sketch(after)).whole


@pytest.mark.parametrize("text", ["", "AAAA", "no base64!", ALL[:-8]])
def test_what_is_no_sketch_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        sketch.changes(ALL, text)


def test_the_rows_of_a_layer(tmp_path: Path) -> None:
    entries = [tarlayer.blob("opt/x", b"abc", executable=True), tarlayer.link("opt/y", "x")]
    layer = tarlayer.write("top", entries, epoch=7, path=tmp_path / "top.tar", progress=Silent())
    found = sketch.rows(FileRange(layer.path, 0, layer.size))
    assert list(found) == ["opt", "opt/x", "opt/y"]
    assert found["opt/x"] == Row(
        sketch.hashed("opt/x"), tarfile.REGTYPE[0], 0o755, 0, 0, 7 * 10**9, 3, hashlib.sha256(b"abc").digest()
    )
    assert found["opt/y"].content == hashlib.sha256(b"x").digest()
