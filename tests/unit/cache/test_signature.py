"""Signatures by SSH keys, made and checked by ssh-keygen itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from nvllm.cache import signature
from nvllm.core.refusal import Refused


def key(directory: Path, name: str, passphrase: str = "") -> Path:
    place = directory / name
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", name, "-f", os.fspath(place)]
    subprocess.run(argv, check=True)
    return place


def signers(directory: Path, *entries: tuple[str, Path], options: str = "") -> Path:
    place = directory / "allowed_signers"
    lines = [f"{name} {options}{one.with_suffix('.pub').read_text()}" for name, one in entries]
    place.write_text("".join(lines))
    place.chmod(0o644)
    return place


def why(data: bytes, signed: bytes, allowed: Path) -> str:
    with pytest.raises(Refused) as refused:
        signature.verify(data, signed, allowed, "a.json", "sign it")
    (one,) = refused.value.refusals
    assert one.code == "NV909"
    return one.found


def test_a_signer_is_named(tmp_path: Path) -> None:
    ours, other = key(tmp_path, "ours"), key(tmp_path, "other")
    allowed = signers(tmp_path, ("other@example.org", other), ("ops@example.org", ours))
    signed = signature.sign(b"data", ours, "a.json")
    assert signature.verify(b"data", signed, allowed, "a.json", "sign it") == "ops@example.org"


def test_a_stranger_is_refused(tmp_path: Path) -> None:
    ours, stranger = key(tmp_path, "ours"), key(tmp_path, "stranger")
    assert why(b"data", signature.sign(b"data", stranger, "a.json"), signers(tmp_path, ("ops", ours)))


def test_other_bytes_are_refused(tmp_path: Path) -> None:
    ours = key(tmp_path, "ours")
    signed = signature.sign(b"data", ours, "a.json")
    assert why(b"data!", signed, signers(tmp_path, ("ops", ours)))


def test_a_signature_for_something_else_is_refused(tmp_path: Path) -> None:
    """One made for git, or for a file, says nothing of a manifest."""
    ours = key(tmp_path, "ours")
    argv = ["ssh-keygen", "-q", "-Y", "sign", "-n", "git", "-f", os.fspath(ours)]
    signed = subprocess.run(argv, input=b"data", capture_output=True, check=True).stdout
    assert why(b"data", signed, signers(tmp_path, ("ops", ours)))
    argv[5] = signature.NAMESPACE
    signed = subprocess.run(argv, input=b"data", capture_output=True, check=True).stdout
    assert why(b"data", signed, signers(tmp_path, ("ops", ours), options='namespaces="git" '))


def test_an_expired_signer_is_refused(tmp_path: Path) -> None:
    ours = key(tmp_path, "ours")
    signed = signature.sign(b"data", ours, "a.json")
    assert why(b"data", signed, signers(tmp_path, ("ops", ours), options='valid-before="20200101" '))


@pytest.mark.parametrize("text", [b"", b"-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n"])
def test_what_is_no_signature(tmp_path: Path, text: bytes) -> None:
    assert why(b"data", text, signers(tmp_path, ("ops", key(tmp_path, "ours"))))


def test_signers_that_others_may_write_are_no_signers(tmp_path: Path) -> None:
    ours = key(tmp_path, "ours")
    allowed = signers(tmp_path, ("ops", ours))
    allowed.chmod(0o666)
    assert why(b"data", signature.sign(b"data", ours, "a.json"), allowed) == f"mode 0666, user {os.geteuid()}"
    allowed.unlink()
    assert why(b"data", signature.sign(b"data", ours, "a.json"), allowed) == "No such file or directory"


@pytest.mark.parametrize("passphrase", [None, "secret"])
def test_a_key_that_cannot_sign_is_refused_and_asks_nobody(tmp_path: Path, passphrase: str | None) -> None:
    place = tmp_path / "none" if passphrase is None else key(tmp_path, "locked", passphrase)
    with pytest.raises(Refused) as refused:
        signature.sign(b"data", place, "a.json")
    (one,) = refused.value.refusals
    assert (one.code, one.where, one.cure.split(",")[0]) == ("NV909", "a.json", f"ssh-add {place}")
