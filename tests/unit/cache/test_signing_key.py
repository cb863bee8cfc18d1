"""The key of a new project, made and tried by ssh-keygen itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nvllm.cache import signature, signing_key
from nvllm.core.refusal import Refused

WHO = "ops@example.org"


def keygen(place: Path, passphrase: str = "") -> Path:
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "a comment", "-f", os.fspath(place)]
    subprocess.run(argv, check=True)
    return place


def test_a_new_key_signs_what_its_entry_verifies(tmp_path: Path) -> None:
    key = tmp_path / "config of mine/nvllm/signing_key"
    signer = signing_key.of(WHO, key)
    assert signer.public is None
    assert not key.parent.parent.exists()
    made = signing_key.make(signer)
    assert sorted(path.name for path in key.parent.iterdir()) == ["signing_key", "signing_key.pub"]
    assert (key.stat().st_mode & 0o777, key.stat().st_nlink, key.parent.stat().st_mode & 0o777) == (0o600, 1, 0o700)
    allowed = tmp_path / "allowed_signers"
    allowed.write_text(made.entry)
    allowed.chmod(0o644)
    assert signature.verify(b"data", signature.sign(b"data", key, "a"), allowed, "a", "sign it") == WHO
    before = key.read_bytes()
    assert signing_key.make(signing_key.of(WHO, key)) == made
    assert key.read_bytes() == before


def test_a_key_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    signer = signing_key.of(WHO, tmp_path / "key")
    signer.key.write_text("another's")
    with pytest.raises(Refused) as refused:
        signing_key.make(signer)
    assert refused.value.refusals[0].code == "NV920"
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("key", "another's")]


def test_what_is_there_signs_or_is_refused(tmp_path: Path) -> None:
    """Each row: how the key is made, and the code, None where it serves."""

    def alone(place: Path) -> None:
        keygen(place).with_name("key.pub").unlink()

    def mixed(place: Path) -> None:
        keygen(place)
        other = keygen(place.with_name("other"))
        other.with_name("other.pub").replace(place.with_name("key.pub"))

    rows: dict[str, tuple[Callable[[Path], object], str | None]] = {
        "a key": (keygen, None),
        "without its public half": (alone, None),
        "with another's public half": (mixed, "NV909"),
        "a passphrase and no agent": (lambda place: keygen(place, "secret"), "NV909"),
        "readable by all": (lambda place: keygen(place).chmod(0o644), "NV909"),
        "text": (lambda place: place.write_text("no key"), "NV108"),
        "a directory": (lambda place: place.mkdir(), "NV108"),
        "a dangling link": (lambda place: place.symlink_to("nowhere"), "NV108"),
        "a loop": (lambda place: place.symlink_to("key"), "NV108"),
        "a public half alone": (lambda place: place.with_name("key.pub").write_text("ssh-ed25519 AAAA"), "NV108"),
    }
    wrong = {}
    for number, (name, (make, expected)) in enumerate(rows.items()):
        place = tmp_path / str(number) / "key"
        place.parent.mkdir()
        make(place)
        code = None
        try:
            assert signing_key.of(WHO, place).public is not None
        except Refused as refused:
            (code,) = [each.code for each in refused.refusals]
        if code != expected:
            wrong[name] = code
    assert wrong == {}
