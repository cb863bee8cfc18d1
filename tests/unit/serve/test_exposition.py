"""The page for Prometheus, read back by a strict reader of the text format 0.0.4."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.host.gates import FiledRecord
from nvllm.serve import exposition
from nvllm.serve.exposition import Exposed
from nvllm.serve.instances import SeenInstance
from nvllm.serve.rundir import InstanceState
from nvllm.serve.timeline import MissingKernel
from support.gate_samples import HERE, PASSED, record

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\n"])*)"(?:,|$)')
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{(.*)\} (\S+)")

Labels = frozenset[tuple[str, str]]


@dataclass
class ReadFamily:
    """A family as a scraper reads it."""

    help: str
    kind: str = ""
    samples: dict[Labels, float] = field(default_factory=dict)


def read(page: str) -> dict[str, ReadFamily]:
    """Return the families in PAGE by name; fail for anything that the format does not allow."""
    assert page == "" or page.endswith("\n")
    found: dict[str, ReadFamily] = {}
    current = ""
    for line in page.split("\n")[:-1]:
        if line.startswith("# HELP "):
            current, _, text = line[7:].partition(" ")
            assert _NAME.fullmatch(current)
            assert current not in found, "a family stands in one place"
            found[current] = ReadFamily(text)
        elif line.startswith("# TYPE "):
            name, _, kind = line[7:].partition(" ")
            assert (name, found[name].kind, found[name].samples) == (current, "", {})
            found[name].kind = kind
        else:
            sample = _SAMPLE.fullmatch(line)
            assert sample is not None, line
            assert sample[1] == current
            labels, at = [], 0
            while at < len(sample[2]):
                label = _LABEL.match(sample[2], at)
                assert label is not None, line
                labels.append((label[1], re.sub(r"\\(.)", lambda one: {"n": "\n"}.get(one[1], one[1]), label[2])))
                at = label.end()
            assert len({name for name, _ in labels}) == len(labels)
            assert frozenset(labels) not in found[current].samples, "a sample stands once"
            found[current].samples[frozenset(labels)] = float(sample[3])
    assert {one.kind for one in found.values()} <= {"gauge"}
    return found


def state(**changes: object) -> InstanceState:
    fields: dict[str, object] = {
        "instance": "nvllm-demo-eager",
        "image": "demo",
        "profile": "eager",
        "dev": False,
        "stage": "ready",
        "build_hash": "",
        "serve_hash": "abc",
        "port": 8000,
        "supervisor": 1,
        "container": "4f",
        "started": 1000.5,
        "kv_tokens": 52428,
        "phases": (("gate", 0.5), ("weights", 2.0)),
        "blessed": "demo-eager",
        "kernels": (MissingKernel("K", "conv", 5.0),),
    }
    return InstanceState(**{**fields, **changes})  # type: ignore[arg-type]  # fields of several types, by name


READY = SeenInstance("nvllm-demo-eager", "ready", supervised=True, container="4f", state=state())


def page(
    *instances: SeenInstance,
    usage: Mapping[str, Mapping[str, float]] | None = None,
    filed: tuple[FiledRecord, ...] = (),
) -> dict[str, ReadFamily]:
    return read(exposition.text(Exposed(instances, usage or {}, filed, HERE)))


def values(found: dict[str, ReadFamily], name: str, label: str = "") -> dict[str, float]:
    return {dict(labels).get(label, ""): value for labels, value in found[name].samples.items()}


def test_an_instance_that_is_served() -> None:
    found = page(READY, usage={READY.name: {"0": 0.25, "1": 0.0}})
    (labels,) = found["nvllm_instance_info"].samples
    assert dict(labels) == {
        "instance_name": "nvllm-demo-eager",
        "image": "demo",
        "profile": "eager",
        "stage": "ready",
        "serve_hash": "abc",
        "blessed": "demo-eager",
        "dev": "false",
    }
    assert values(found, "nvllm_instance_up") == {"": 1.0}
    assert values(found, "nvllm_instance_supervised") == {"": 1.0}
    assert values(found, "nvllm_instance_start_timestamp_seconds") == {"": 1000.5}
    assert values(found, "nvllm_instance_start_phase_seconds", "phase") == {"gate": 0.5, "weights": 2.0}
    assert values(found, "nvllm_instance_kernels_missed") == {"": 1.0}
    assert values(found, "nvllm_instance_kv_cache_tokens") == {"": 52428.0}
    assert values(found, "nvllm_instance_kv_cache_usage_ratio", "engine") == {"0": 0.25, "1": 0.0}


def test_what_is_not_known_is_not_exposed() -> None:
    """No figure is better than a zero that nobody measured."""
    found = page(SeenInstance("other", "running", supervised=False, container="5a", state=None))
    assert set(found) == {"nvllm_instance_info", "nvllm_instance_up", "nvllm_instance_supervised"}
    found = page(SeenInstance("x", "gone", supervised=False, container="", state=state(kv_tokens=None, blessed="")))
    assert "nvllm_instance_kernels_missed" not in found
    assert "nvllm_instance_kv_cache_tokens" not in found
    assert values(found, "nvllm_instance_up") == {"": 0.0}
    assert page() == {}


def test_gates_by_their_last_run() -> None:
    disk = record(gate="disk", outcome="failed")
    filed = (
        FiledRecord("a", "memory", record(outcome="failed", measured="2026-11-01T00:00:00Z")),
        FiledRecord("b", "memory", PASSED),
        FiledRecord("c", "disk", disk),
        FiledRecord("d", "thermal", None, "not JSON"),
    )
    found = page(filed=filed)
    assert values(found, "nvllm_hardware_gate_timestamp_seconds", "gate") == {"memory": PASSED.when, "disk": disk.when}
    assert values(found, "nvllm_hardware_gate_passed", "gate") == {"memory": 1.0, "disk": 0.0, "thermal": 0.0}


@given(st.text(), st.text(), st.floats(allow_nan=False))
def test_any_name_and_any_figure_come_back(name: str, label: str, figure: float) -> None:
    one = SeenInstance(name, "ready", supervised=True, container="", state=state(blessed=label, started=figure))
    found = page(one)
    assert values(found, "nvllm_instance_start_timestamp_seconds", "instance_name") == {name: figure}
    assert values(found, "nvllm_instance_info", "blessed") == {label: 1.0}


@pytest.mark.parametrize(
    "text",
    [
        'a{b="c"} 1\n',
        '# HELP a b\n# TYPE a gauge\na{b="\\x"} 1\n',
        "# HELP a b\n# TYPE a gauge\na{} one\n",
        "# HELP a b",
    ],
)
def test_the_reader_is_strict(text: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        read(text)
