"""What `nvllm status` sees, in the text format of Prometheus, version 0.0.4.

vLLM's own /metrics has what happens in an engine, and is scraped from the engine. Here is what only the launcher
knows, and of the engine's figures the one by which people look at an instance first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nvllm.host import gates
from nvllm.host.gates import FiledRecord, Machine
from nvllm.serve.instances import SeenInstance
from nvllm.serve.rundir import InstanceState

Sample = tuple[Mapping[str, str], float]


@dataclass(frozen=True, slots=True)
class Exposed:
    """What is exposed: INSTANCES, the KV cache USAGE of those that answer, and the FILED records of hardware gates.

    HERE is this machine: a record of another one does not count.
    """

    instances: Sequence[SeenInstance]
    usage: Mapping[str, Mapping[str, float]]
    """By the name of the instance and the number of its engine, between 0 and 1."""
    filed: Sequence[FiledRecord]
    here: Machine


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """A gauge: its NAME and HELP, and its SAMPLES. Nothing is exposed of a family without samples."""

    name: str
    help: str
    samples: Sequence[Sample]


def text(found: Exposed) -> str:
    """Return FOUND as a page that Prometheus scrapes, or node_exporter's textfile collector reads."""
    return "".join(line + "\n" for family in _families(found) if family.samples for line in _lines(family))


def _families(found: Exposed) -> Iterator[MetricFamily]:
    yield from _now(found)
    yield from _since_the_start([(one, one.state) for one in found.instances if one.state is not None])
    yield from _hardware_gates(found)


def _now(found: Exposed) -> Iterator[MetricFamily]:
    """Yield what the instances of FOUND are at this moment."""
    yield MetricFamily(
        "nvllm_instance_info",
        "An instance that nvllm started, its stage and what it is.",
        [
            (
                {
                    **_labels(one),
                    "stage": one.stage,
                    "serve_hash": one.state.serve_hash if one.state else "",
                    "blessed": one.state.blessed if one.state else "",
                    "dev": str(one.state.dev).lower() if one.state else "",
                },
                1,
            )
            for one in found.instances
        ],
    )
    yield MetricFamily(
        "nvllm_instance_up",
        "Whether the engine of an instance has been ready and its container runs.",
        [(_labels(one), one.running) for one in found.instances],
    )
    yield MetricFamily(
        "nvllm_instance_supervised",
        "Whether a supervisor looks after an instance.",
        [(_labels(one), one.supervised) for one in found.instances],
    )
    yield MetricFamily(
        "nvllm_instance_kv_cache_usage_ratio",
        "Share of the KV cache in use by the engine's own metrics, from 0 to 1.",
        [
            ({**_labels(one), "engine": engine}, usage)
            for one in found.instances
            for engine, usage in found.usage.get(one.name, {}).items()
        ],
    )


def _since_the_start(known: Sequence[tuple[SeenInstance, InstanceState]]) -> Iterator[MetricFamily]:
    """Yield what the states of the KNOWN instances say of their starts, and of what happened since."""
    yield MetricFamily(
        "nvllm_instance_start_timestamp_seconds",
        "When the container of an instance was started, in seconds since 1970.",
        [(_labels(one), state.started) for one, state in known],
    )
    yield MetricFamily(
        "nvllm_instance_start_phase_seconds",
        "How long each phase of the start took.",
        [({**_labels(one), "phase": name}, took) for one, state in known for name, took in state.phases],
    )
    yield MetricFamily(
        "nvllm_instance_kernels_missed",
        "Kernels that a blessed cache lacked, so that requests waited for a compilation.",
        [(_labels(one), len(state.kernels)) for one, state in known if state.blessed],
    )
    yield MetricFamily(
        "nvllm_instance_kv_cache_tokens",
        "Tokens that the KV cache of an instance holds.",
        [(_labels(one), state.kv_tokens) for one, state in known if state.kv_tokens is not None],
    )


def _hardware_gates(found: Exposed) -> Iterator[MetricFamily]:
    """Yield when each hardware gate was last run, and whether that run passed."""
    newest = {one.gate: one for one in found.filed}  # they are sorted by their time
    yield MetricFamily(
        "nvllm_hardware_gate_timestamp_seconds",
        "When a hardware gate was last run here, in seconds since 1970.",
        [({"gate": gate}, one.record.when) for gate, one in newest.items() if one.record is not None],
    )
    yield MetricFamily(
        "nvllm_hardware_gate_passed",
        "Whether the last run of a hardware gate passed, on this machine and with a record that is not damaged.",
        [({"gate": gate}, gates.passed_here(one, found.here)) for gate, one in newest.items()],
    )


def _labels(one: SeenInstance) -> dict[str, str]:
    # Not `instance`: Prometheus itself gives that label to each target that it scrapes.
    state = one.state
    return {"instance_name": one.name, "image": state.image if state else "", "profile": state.profile if state else ""}


def _lines(family: MetricFamily) -> Iterable[str]:
    yield f"# HELP {family.name} {family.help.translate(_IN_HELP)}"
    yield f"# TYPE {family.name} gauge"
    for labels, value in family.samples:
        said = ",".join(f'{name}="{text.translate(_IN_LABEL)}"' for name, text in labels.items())
        yield f"{family.name}{{{said}}} {float(value)!r}"


_IN_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})
_IN_LABEL = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
