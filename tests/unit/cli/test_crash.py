"""The crash report: what it holds, what it never holds, and who may read it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.cli import crash


def defect(message: str) -> None:
    raise RuntimeError(message)


def crashed(message: str) -> RuntimeError:
    """Return an error with a traceback, as a defect would raise it."""
    with pytest.raises(RuntimeError) as caught:
        defect(message)
    return caught.value


def test_a_report_says_what_happened(tmp_path: Path) -> None:
    path = crash.write(crashed("the frob is gone"), ["build", "cpu sm120"], {}, tmp_path / "state/crashes")
    text = path.read_text()
    assert "command   nvllm build 'cpu sm120'\n" in text
    assert "RuntimeError: the frob is gone" in text
    assert "in defect" in text  # the traceback
    assert "click " in text  # the packages


def test_a_report_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = crash.write(crashed(""), [], {}, tmp_path / "crashes")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_reports_do_not_overwrite_each_other(tmp_path: Path) -> None:
    assert len({crash.write(crashed(""), [], {}, tmp_path) for _ in range(5)}) == 5


def test_a_directory_that_cannot_be_written_is_an_error_for_the_caller(tmp_path: Path) -> None:
    (tmp_path / "crashes").touch()
    with pytest.raises(OSError):
        crash.write(crashed(""), [], {}, tmp_path / "crashes")


def test_neither_environment_nor_secrets_are_in_the_report() -> None:
    env = {"HF_TOKEN": "hf_environment", "VLLM_API_KEY": "sk-environment", "OTHER": "harmless-value"}
    argv = ["serve", "--token", "hf_argument", "--api-key=sk-argument", "https://me:pass@host/x", "--profile", "p"]
    message = "got hf_environment, sk-environment, hf_argument, sk-argument from https://me:pass@host/x"
    text = crash.render(crashed(message), argv, env)
    for secret in ("hf_environment", "sk-environment", "hf_argument", "sk-argument", "me:pass", "harmless-value"):
        assert secret not in text
    assert "nvllm serve --token '***' '--api-key=***' 'https://***@host/x' --profile p" in text


def test_an_option_that_only_looks_secret_hides_no_other_option() -> None:
    assert crash.redact(["--token", "--json", "x"]) == ["--token", "--json", "x"]


@given(st.lists(st.text()), st.from_regex(r"[a-z0-9]{12}", fullmatch=True))
def test_a_secret_is_hidden_wherever_it_stands(before: list[str], secret: str) -> None:
    argv = [*before, "--hf-token", secret]
    assert secret not in crash.scrub(f"x{secret}y {argv}", argv, {})
    assert secret not in " ".join(crash.redact(argv))
