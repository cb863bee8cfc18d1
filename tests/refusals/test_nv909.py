"""NV909, not signed: a manifest has no signature by an allowed signer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from nvllm.bless import preflight as asked
from nvllm.bless.preflight import BlessRequest
from nvllm.cache import manifest, promotion, signature
from nvllm.core.refusal import Refused
from support.bless_world import World, world
from support.blessings_world import TREE, bless, blessings, other_tree, query
from support.plansamples import front_end


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
    promotion.promote(held, made, signed=signed)
    assert held.lookup(query(signers=signers)) == made


@pytest.mark.parametrize("signed_by", ["nobody", "stranger", "ours, but another manifest"])
def test_one_that_is_not_is_refused(tmp_path: Path, signers: Path, signed_by: str) -> None:
    held, made = blessings(tmp_path), bless(TREE)
    signed = None
    if signed_by == "stranger":
        signed = signature.sign(manifest.encode(made), key(tmp_path, "stranger"), made.filename)
    elif signed_by != "nobody":
        signed = signature.sign(manifest.encode(bless(other_tree(2))), tmp_path / "ours", made.filename)
    place = promotion.promote(held, made, signed=signed)
    with pytest.raises(Refused) as caught:
        held.lookup(query(signers=signers))
    (one,) = caught.value.refusals
    assert (one.code, one.where) == ("NV909", str(place))
    assert str(signers) in one.expected
    assert one.found
    assert one.cure.endswith("--rebless --sign KEY")
    assert held.lookup(query()) == made, "a profile that does not require a signature does not look at it"


# Before a bless of a profile that requires a signature


def preflight(made: World, key_file: Path | None, signers: Path | None) -> list[tuple[str, str]]:
    """Return code and place of what is refused of a bless that KEY_FILE is to sign, where SIGNERS may."""
    try:
        asked.preflight(made.found, made.held, BlessRequest(5, key=key_file), signers, 0.0)
    except Refused as refused:
        return [(one.code, one.where) for one in refused.refusals]
    return []


def test_the_key_is_judged_before_anything_is_compiled(tmp_path: Path, signers: Path) -> None:
    ours, stranger = tmp_path / "ours", key(tmp_path, "stranger")
    with front_end() as front, world(tmp_path, front) as made:
        assert preflight(made, ours, signers) == []
        assert preflight(made, ours, None) == []
        assert preflight(made, stranger, None) == []
        assert preflight(made, None, None) == []
        assert preflight(made, None, signers) == [("NV909", "--sign")]
        assert preflight(made, stranger, signers) == [("NV909", f"--sign {stranger}")]
        assert preflight(made, ours, tmp_path / "no signers") == [("NV909", str(tmp_path / "no signers"))]
