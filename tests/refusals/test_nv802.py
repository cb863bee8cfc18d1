"""NV802: the probe of a bisect is no file that can be run."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from nvllm.core import proc
from nvllm.core.refusal import Refusal, Refused
from nvllm.trials import bench, probe


def refusal(path: Path) -> Refusal:
    with pytest.raises(Refused) as caught:
        probe.program(path, (), "", build_only=False)
    (found,) = caught.value.refusals
    assert (found.code, found.where, caught.value.exit_code) == ("NV802", str(path), 2)
    assert found.expected == "a program that this user may run"
    return found


def test_a_file_without_the_right_to_execute_it(tmp_path: Path) -> None:
    path = tmp_path / "probe.sh"
    path.write_text("#!/bin/sh\n")
    found = refusal(path)
    assert (found.found, found.cure) == ("a file that this user may not execute", f"chmod +x {path}")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert refusal(tmp_path / "probe.sh").found == "no such file"


def test_a_directory(tmp_path: Path) -> None:
    assert refusal(tmp_path).found == "not a regular file"


def test_a_golden_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        probe.builtin("golden", (str(tmp_path / "answer"),))
    (found,) = caught.value.refusals
    assert (found.code, found.where, found.found) == ("NV802", str(tmp_path / "answer"), "No such file or directory")
    assert found.cure == "name a file"


def test_a_golden_file_that_is_no_text(tmp_path: Path) -> None:
    answer = written(tmp_path / "answer", b"fox\xff")
    with pytest.raises(Refused) as caught:
        probe.builtin("golden", (str(answer),))
    (found,) = caught.value.refusals
    assert (found.code, found.expected) == ("NV802", "a text file with the answer")
    assert "can't decode byte 0xff" in found.found


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o755)
    return path


def test_text_that_names_no_interpreter(tmp_path: Path) -> None:
    for content in (b"", b"exit 0\n", b"\n#!/bin/sh\n"):
        found = refusal(written(tmp_path / "probe", content))
        assert found.found == "a script without an interpreter line"
        assert found.cure == "add a first line that names its interpreter: #!/bin/sh"


@pytest.mark.parametrize("line", ["#!/nonexistent/sh -e", "#!  /nonexistent/sh", "#!", "#!/etc/passwd"])
def test_a_script_whose_interpreter_cannot_be_run(tmp_path: Path, line: str) -> None:
    path = written(tmp_path / "probe", f"{line}\nexit 0\n".encode())
    found = refusal(path)
    assert found.found.startswith("a script whose interpreter ")
    assert found.cure == f"install it, or edit line 1 of {path}"


def test_what_only_running_it_can_tell(tmp_path: Path) -> None:
    """A binary of another machine, and a program that is removed while its image is built."""
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + (2).to_bytes(2, "little") + (0xFFFF).to_bytes(2, "little")
    for path, gone in ((tmp_path / "binary", False), (tmp_path / "gone", True)):
        test = probe.program(written(path, header + bytes(200)), (), "", build_only=True)
        if gone:
            path.unlink()
        with pytest.raises(Refused) as caught:
            bench.run_probe(test, {}, Path(os.devnull), time.monotonic(), proc.Programs())
        (found,) = caught.value.refusals
        assert (found.code, found.where) == ("NV802", str(path))
        assert found.found == ("No such file or directory" if gone else "Exec format error")
        assert found.cure == f"make it start from a shell: {path}"
