"""NV907, cache changed: a file of a cache is extra, missing, changed, or unfit to be loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.cache.store import TreeStore
from nvllm.core.refusal import Refused
from support.blessings_world import CURE, FILES, cache, stored, writable


def test_one_changed_byte_of_a_blessed_cache(tmp_path: Path) -> None:
    store, tree = stored(tmp_path)
    path, (data, _) = next(iter(FILES.items()))
    place = writable(store.path(tree.hash) / path)
    place.write_bytes(b"A" + data[1:])
    place.chmod(0o444)
    place.parent.chmod(0o555)
    with pytest.raises(Refused) as caught:
        store.stage(tree, tmp_path / "staging", CURE)
    (one,) = caught.value.refusals
    assert (one.code, one.where, one.cure) == ("NV907", str(place), CURE)
    blessed = next(file.sha256 for file in tree.files if file.path == path)
    assert one.expected == f"sha256 {blessed}"
    assert one.found.startswith("sha256 ")
    assert one.found != one.expected


def test_a_link_in_a_fresh_cache(tmp_path: Path) -> None:
    root = cache(tmp_path / "fresh")
    (root / "link").symlink_to("/etc/passwd")
    with pytest.raises(Refused) as caught:
        TreeStore(tmp_path / "trees").adopt(root, CURE)
    (one,) = caught.value.refusals
    assert (one.code, one.where, one.found, one.cure) == ("NV907", str(root / "link"), "a symbolic link", CURE)
    assert one.expected == "a regular file of its owner alone, with one name"
