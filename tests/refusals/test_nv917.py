"""NV917, version out of reach: a blessing from elsewhere has a version far above those that this host knows."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nvllm.cache import manifest, promotion, signature
from nvllm.cache.store import TreeStore
from nvllm.core.paths import Places
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.fleet import blessings as fleet_blessings
from support import blessings_world, oci_registry
from support.blessings_world import NOW


def test_a_signed_blessing_that_would_outrun_all_others(tmp_path: Path) -> None:
    key, signers = tmp_path / "key", tmp_path / "allowed_signers"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    signers.write_text(f"ops@example.org {key.with_suffix('.pub').read_text()}")
    signers.chmod(0o644)
    here, there = blessings_world.blessings(tmp_path / "here"), blessings_world.blessings(tmp_path / "there")
    places, other = (Places(tmp_path / name / "cache", tmp_path / name / "state") for name in ("here", "there"))
    tree = TreeStore(places.trees).adopt(blessings_world.cache(tmp_path / "fresh"), "cure")
    blessed = blessings_world.bless(tree, version=10**9)
    promotion.promote(here, blessed, None, signature.sign(manifest.encode(blessed), key, blessed.filename))
    with oci_registry.running() as kept:
        (blessing,) = fleet_blessings.of_build(here, blessed.image, blessed.profile, blessed.build_hash, NOW)
        fleet_blessings.push_blessing(blessing, here, "linux/amd64", places, kept.repository(), Silent())
        with pytest.raises(Refused) as caught:
            fleet_blessings.pull_blessing(kept.repository(), blessed.serve_hash, signers, there, other, Silent())
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.found) == ("NV917", "version 1000000000")
    assert refusal.expected == "version 1001 at most, 1000 more than the next one here"
    assert refusal.cure == "nvllm bless demo --profile eager --rebless"
    assert there.all() == ()
