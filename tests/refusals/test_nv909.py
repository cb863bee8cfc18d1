"""NV909, not signed: a manifest has no signature by an allowed signer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from blessings_world import TREE, bless, blessings, demand, other_tree
from nvllm import manifest, promotion, signature
from nvllm.refusal import Refused


def key(directory: Path, name: str) -> Path:
    place = directory / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", os.fspath(place)], check=True)
    return place


@pytest.fixture
def signers(tmp_path: Path) -> Path:
    place = tmp_path / "allowed_signers"
    place.write_text(f"ops@example.org {key(tmp_path, 'ours').with_suffix('.pub').read_text()}")
    place.chmod(0o644)
    return place


def test_a_signed_one_is_served(tmp_path: Path, signers: Path) -> None:
    held, made = blessings(tmp_path), bless(TREE)
    signed = signature.sign(manifest.encode(made), tmp_path / "ours", made.filename)
    promotion.promote(held, made, signed)
    assert held.lookup(demand(signers=signers)) == made


@pytest.mark.parametrize("signed_by", ["nobody", "stranger", "ours, but another manifest"])
def test_one_that_is_not_is_refused(tmp_path: Path, signers: Path, signed_by: str) -> None:
    held, made = blessings(tmp_path), bless(TREE)
    signed = None
    if signed_by == "stranger":
        signed = signature.sign(manifest.encode(made), key(tmp_path, "stranger"), made.filename)
    elif signed_by != "nobody":
        signed = signature.sign(manifest.encode(bless(other_tree(2))), tmp_path / "ours", made.filename)
    place = promotion.promote(held, made, signed)
    with pytest.raises(Refused) as caught:
        held.lookup(demand(signers=signers))
    (one,) = caught.value.refusals
    assert (one.code, one.where) == ("NV909", str(place))
    assert str(signers) in one.expected
    assert one.found
    assert one.cure.endswith("--rebless --sign KEY")
    assert held.lookup(demand()) == made, "a profile that does not require a signature does not look at it"
