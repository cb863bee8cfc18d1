"""The proof of the patch `path-null`: it runs in the image, as `nvllm patch prove` starts it."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest


def test_a_path_with_a_null_byte_names_no_other_file(tmp_path: Path) -> None:
    module: Any = importlib.import_module("vllm.fs_io_C")
    other = tmp_path / "block"
    other.write_bytes(b"12345678")
    with pytest.raises(ValueError, match="embedded null byte"):
        module.batch_lookup([f"{other}\0.of.another.model"])
    with pytest.raises(ValueError, match="embedded null byte"):
        module.batch_load_block([f"{other}\0.of.another.model"], [bytearray(8)], False)
    with pytest.raises(ValueError, match="embedded null byte"):
        module.batch_store_block([f"{other}.new\0"], [f"{other}.made\0"], [b"8 bytes!"], False)
    assert os.listdir(tmp_path) == ["block"]
    assert module.batch_lookup([str(other), f"{other}.no"]) == [True, False]
