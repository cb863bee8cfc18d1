"""NV505, too little memory: MemAvailable is below what the profile needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nvllm.core.refusal import Refusal
from nvllm.core.spec import HostNeed
from nvllm.host import checks
from nvllm.host import facts as host
from support.host_samples import GIB, PLAN, refusals


def _refused(facts: host.HostFacts, need: int) -> Refusal:
    plan = replace(PLAN, host=HostNeed(need))
    (found,) = (r for r in refusals(checks.Subject(plan, facts)) if r.code == "NV505")
    assert found.where == "/proc/meminfo"
    assert found.cure == "stop what uses memory, or choose a profile with a smaller host.memory-available"
    return found


def test_more_than_this_machine_has() -> None:
    facts = host.probe([])
    assert facts.mem_available is not None
    refusal = _refused(facts, facts.mem_available + GIB)
    assert refusal.expected.startswith("at least ")
    assert refusal.expected.endswith(" GiB of MemAvailable")
    assert 0 < float(refusal.found.removesuffix(" GiB")) <= facts.mem_available / GIB


def test_both_figures_in_gib(tmp_path: Path) -> None:
    """Figures that do not change need a meminfo of our own."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable: {int(1.29 * 2**20)} kB\n")
    refusal = _refused(replace(host.probe([]), mem_available=host.memory(tmp_path)["MemAvailable"]), 3 * GIB)
    assert (refusal.expected, refusal.found) == ("at least 3.0 GiB of MemAvailable", "1.2 GiB")


def test_a_kernel_that_does_not_say(tmp_path: Path) -> None:
    refusal = _refused(replace(host.probe([]), mem_available=host.memory(tmp_path).get("MemAvailable")), 1)
    assert refusal.found == "no MemAvailable"
