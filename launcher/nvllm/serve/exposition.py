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


def text(exposed: Exposed) -> str:
    """Return EXPOSED as a page that Prometheus scrapes, or node_exporter's textfile collector reads."""
    return "".join(line + "\n" for family in _families(exposed) if family.samples for line in _lines(family))


def _families(exposed: Exposed) -> Iterator[MetricFamily]:
    yield from _now(exposed)
    yield from _since_the_start([(one, one.state) for one in exposed.instances if one.state is not None])
    yield from _hardware_gates(exposed)


def _now(exposed: Exposed) -> Iterator[MetricFamily]:
    """Yield what the instances of EXPOSED are at this moment."""
    yield MetricFamily(
        "nvllm_instance_info",
        "An instance that nvllm started, its stage and what it is.",
        [
            (
                {
                    **_labels(instance),
                    "stage": instance.stage,
                    "serve_hash": instance.state.serve_hash if instance.state else "",
                    "blessed": instance.state.blessed if instance.state else "",
                    "dev": str(instance.state.dev).lower() if instance.state else "",
                },
                1,
            )
            for instance in exposed.instances
        ],
    )
    yield MetricFamily(
        "nvllm_instance_up",
        "Whether the engine of an instance has been ready and its container runs.",
        [(_labels(instance), instance.running) for instance in exposed.instances],
    )
    yield MetricFamily(
        "nvllm_instance_supervised",
        "Whether a supervisor looks after an instance.",
        [(_labels(instance), instance.supervised) for instance in exposed.instances],
    )
    yield MetricFamily(
        "nvllm_instance_kv_cache_usage_ratio",
        "Share of the KV cache in use by the engine's own metrics, from 0 to 1.",
        [
            ({**_labels(instance), "engine": engine}, usage)
            for instance in exposed.instances
            for engine, usage in exposed.usage.get(instance.name, {}).items()
        ],
    )


def _since_the_start(known: Sequence[tuple[SeenInstance, InstanceState]]) -> Iterator[MetricFamily]:
    """Yield what the states of the KNOWN instances say of their starts, and of what happened since."""
    yield MetricFamily(
        "nvllm_instance_start_timestamp_seconds",
        "When the container of an instance was started, in seconds since 1970.",
        [(_labels(instance), state.started) for instance, state in known],
    )
    yield MetricFamily(
        "nvllm_instance_start_phase_seconds",
        "How long each phase of the start took.",
        [({**_labels(instance), "phase": name}, took) for instance, state in known for name, took in state.phases],
    )
    yield MetricFamily(
        "nvllm_instance_kernels_missed",
        "Kernels that a blessed cache lacked, so that requests waited for a compilation.",
        [(_labels(instance), len(state.kernels)) for instance, state in known if state.blessed],
    )
    yield MetricFamily(
        "nvllm_instance_kv_cache_tokens",
        "Tokens that the KV cache of an instance holds.",
        [(_labels(instance), state.kv_tokens) for instance, state in known if state.kv_tokens is not None],
    )


def _hardware_gates(exposed: Exposed) -> Iterator[MetricFamily]:
    """Yield when each hardware gate was last run, and whether that run passed."""
    newest = {one.gate: one for one in exposed.filed}  # they are sorted by their time
    yield MetricFamily(
        "nvllm_hardware_gate_timestamp_seconds",
        "When a hardware gate was last run here, in seconds since 1970.",
        [({"gate": gate}, one.record.when) for gate, one in newest.items() if one.record is not None],
    )
    yield MetricFamily(
        "nvllm_hardware_gate_passed",
        "Whether the last run of a hardware gate passed, on this machine and with a record that is not damaged.",
        [({"gate": gate}, gates.passed_here(one, exposed.here)) for gate, one in newest.items()],
    )


def _labels(instance: SeenInstance) -> dict[str, str]:
    # Not `instance`: Prometheus itself gives that label to each target that it scrapes.
    state = instance.state
    image, profile = (state.image, state.profile) if state else ("", "")
    return {"instance_name": instance.name, "image": image, "profile": profile}


def _lines(family: MetricFamily) -> Iterable[str]:
    yield f"# HELP {family.name} {family.help.translate(_IN_HELP)}"
    yield f"# TYPE {family.name} gauge"
    for labels, value in family.samples:
        marks = ",".join(f'{name}="{text.translate(_IN_LABEL)}"' for name, text in labels.items())
        yield f"{family.name}{{{marks}}} {float(value)!r}"


_IN_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})
_IN_LABEL = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
