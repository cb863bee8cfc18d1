"""Build records: what a build came to comes back, whoever else writes at the same time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core import canonical
from nvllm.host.facts import ImageFacts
from nvllm.image import buildrecord
from nvllm.image.buildrecord import Record, RecordedLayer
from support import layersamples

RECORD = Record("demo", 64 * "a", "sha256:1", (RecordedLayer("base", "sha256:2", 3),), "sha256:4")
HELD = ImageFacts("sha256:1", ("sha256:2",), (), 0)


def test_a_record_comes_back(tmp_path: Path) -> None:
    assert buildrecord.read(tmp_path / "builds", RECORD.build_hash) is None
    buildrecord.write(tmp_path / "builds", RECORD)
    buildrecord.write(tmp_path / "builds", RECORD)
    assert buildrecord.read(tmp_path / "builds", RECORD.build_hash) == RECORD
    assert [path.name for path in (tmp_path / "builds").iterdir()] == [f"{RECORD.build_hash}.json"]
    text = (tmp_path / "builds" / f"{RECORD.build_hash}.json").read_text()
    assert text == canonical.pretty(json.loads(text))


def test_a_record_of_before_has_one_id(tmp_path: Path) -> None:
    document = {"image": "demo", "image_id": "sha256:1", "layers": []}
    (tmp_path / f"{'a' * 64}.json").write_text(json.dumps(document))
    assert buildrecord.read(tmp_path, "a" * 64) == Record("demo", "a" * 64, "sha256:1", ())
    assert Record("demo", "a" * 64, "sha256:1", ()).ids == ("sha256:1",)


@pytest.mark.parametrize(
    ("found", "same"),
    [
        (HELD, True),
        (replace(HELD, id="sha256:4"), True),
        (replace(HELD, diff_ids=("sha256:of the base", "sha256:2")), True),
        (replace(HELD, id="sha256:2"), False),
        (replace(HELD, diff_ids=()), False),  # an engine that was sent too little, and called it a success
        (replace(HELD, diff_ids=("sha256:2", "sha256:9")), False),
    ],
)
def test_an_image_is_known_by_either_id_and_all_its_layers(found: ImageFacts, same: bool) -> None:
    assert RECORD.is_of(found) is same


ENDING = """
import os, sys
from pathlib import Path
from nvllm.image import buildrecord
pid = os.fork()
for _ in range(60):
    buildrecord.write(Path(sys.argv[1]), buildrecord.Record("demo", "a", "sha256:1", ()))
if pid:
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_two_builds_that_end_at_the_same_time_both_put_the_record_down(tmp_path: Path) -> None:
    assert layersamples.child(ENDING, tmp_path).split() == ["0"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"image": "cpu"}', '{"image": "cpu", "image_id": "x", "layers": [1]}']
)
def test_a_damaged_record_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / f"{'a' * 64}.json").write_text(text)
    assert buildrecord.read(tmp_path, "a" * 64) is None
