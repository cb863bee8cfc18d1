"""The program that fills the writable copies of a blessed cache."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nvllm.runtime import seed


def test_the_copy_has_the_same_files_and_its_owner_may_write_anywhere_in_it(tmp_path: Path) -> None:
    source, target = tmp_path / "blessed", tmp_path / "inductor_cache"
    (source / "c4").mkdir(parents=True)
    (source / "locks").mkdir()
    (source / "c4/c45.py").write_text("call = None")
    (source / "c4/c45.py").chmod(0o444)
    (source / "c4").chmod(0o555)
    target.mkdir()
    seed.fill(str(source), str(target))
    (source / "c4").chmod(0o755)
    assert sorted(str(path.relative_to(target)) for path in target.rglob("*")) == ["c4", "c4/c45.py", "locks"]
    assert (target / "c4/c45.py").read_text() == "call = None"
    assert all(path.stat().st_mode & 0o200 for path in target.rglob("*"))


@pytest.mark.parametrize("blessed", [True, False])
def test_it_becomes_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blessed: bool) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from/a").write_text("a")
    seeds = [{"from": str(tmp_path / "from"), "to": str(tmp_path / "to")}]
    launch = tmp_path / "launch.json"
    launch.write_text(json.dumps({"cache": {"seeds": seeds} if blessed else None}))
    monkeypatch.setattr(seed, "EXPECTATIONS", str(launch))

    class Became(Exception):  # noqa: N818 - no error
        pass

    def become(program: str, command: list[str]) -> None:
        assert program == command[0]
        raise Became(command)

    monkeypatch.setattr(os, "execvp", become)
    with pytest.raises(Became, match="vllm"):
        seed.main(["vllm", "serve"])
    assert (tmp_path / "to/a").exists() is blessed
