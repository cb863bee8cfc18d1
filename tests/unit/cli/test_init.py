"""`nvllm init` offline, from the specs, series and locks that nvllm comes with."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvllm.cache import signature
from nvllm.cli.main import main
from nvllm.core import durable
from nvllm.core.paths import Project
from nvllm.spec import specfile
from support.rows import samples

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in an empty directory, with a HOME whose name has a space."""
    home = tmp_path / "a home"
    home.mkdir()
    for name in ("NVLLM_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "SSH_AUTH_SOCK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    return home


def answer(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def codes(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [one["code"] for one in answer(capsys)["refusals"]]


def test_the_projects_own_version_is_locked_offline(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "mine", "--offline", "--json", "--platform", "linux/amd64"]) == 0
    result = answer(capsys)["result"]
    assert (result["image"], result["vllm"], result["lock"]) == ("mine", "0.32.0", "manifests/mine.lock.json")
    ours = json.loads((ROOT / "manifests/cpu.lock.json").read_text())
    made = json.loads((here / "mine/manifests/mine.lock.json").read_text())
    assert made == {**ours, "image": "mine"}
    assert sorted(result["files"]) == sorted(
        str(path.relative_to(here / "mine")) for path in (here / "mine").rglob("*") if path.is_file()
    )
    assert main(["--project", "mine", "lock", "mine", "--check", "--offline", "--platform", "linux/amd64"]) == 0


def test_it_ends_with_three_commands_that_can_be_pasted(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "my own", "--offline", "--platform", "linux/amd64"]) == 0
    out = capsys.readouterr().out
    assert [line.strip() for line in out.splitlines()[-3:]] == [
        f"cd '{here}/my own' && nvllm build my-own",
        "nvllm model make my-own tiny-lfm2",
        "nvllm serve my-own --profile tiny-eager",
    ]


def test_without_a_lock_the_first_command_makes_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "mine", "--no-lock", "--json"]) == 0
    result = answer(capsys)["result"]
    assert result["lock"] is None
    assert result["next"][0].endswith("&& nvllm lock mine && nvllm build mine")
    assert [path.name for path in (here / "mine/manifests").iterdir()] == [".gitkeep"]


def test_bare_is_stock_vllm(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "mine", "--bare", "--offline", "--platform", "linux/amd64", "--json"]) == 0
    result = answer(capsys)["result"]
    assert (result["carried"], result["imported"], result["left_out"]) == ([], [], [])
    assert list((here / "mine/patches/v0.32.0").glob("*.patch")) == []
    assert main(["--project", "mine", "patch", "list", "--json"]) == 0
    assert answer(capsys)["result"]["patches"] == []


@pytest.mark.parametrize(
    ("target", "bare"),
    samples(
        [("sm120", []), ("gb10", ["--bare"])], [("cpu", []), ("cpu", ["--bare"]), ("sm120", ["--bare"]), ("gb10", [])]
    ),
)
def test_every_image_is_a_target(target: str, bare: list[str], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "mine", "--target", target, "--no-lock", "--json", *bare]) == 0
    files = answer(capsys)["result"]["files"]
    assert "images/mine.yaml" in files
    assert "Dockerfile" in files
    assert [name for name in files if f"{target}-" in name] == []
    assert ("images/mine-build-requirements.txt" in files) == (target == "gb10")


def test_a_dry_run_writes_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "mine", "--offline", "--dry-run", "--json"]) == 0
    assert answer(capsys)["result"]["written"] is False
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("target", samples(["cpu"], ["sm120", "gb10"]))
def test_a_signer_is_demanded_of_every_blessed_profile(
    target: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["init", "mine", "--target", target, "--no-lock", "--signer", "ops@example.org", "--json"]
    assert main([*argv, "--dry-run"]) == 0
    planned = answer(capsys)["result"]
    assert list(here.iterdir()) == []
    assert main(argv) == 0
    result = answer(capsys)["result"]
    assert (planned["files"], planned["next"]) == (result["files"], result["next"])
    assert (planned["signer"]["key_made"], result["signer"]["key_made"]) == (False, True)
    key = here / ".config/nvllm/signing_key"
    project = Project(here / "mine")
    rules = [one.bless.signers for one in specfile.of(project, "mine").profiles.values() if one.blessed]
    assert rules
    assert set(rules) == {"manifests/allowed_signers"}
    signers = project.signers(rules[0])
    assert signers is not None
    assert signature.verify(b"x", signature.sign(b"x", key, "a"), signers, "a", "sign it") == "ops@example.org"
    assert result["next"][-1].endswith(f"--sign '{key}'")
    assert b"PRIVATE KEY" not in b"".join(path.read_bytes() for path in (here / "mine").rglob("*") if path.is_file())


def test_without_ssh_keygen_no_signer_is_taken(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(here))
    assert main(["init", "mine", "--no-lock", "--signer", "ops", "--json"]) != 0
    assert codes(capsys) == ["NV512"]
    assert list(here.iterdir()) == []


def test_a_key_that_cannot_be_written_leaves_no_project(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / ".config").touch()
    assert main(["init", "mine", "--no-lock", "--signer", "ops", "--json"]) != 0
    assert codes(capsys) == ["NV920"]
    assert [path.name for path in here.iterdir()] == [".config"]


def test_the_place_of_the_key_is_no_project(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", ".config/nvllm", "--no-lock", "--signer", "ops", "--json"]) != 0
    assert codes(capsys) == ["NV108"]
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("kind", ["filled", "file", "link"])
def test_what_is_there_is_refused(kind: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if kind == "filled":
        (here / "mine").mkdir()
        (here / "mine/.keep").touch()
    elif kind == "file":
        (here / "mine").touch()
    else:
        (here / "mine").symlink_to("elsewhere")
    assert main(["init", "mine", "--offline", "--json"]) == 2
    assert codes(capsys) == ["NV108"]


def test_an_empty_directory_is_taken(here: Path) -> None:
    (here / "mine").mkdir()
    assert main(["init", "mine", "--no-lock"]) == 0
    assert (here / "mine/images/mine.yaml").is_file()


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["--name", "../x"], "NV108"),
        (["--vllm", "main"], "NV108"),
        (["--commit", "2cf0a69"], "NV108"),
        (["--target", "tpu"], "NV107"),
        (["--from-diff", "none.diff"], "NV108"),
        (["--from-diff", "/dev/zero", "--from-branch", "."], "NV108"),
        (["--vllm", "0.27.0"], "NV209"),
        (["--signer", "*"], "NV108"),
        (["--signer", "a,b"], "NV108"),
        (["--signer", ""], "NV108"),
        (["--key", "a"], "NV108"),
        (["--signer", "a", "--key", "mine/key"], "NV108"),
        (["--signer", "a", "--key", "/dev/null"], "NV108"),
        (["--signer", "a", "--key", "/"], "NV108"),
    ],
)
def test_what_cannot_be_used_is_refused(
    argv: list[str], code: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "mine", "--offline", "--json", *argv]) != 0
    assert codes(capsys) == [code]
    assert list(here.iterdir()) == []


def test_a_narrow_umask_and_a_read_only_place(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = os.umask(0o077)
    try:
        assert main(["init", "deep/mine", "--offline", "--platform", "linux/amd64"]) == 0
    finally:
        os.umask(before)
    capsys.readouterr()
    assert main(["--project", "deep/mine", "patch", "list", "--json"]) == 0
    (here / "file").touch()
    capsys.readouterr()
    assert main(["init", "file/mine", "--no-lock", "--json"]) == 1
    assert codes(capsys) == ["NV920"]


def dying(step: int) -> int:
    """Run the command in a fork of this process, killed before its write STEP, from 0, and return how it ended."""
    child = os.fork()
    if child == 0:
        left = step

        def counted(function: Callable[..., None]) -> Callable[..., None]:
            def call(*args: Any, **kwargs: Any) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                function(*args, **kwargs)

            return call

        try:
            durable.sync_directory, durable.replace = counted(durable.sync_directory), counted(durable.replace)
            status = main(["init", "mine", "--offline", "--bare", "--platform", "linux/amd64"])
        except BaseException:  # noqa: BLE001 - nothing of the tests may go on in the child
            status = 99
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_killed_at_any_write_it_leaves_nothing_under_the_name(here: Path) -> None:
    for step in (0, 1, 3, 5, 7, 9, 11, 13, 15, 17, 100):
        ended = dying(step)
        if ended == 0:
            assert step > 5
            break
        assert ended == -signal.SIGKILL
        whole = (here / "mine").exists()
        assert not whole or (here / "mine/manifests/mine.lock.json").is_file()
        if whole:
            assert main(["--project", "mine", "lock", "mine", "--check", "--offline", "--platform", "linux/amd64"]) == 0
            break
