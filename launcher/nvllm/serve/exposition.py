"""What `nvllm status` sees, in the text format of Prometheus, version 0.0.4.

vLLM's own /metrics has what happens in an engine, and is scraped from the engine. Here is what only the launcher
knows, and of the engine's figures the one by which people look at an instance first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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


def text(exposed: Exposed) -> str:
    """Return EXPOSED as a page that Prometheus scrapes, or node_exporter's textfile collector reads.

    Nothing is exposed of a gauge without samples.
    """
    gauges = (gauge for gauge in _gauges(exposed) if gauge[2])
    return "".join(line + "\n" for gauge in gauges for line in _lines(*gauge))


def _gauges(exposed: Exposed) -> Iterator[tuple[str, str, list[Sample]]]:
    """Yield the name, the help and the samples of each gauge."""
    every, known = (
        exposed.instances,
        [(instance, instance.state) for instance in exposed.instances if instance.state is not None],
    )
    yield (
        "nvllm_instance_info",
        "An instance that nvllm started, its stage and what it is.",
        [({**_labels(instance), "stage": instance.stage, **_identity(instance.state)}, 1) for instance in every],
    )
    yield (
        "nvllm_instance_up",
        "Whether the engine of an instance has been ready and its container runs.",
        [(_labels(instance), instance.running) for instance in every],
    )
    yield (
        "nvllm_instance_supervised",
        "Whether a supervisor looks after an instance.",
        [(_labels(instance), instance.supervised) for instance in every],
    )
    yield (
        "nvllm_instance_kv_cache_usage_ratio",
        "Share of the KV cache in use by the engine's own metrics, from 0 to 1.",
        [
            ({**_labels(instance), "engine": engine}, usage)
            for instance in every
            for engine, usage in exposed.usage.get(instance.name, {}).items()
        ],
    )
    yield (
        "nvllm_instance_start_timestamp_seconds",
        "When the container of an instance was started, in seconds since 1970.",
        [(_labels(instance), state.started) for instance, state in known],
    )
    yield (
        "nvllm_instance_start_phase_seconds",
        "How long each phase of the start took.",
        [({**_labels(instance), "phase": name}, took) for instance, state in known for name, took in state.phases],
    )
    yield (
        "nvllm_instance_kernels_missed",
        "Kernels that a blessed cache lacked, so that requests waited for a compilation.",
        [(_labels(instance), len(state.kernels)) for instance, state in known if state.blessed],
    )
    yield (
        "nvllm_instance_kv_cache_tokens",
        "Tokens that the KV cache of an instance holds.",
        [(_labels(instance), state.kv_tokens) for instance, state in known if state.kv_tokens is not None],
    )
    newest = {filed.gate: filed for filed in exposed.filed}  # they are sorted by their time
    yield (
        "nvllm_hardware_gate_timestamp_seconds",
        "When a hardware gate was last run here, in seconds since 1970.",
        [({"gate": gate}, filed.record.when) for gate, filed in newest.items() if filed.record is not None],
    )
    yield (
        "nvllm_hardware_gate_passed",
        "Whether the last run of a hardware gate passed, on this machine and with a record that is not damaged.",
        [({"gate": gate}, gates.passed_here(filed, exposed.here)) for gate, filed in newest.items()],
    )


def _identity(state: InstanceState | None) -> dict[str, str]:
    if state is None:
        return dict.fromkeys(("serve_hash", "blessed", "dev"), "")
    return {"serve_hash": state.serve_hash, "blessed": state.blessed, "dev": str(state.dev).lower()}


def _labels(instance: SeenInstance) -> dict[str, str]:
    # Not `instance`: Prometheus itself gives that label to each target that it scrapes.
    state = instance.state
    image, profile = (state.image, state.profile) if state else ("", "")
    return {"instance_name": instance.name, "image": image, "profile": profile}


def _lines(gauge: str, help_text: str, samples: Sequence[Sample]) -> Iterator[str]:
    yield f"# HELP {gauge} {help_text.translate(_IN_HELP)}"
    yield f"# TYPE {gauge} gauge"
    for labels, value in samples:
        marks = ",".join(f'{name}="{text.translate(_IN_LABEL)}"' for name, text in labels.items())
        yield f"{gauge}{{{marks}}} {float(value)!r}"


_IN_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})
_IN_LABEL = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
