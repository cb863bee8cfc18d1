"""NV403, model changed: a model file is extra, missing, or not as locked."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from nvllm.core.lock import LockedModel
from nvllm.core.refusal import Refusal, Refused
from nvllm.models.memo import HashCache
from nvllm.models.modeltree import located, tree_of, verify
from nvllm.sources import hub
from support.hubserver import FIRST, REPO, WEIGHTS, serving

CURE = "nvllm model make tiny"
REGULAR = "a regular file with one name, which not every user may write"
COPY = "put a copy of the file itself in the place of {}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    (directory / "sub").mkdir(parents=True)
    (directory / "config.json").write_bytes(b"{}")
    (directory / "sub/weights").write_bytes(b"\x01" * 100)
    return directory


@pytest.fixture
def locked(model: Path) -> LockedModel:
    tree, files = tree_of(model)
    return LockedModel("directory", tree, files)


def _one(refusals: list[Refusal]) -> Refusal:
    (refusal,) = refusals
    assert refusal.code == "NV403"
    return refusal


def test_an_extra_file(model: Path, locked: LockedModel) -> None:
    (model / "sub/ex tra").write_bytes(b"")
    refusal = _one(verify(locked, model, HashCache.none(), cure=CURE))
    place = f"{model}/sub/ex tra"
    assert refusal == Refusal("NV403", place, "no such file", "an extra file", f"move it out of {model}")


def test_a_missing_file(model: Path, locked: LockedModel) -> None:
    (model / "sub/weights").unlink()
    refusal = _one(verify(locked, model, HashCache.none(), cure=CURE))
    assert refusal == Refusal("NV403", f"{model}/sub/weights", "100 bytes", "no such file", CURE)
    with pytest.raises(Refused) as caught:
        located(locked, model, cure=CURE)
    assert _one(list(caught.value.refusals)).where == f"{model}/sub/weights"


def test_another_size(model: Path, locked: LockedModel) -> None:
    with (model / "sub/weights").open("ab") as stream:
        stream.write(b"x")
    refusal = _one(verify(locked, model, HashCache.none(), cure=CURE))
    assert refusal == Refusal("NV403", f"{model}/sub/weights", "100 bytes", "101 bytes", CURE)


def test_the_same_size_and_other_bytes(model: Path, locked: LockedModel) -> None:
    (model / "sub/weights").write_bytes(b"\x02" * 100)
    refusal = _one(verify(locked, model, HashCache.none(), cure=CURE))
    old, new = (hashlib.sha256(bytes([byte]) * 100).hexdigest()[:12] for byte in (1, 2))
    assert refusal == Refusal("NV403", f"{model}/sub/weights", f"sha256 {old}", f"sha256 {new}", CURE)


def _link(place: Path) -> None:
    os.rename(place, place.parent.parent / "elsewhere")
    place.symlink_to("../elsewhere")


def _second_name(place: Path) -> None:
    os.link(place, place.parent.parent / "elsewhere")


def _socket(place: Path) -> None:
    place.unlink()
    here = os.getcwd()
    os.chdir(place.parent)  # a socket's address has room for about a hundred bytes
    try:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(place.name)
    finally:
        os.chdir(here)


def _fifo(place: Path) -> None:
    place.unlink()
    os.mkfifo(place)


def _writable(place: Path) -> None:
    place.chmod(0o666)


UNFIT = [
    (_link, "a symbolic link", COPY),
    (_second_name, "a file with 2 names (hard links)", COPY),
    (_socket, "a socket", COPY),
    (_fifo, "a FIFO", COPY),
    (_writable, "a file that every user may write, mode 0666", "chmod o-w {}"),
]


@pytest.mark.parametrize(("spoil", "found", "cure"), UNFIT)
def test_a_file_that_is_no_regular_file_of_its_own(
    model: Path, locked: LockedModel, spoil: Callable[[Path], None], found: str, cure: str
) -> None:
    """Neither locked nor verified nor mounted."""
    place = model / "config.json"
    spoil(place)
    expected = Refusal("NV403", str(place), REGULAR, found, cure.format(place))
    assert verify(locked, model, HashCache.none(), cure=CURE) == [expected]
    for ask in (lambda: tree_of(model), lambda: located(locked, model, cure=CURE)):
        with pytest.raises(Refused) as caught:
            ask()
        assert list(caught.value.refusals) == [expected]


def test_a_directory_that_is_a_link_holds_nothing(model: Path, locked: LockedModel) -> None:
    (model / "sub").rename(model.parent / "sub")
    (model / "sub").symlink_to("../sub")
    linked, missing = verify(locked, model, HashCache.none(), cure=CURE)
    assert (linked.where, linked.found) == (f"{model}/sub", "a symbolic link")
    assert (missing.where, missing.found) == (f"{model}/sub/weights", "no such file")


@pytest.mark.parametrize("below", [".", "sub"])
def test_a_directory_that_every_user_may_write(model: Path, locked: LockedModel, below: str) -> None:
    (model / below).chmod(0o777)
    refusal = _one(verify(locked, model, HashCache.none(), cure=CURE))
    assert refusal.where == str(model / below)
    assert refusal.found == "a directory that every user may write, mode 0777"
    assert refusal.cure == f"chmod o-w {model / below}"


def test_a_name_that_is_not_utf_8(model: Path, locked: LockedModel) -> None:
    """It must be possible to print the refusal, whatever the name."""
    os.close(os.open(os.fsencode(model) + b"/\xff", os.O_CREAT | os.O_WRONLY, 0o644))
    refusal = _one(verify(locked, model, HashCache.none(), cure=CURE))
    assert refusal.where.encode() == f"{model}/\\xff".encode()
    assert (refusal.found, refusal.cure) == ("a name that is not UTF-8", "rename it, or lock the model without it")


def test_everything_at_once_in_one_order(model: Path, locked: LockedModel) -> None:
    (model / "extra").write_bytes(b"")
    (model / "sub/weights").write_bytes(b"")
    (model / "config.json").unlink()
    os.mkfifo(model / "fifo")
    refusals = verify(locked, model, HashCache.none(), cure=CURE)
    assert [Path(refusal.where).name for refusal in refusals] == ["config.json", "extra", "fifo", "weights"]
    assert {refusal.code for refusal in refusals} == {"NV403"}


@pytest.fixture
def cached(tmp_path: Path) -> tuple[LockedModel, Path]:
    """A model of the hub and a cache that the real client filled, from a small hub on loopback."""
    cache = tmp_path / "cache"
    with serving(FIRST) as server:
        locked = hub.resolve(REPO, "main", cache_dir=cache, endpoint=server.endpoint)
        hub.download(locked, cache, endpoint=server.endpoint)
    assert verify(locked, cache, HashCache.none(), cure=CURE) == []
    return locked, cache


def _snapshot(cached: tuple[LockedModel, Path]) -> Path:
    locked, cache = cached
    return cache / "models--acme--tiny/snapshots" / str(locked.revision)


def test_a_changed_blob(cached: tuple[LockedModel, Path]) -> None:
    place = _snapshot(cached) / WEIGHTS
    place.resolve().write_bytes(b"\x09" * len(FIRST[WEIGHTS]))
    refusal = _one(verify(*cached, HashCache.none(), cure=CURE))
    assert refusal.where == str(place)
    assert refusal.expected == f"sha256 {hashlib.sha256(FIRST[WEIGHTS]).hexdigest()[:12]}"
    assert refusal.found.startswith("sha256 ")
    assert refusal.cure == f"hf download {REPO} --revision {cached[0].revision} --force-download"


@pytest.mark.parametrize("lost", ["link", "blob"])
def test_a_file_missing_in_the_snapshot(cached: tuple[LockedModel, Path], lost: str) -> None:
    place = _snapshot(cached) / "config.json"
    (place if lost == "link" else place.resolve()).unlink()
    refusal = _one(verify(*cached, HashCache.none(), cure=CURE))
    assert (refusal.where, refusal.found) == (str(place), "no such file")
    assert refusal.cure == f"hf download {REPO} --revision {cached[0].revision} --force-download"


def test_an_extra_file_in_the_snapshot(cached: tuple[LockedModel, Path]) -> None:
    place = _snapshot(cached) / "modeling_tiny.py"
    place.write_text("")
    assert _one(verify(*cached, HashCache.none(), cure=CURE)).cure == f"move it out of {_snapshot(cached)}"


@pytest.mark.parametrize("target", ["/etc/passwd", "../../refs/main", "../../../elsewhere", "../../blobs/../refs/main"])
def test_a_link_of_the_snapshot_that_leads_out_of_the_blobs(cached: tuple[LockedModel, Path], target: str) -> None:
    place = _snapshot(cached) / "config.json"
    place.unlink()
    place.symlink_to(target)
    refusal = _one(verify(*cached, HashCache.none(), cure=CURE))
    assert refusal.where == str(place)
    assert refusal.found == f"a link to {target}, which is no blob of the repository"
    assert refusal.cure == f"move it away: {place}"
    with pytest.raises(Refused) as caught:
        located(*cached, cure=CURE)
    assert list(caught.value.refusals) == [refusal]


def test_a_blob_that_is_a_link_to_somewhere(cached: tuple[LockedModel, Path], tmp_path: Path) -> None:
    """The bytes are right, but whoever may write the other place may change them."""
    place = _snapshot(cached) / "config.json"
    blob = place.resolve()
    blob.rename(tmp_path / "elsewhere")
    blob.symlink_to(tmp_path / "elsewhere")
    refusal = _one(verify(*cached, HashCache.none(), cure=CURE))
    assert refusal.found == f"a link to a blob that is a link to {tmp_path}/elsewhere"
    assert refusal.cure == f"move it away: {blob}"


def test_blobs_behind_a_link_are_not_opened(cached: tuple[LockedModel, Path]) -> None:
    blobs = cached[1] / "models--acme--tiny/blobs"
    blobs.rename(blobs.parent / "moved")
    blobs.symlink_to("moved")
    refusals = verify(*cached, HashCache.none(), cure=CURE)
    assert [refusal.where for refusal in refusals] == [str(_snapshot(cached) / path) for path in sorted(FIRST)]
    assert {refusal.found for refusal in refusals} == {"a path through a link"}
    place = _snapshot(cached) / WEIGHTS
    assert refusals[-1].cure == f"put a real directory in the place of the link on the way to {place}"


def test_blobs_that_every_user_may_exchange(cached: tuple[LockedModel, Path]) -> None:
    blobs = cached[1] / "models--acme--tiny/blobs"
    blobs.chmod(0o777)
    refusal = _one(verify(*cached, HashCache.none(), cure=CURE))
    assert (refusal.where, refusal.cure) == (str(blobs), f"chmod o-w {blobs}")
