"""The class of a host: what the serve hash knows of it. A trial counts on every host of its class, and on no other.

That is the processor's family and flags, and the name, capability and driver of each kind of GPU. Unified memory
follows from a GPU's name. Without a GPU, processors, cores and NUMA nodes count too: an engine's threads follow them.
"""

from __future__ import annotations

from nvllm.core import canonical
from nvllm.core.canonical import Json
from nvllm.core.plan import PlannedGpu
from nvllm.host.facts import HostFacts
from nvllm.serve import planner, servehash

DOMAIN = "nvllm.host-class/1"
_DIGITS = 12
"""Hexadecimal digits, 48 bits: a class is typed and compared by people, and a fleet has few of them."""


def factors(facts: HostFacts) -> dict[str, Json]:
    """Return what decides the class of the host of FACTS. Equal GPUs count once: a profile says how many it takes."""
    gpus = [servehash.gpu(PlannedGpu(gpu.uuid, gpu.name, gpu.capability, gpu.driver)) for gpu in facts.gpus]
    kinds = {canonical.encode(gpu): gpu for gpu in gpus}
    cpu = planner.planned_cpu(facts.cpu, threads=not gpus)
    return {"cpu": servehash.cpu(cpu), "gpus": [kinds[key] for key in sorted(kinds)]}


def host_class(facts: HostFacts) -> str:
    """Return the class of the host of FACTS: a word of letters, digits, ``-`` and ``_``, at most 63 of them."""
    kind = "gpu" if facts.gpus else "cpu"
    return f"{kind}-{facts.cpu.machine}-{canonical.digest(DOMAIN, factors(facts))[:_DIGITS]}"
