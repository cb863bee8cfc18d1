"""Pins: what living processes keep, and what a dead one does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nvllm.cache import pins
from nvllm.cache.pins import Pins
from nvllm.core.refusal import Refused

_HOLD = """
import sys, time
from pathlib import Path
from nvllm.cache.pins import Pins

with Pins(Path(sys.argv[1])).pin() as pin:
    pin.keep("a tree")
    print("kept", flush=True)
    sys.stdin.read()
"""


def kept(directory: Path) -> frozenset[str]:
    with Pins(directory).still() as names:
        return names


def test_nothing_is_kept_where_nothing_was_pinned(tmp_path: Path) -> None:
    assert kept(tmp_path / "pins") == frozenset()
    assert not (tmp_path / "pins").exists()


def test_what_is_kept_and_who_keeps_it(tmp_path: Path) -> None:
    with Pins(tmp_path).pin() as first, Pins(tmp_path).pin() as second:
        first.keep("one")
        first.keep("two")
        second.keep("three")
        assert kept(tmp_path) == {"one", "two", "three"}
        said = json.loads(first.path.read_text())
        assert (said["pid"], said["names"]) == (os.getpid(), ["one", "two"])
        assert said["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert first.path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_killed_keeps_nothing(tmp_path: Path) -> None:
    """Its process id may be another process's by then, so the kernel is asked for the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "kept\n"
    assert kept(tmp_path) == {"a tree"}
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (left,) = tmp_path.iterdir()
    left.write_text(left.read_text().replace(str(process.pid), str(os.getpid())))
    assert kept(tmp_path) == frozenset()
    assert not pins.in_force(left)


def test_a_pin_in_force_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with Pins(tmp_path).pin() as pin:
        for text in (b"", b"[]", b'{"names": 1}', b"\xff"):
            pin.path.write_bytes(text)
            with pytest.raises(Refused) as caught, Pins(tmp_path).still():
                pass
            (refusal,) = caught.value.refusals
            assert (refusal.code, refusal.where) == ("NV109", str(pin.path))
