"""What a work tree has otherwise than an image: the files that become a layer, and those that cannot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.layers.wheel import Wheel
from nvllm.patches import unified
from nvllm.port import overlay
from nvllm.port.overlay import TreeDifference
from support import layersamples
from support.series_samples import patch_text, write_tree

WHEEL = {
    "vllm/made.py": b"of the wheel\n",
    "vllm/a.py": b"a\n",
    "vllm/b.py": b"b\n",
    "vllm/gone.py": b"gone\n",
    "vllm/native.so": b"elf",
}
SOURCE = {
    **WHEEL,
    "vllm/made.py": b"m\n",
    "vllm/unpacked.py": b"u\n",
    "csrc/k.cu": b"k\n",
    "setup.py": b"s\n",
    "tests/t.py": b"t\n",
}
PATCHED = {**SOURCE, "vllm/b.py": b"patched\n", "tests/t.py": b"tested\n"}


class Trees:
    """A work tree below ROOT of SOURCE with one patch, and the wheel of it."""

    def __init__(self, root: Path) -> None:
        self.tree = root / "tree"
        write_tree(self.tree, PATCHED)
        (root / "wheels").mkdir()
        self.wheel = layersamples.wheel(root / "wheels", "vllm", WHEEL)
        self._diff = unified.parse(patch_text(SOURCE, PATCHED), "0001-b.patch")

    def difference(self, changed: Mapping[str, bytes | None]) -> TreeDifference:
        """Return the difference after the tree has CHANGED; None removes a file."""
        write_tree(self.tree, {path: data for path, data in changed.items() if data is not None})
        for path in (path for path, data in changed.items() if data is None):
            (self.tree / path).unlink()
        paths = {*changed, *self._diff.paths}
        with Wheel(self.wheel) as wheel:
            return overlay.difference(self.tree, paths, paths & SOURCE.keys(), [self._diff], wheel, ["vllm/made.py"])


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return Trees(tmp_path)


def test_a_tree_with_the_patches_alone_changes_nothing_of_the_image(trees: Trees) -> None:
    same = trees.difference({})
    assert (same.paths, same.beside) == ((), ())


def test_changed_new_and_removed_files_are_a_layer_and_others_are_named(trees: Trees) -> None:
    new = {"vllm/a.py": b"A\n", "vllm/new/c.py": b"c\n", "vllm/gone.py": None, "tests/mine.py": b"m\n"}
    changed = trees.difference(new)
    assert changed.patched.files == {"vllm/a.py": b"A\n", "vllm/gone.py": None, "vllm/new/c.py": b"c\n"}
    assert changed.beside == ("tests/mine.py",)
    assert changed.patched.modes == {"vllm/a.py": 0o644, "vllm/new/c.py": 0o644}


def test_a_patch_that_was_taken_back_in_the_tree_is_a_change(trees: Trees) -> None:
    assert trees.difference({"vllm/b.py": b"b\n"}).patched.files == {"vllm/b.py": b"b\n"}


def test_the_digest_is_of_content_and_mode(trees: Trees) -> None:
    digests = [trees.difference({"vllm/a.py": data}).digest for data in (b"a\n", b"A\n", b"B\n")]
    (trees.tree / "vllm/a.py").chmod(0o755)
    digests.append(trees.difference({"vllm/a.py": b"B\n"}).digest)
    assert len({*digests}) == 4
    (trees.tree / "vllm/a.py").chmod(0o644)
    assert trees.difference({"vllm/a.py": b"A\n"}).digest == digests[1]


def test_all_that_cannot_lie_over_the_image_is_refused_at_once(trees: Trees) -> None:
    (trees.tree / "vllm/link.py").symlink_to("a.py")
    changed: dict[str, bytes | None] = {
        "csrc/k.cu": b"K\n",
        "setup.py": None,
        "vllm/native.so": b"ELF",
        "vllm/unpacked.py": b"U\n",
        "vllm/made.py": b"M\n",
    }
    with pytest.raises(Refused) as caught:
        trees.difference(changed)
    reasons = {one.where.removeprefix(f"{trees.tree}/"): (one.code, one.found) for one in caught.value.refusals}
    other = ("NV611", "a file that the wheel, and so the image, lacks or has otherwise than the source")
    compiled = ("NV611", "a file that is compiled into the wheel")
    assert reasons == {
        "csrc/k.cu": compiled,
        "setup.py": compiled,
        "vllm/native.so": compiled,
        "vllm/unpacked.py": other,
        "vllm/made.py": other,
    }


def test_a_link_is_refused_and_not_taken_for_a_removed_file(trees: Trees) -> None:
    (trees.tree / "vllm/a.py").unlink()
    (trees.tree / "vllm/a.py").symlink_to("b.py")
    with Wheel(trees.wheel) as wheel, pytest.raises(Refused) as caught:
        overlay.difference(trees.tree, ["vllm/a.py"], ["vllm/a.py"], [], wheel)
    assert [(one.code, one.found) for one in caught.value.refusals] == [("NV611", "a link")]
