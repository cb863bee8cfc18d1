"""`nvllm fetch`: what is missing is counted, fetched once, and refused where there is no network."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvllm.cli.fetch import needed
from nvllm.cli.main import main
from nvllm.core.lock import LockedFile
from nvllm.sources import client as clients
from nvllm.sources import fetch, indexes
from nvllm.sources.indexes import Configuration
from support import locks, silence
from support.buildable import IMAGE, Buildable


@pytest.fixture
def demo(tmp_path: Path) -> Buildable:
    return Buildable(tmp_path)


def test_a_full_store_needs_no_network(demo: Buildable, capsys: pytest.CaptureFixture[str]) -> None:
    files = {one.sha256: one.size for one in demo.lock.files}
    status, said = demo.nvllm(capsys, "fetch", IMAGE)
    assert (status, said["result"]) == (
        0,
        {
            "image": IMAGE,
            "platform": "linux/amd64",
            "files": len(files),
            "bytes": sum(files.values()),
            "missing_files": 0,
            "missing_bytes": 0,
            "fetched": True,
            "models": [],
            "base": None,
        },
    )


def test_what_is_missing_is_counted_refused_offline_and_fetched(
    demo: Buildable, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = demo.lock.wheels[0].file
    place = demo.places.store / "sha256" / file.sha256[:2] / file.sha256
    elsewhere = tmp_path / file.filename
    place.rename(elsewhere)
    status, said = demo.nvllm(capsys, "fetch", IMAGE, "--dry-run")
    result = said["result"]
    assert (status, result["missing_files"], result["missing_bytes"]) == (0, 1, file.size)
    assert not result["fetched"]
    status, said = demo.nvllm(capsys, "fetch", IMAGE)
    assert (status, [one["code"] for one in said["refusals"]]) == (3, ["NV204"])
    monkeypatch.setattr(indexes.Sources, "locate", lambda *_: [elsewhere.as_uri()])
    monkeypatch.setattr(demo, "arguments", lambda *words: online(demo, *words))
    assert demo.nvllm(capsys, "fetch", IMAGE)[1]["result"]["missing_files"] == 1
    assert place.read_bytes() == elsewhere.read_bytes()
    assert demo.nvllm(capsys, "fetch", IMAGE)[1]["result"]["missing_files"] == 0


def test_a_damaged_file_is_not_there(
    demo: Buildable, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, package = demo.lock.wheels[0].file, demo.lock.files[0]
    places = {file.sha256: demo.places.store / "sha256" / file.sha256[:2] / file.sha256 for file in (wheel, package)}
    elsewhere = tmp_path / "good"
    elsewhere.mkdir()
    for sha, place in places.items():
        good = place.read_bytes()
        (elsewhere / sha).write_bytes(good)
        place.chmod(0o644)
        place.write_bytes(bytes([good[0] ^ 1]) + good[1:])  # of the same length
    _, said = demo.nvllm(capsys, "fetch", IMAGE, "--dry-run")
    assert (said["result"]["missing_files"], said["result"]["missing_bytes"]) == (2, wheel.size + package.size)
    assert all(place.exists() for place in places.values())
    status, said = demo.nvllm(capsys, "fetch", IMAGE)
    assert (status, {one["where"] for one in said["refusals"]}) == (3, {str(place) for place in places.values()})
    assert {one["code"] for one in said["refusals"]} == {"NV205"}
    assert {one["cure"] for one in said["refusals"]} == {f"nvllm fetch {IMAGE} --platform linux/amd64"}
    assert not any(place.exists() for place in places.values())
    # The cure, on a host with a network.
    monkeypatch.setattr(indexes.Sources, "locate", lambda _, file: [(elsewhere / file.sha256).as_uri()])
    monkeypatch.setattr(demo, "arguments", lambda *words: online(demo, *words))
    assert demo.nvllm(capsys, "fetch", IMAGE)[1]["result"]["missing_files"] == 2
    assert {
        place: place.read_bytes() == (elsewhere / sha).read_bytes() for sha, place in places.items()
    } == dict.fromkeys(places.values(), True)


def online(demo: Buildable, *words: str) -> list[str]:
    return [one for one in Buildable.arguments(demo, *words) if one != "--offline"]


def test_a_model_of_a_hub_is_asked_for_only_with_models(demo: Buildable, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.nvllm(capsys, "fetch", IMAGE)[1]["result"]["models"] == []
    assert demo.nvllm(capsys, "fetch", IMAGE, "--models", "--dry-run")[1]["result"]["models"] == ["hub"]


def test_an_image_without_kernels_needs_no_compilers() -> None:
    files: tuple[LockedFile, ...] = locks.GOOD.files
    assert needed(locks.GOOD) == files


@pytest.fixture
def lacking(demo: Buildable, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A project whose store lacks the wheels; what is returned lets pip have the index at an address, and no other."""
    for wheel in demo.lock.wheels:
        (demo.places.store / "sha256" / wheel.file.sha256[:2] / wheel.file.sha256).unlink(missing_ok=True)
    monkeypatch.setenv("NVLLM_HOME", str(demo.home))
    monkeypatch.setattr(demo, "arguments", lambda *words: online(demo, *words))
    monkeypatch.setattr(clients, "CONNECT", 0.5)
    monkeypatch.setattr(clients, "PATIENCE", 0.5)
    monkeypatch.setattr(fetch, "NOTICE", 0.1)

    def configured(address: str) -> None:
        said = Configuration((f"http://{address}/simple",), (), (address,), None)
        monkeypatch.setattr(indexes, "read_configuration", lambda: said)

    return configured


def test_an_index_that_takes_no_connection_is_said_soon(
    demo: Buildable, capsys: pytest.CaptureFixture[str], lacking: Callable[[str], None]
) -> None:
    with silence.hole() as address:
        lacking(address)
        began = time.monotonic()
        assert main(demo.arguments("fetch", IMAGE)) == 1
    assert time.monotonic() - began < 20  # with one attempt after the other it would be minutes
    said = capsys.readouterr()
    assert said.err.count("waiting for an answer of index pypi") == 1
    assert f"{address} takes no connection: timed out" in said.out


def test_a_closed_port_is_said_soon(
    demo: Buildable, capsys: pytest.CaptureFixture[str], lacking: Callable[[str], None]
) -> None:
    lacking("127.0.0.1:9")
    status, said = demo.nvllm(capsys, "fetch", IMAGE)
    assert (status, {one["code"] for one in said["refusals"]}) == (1, {"NV206"})
    assert {one["found"] for one in said["refusals"]} <= {
        "127.0.0.1:9 takes no connection: [Errno 111] Connection refused",
        "ConnectError: [Errno 111] Connection refused",
    }


def test_a_slow_index_is_waited_for(
    demo: Buildable, capsys: pytest.CaptureFixture[str], lacking: Callable[[str], None]
) -> None:
    """Its answer, which is no page of an index, comes later than a connection may take."""
    with silence.slow(1.0) as address:
        lacking(address)
        status, said = demo.nvllm(capsys, "fetch", IMAGE)
    assert status == 1
    assert all("offers it" in one["found"] or "another form" in one["found"] for one in said["refusals"])
