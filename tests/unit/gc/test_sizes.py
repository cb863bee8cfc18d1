"""What a removal frees: shared layers and files with several names are counted once, and only if they go."""

from __future__ import annotations

import os
from pathlib import Path

from nvllm.gc import sizes
from nvllm.host.facts import ImageFacts, StoredImage

MB = 1_000_000


def image(name: str, *layers: tuple[str, int]) -> StoredImage:
    return StoredImage(ImageFacts(name, (), (), sum(size for _, size in layers)), layers)


def freed(gone: list[StoredImage], *others: StoredImage) -> list[float]:
    """Return the MB that the removal of each of GONE frees, rounded, beside OTHERS."""
    return [round(size / MB, 1) for _, size in sizes.of_images(gone, [*others, *gone])]


BASE, TOP = ("base", 1000 * MB), 10 * MB


def test_a_layer_is_counted_once_and_only_if_no_other_image_has_it() -> None:
    builds = [image(f"build{number}", BASE, (f"top{number}", TOP)) for number in range(29)]
    current = image("current", BASE, ("top", TOP))
    assert freed(builds, current) == [10.6] * 29
    assert freed(builds) == [10.6] * 28 + [1060.7]
    assert freed([current], image("of somebody else", BASE)) == [10.6]
    assert freed([image("under a child", BASE)], current) == [0.0]


def test_the_same_layer_above_two_others_is_kept_twice() -> None:
    """Its chain says so, not its own digest."""
    assert freed([image("a", ("a", TOP), ("a top", TOP)), image("b", ("b", TOP), ("b top", TOP))]) == [21.2, 21.2]


def test_a_file_with_two_names_goes_with_the_last(tmp_path: Path) -> None:
    (first := tmp_path / "first").write_bytes(bytes(20_000))
    os.link(first, second := tmp_path / "second")
    removed = sizes.RemovedFiles()
    assert (removed.freed_by(first), removed.freed_by(second)) == (0, 20_480)
    assert sizes.RemovedFiles().freed_by(first) == 0


def test_a_directory_counts_with_its_blocks(tmp_path: Path) -> None:
    (top := tmp_path / "top").mkdir()
    (top / "file").write_bytes(b"1")
    (top / "link").symlink_to("/")
    assert sizes.RemovedFiles().freed_by(top) == top.stat().st_blocks * 512 + 4096
    assert sizes.RemovedFiles().freed_by(tmp_path / "nothing") == 0
