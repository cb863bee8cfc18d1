"""`nvllm provenance`: refused before anything was built; then printed, written and signed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from nvllm.cache import signature
from nvllm.image import recording
from nvllm.image.buildrecord import Record, RecordedLayer, write
from nvllm.image.identity import load_build
from support.buildable import IMAGE, Buildable

A = f"sha256:{64 * 'a'}"


@pytest.fixture
def demo(tmp_path: Path) -> Buildable:
    return Buildable(tmp_path)


def test_what_nobody_built_has_no_provenance(demo: Buildable, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = demo.nvllm(capsys, "provenance", IMAGE)
    assert (status, [one["code"] for one in said["refusals"]]) == (3, ["NV317"])


def test_a_statement_is_printed_written_and_signed(
    demo: Buildable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build, _ = load_build(demo.project, IMAGE, None)
    record = Record(IMAGE, build.build_hash, A, (RecordedLayer("base", A, 1),))
    assert recording.of_record(record).whole
    write(demo.places.builds, record)
    status, said = demo.nvllm(capsys, "provenance", IMAGE)
    assert status == 0
    assert said["result"]["statement"]["subject"][0]["digest"] == {"sha256": 64 * "a"}

    key, place, signers = tmp_path / "key", tmp_path / "demo.intoto.json", tmp_path / "signers"
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "us", "-f", os.fspath(key)]
    subprocess.run(argv, check=True)
    status, written = demo.nvllm(capsys, "provenance", IMAGE, "--output", str(place), "--sign", str(key))
    assert (status, written["result"]["files"]) == (0, [str(place), f"{place}.sig"])
    assert json.loads(place.read_text()) == said["result"]["statement"]
    signers.write_text(f"us {key.with_suffix('.pub').read_text()}")
    signers.chmod(0o644)
    signed = Path(f"{place}.sig").read_bytes()
    assert signature.verify(place.read_bytes(), signed, signers, str(place), "sign it") == "us"


def test_a_key_that_is_none_writes_nothing(demo: Buildable, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build, _ = load_build(demo.project, IMAGE, None)
    write(demo.places.builds, Record(IMAGE, build.build_hash, A, ()))
    place = tmp_path / "demo.intoto.json"
    status, said = demo.nvllm(capsys, "provenance", IMAGE, "--output", str(place), "--sign", str(tmp_path / "no-key"))
    assert (status, said["refusals"][0]["code"], place.exists()) == (3, "NV909", False)


def test_a_signature_needs_a_file(demo: Buildable, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = demo.nvllm(capsys, "provenance", IMAGE, "--sign", "key")
    (one,) = said["refusals"]
    assert (status, one["code"]) == (2, "NV108")
    assert one["cure"] == f"nvllm provenance {IMAGE} --output {IMAGE}.intoto.json --sign key"
