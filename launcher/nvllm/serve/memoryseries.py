"""A series of memory, taken while an engine of a campaign runs: of the host, its container, its processes, and GPUs.

It says how close a run came to the watchdog's floor, and when. It has a thread of its own, because the container engine
and NVML may be slow to answer, and the watchdog must not wait for them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from nvllm.core import canonical, documents
from nvllm.core.fields import Count, Form, Seconds
from nvllm.core.refusal import Refused
from nvllm.host import facts, nvml
from nvllm.host.facts import MemoryInUse
from nvllm.serve.rundir import RunDirectory

INTERVAL = 1.0
"""Seconds between two samples."""

AVAILABLE = "available"
FIGURES: Mapping[str, str] = MappingProxyType(
    {
        AVAILABLE: "the host's MemAvailable",
        "container": "what counts against the container's limit, also files that the kernel keeps in memory for it",
        "engine": "the engine's processes themselves",
        "GPUs": "in use on all GPUs of the host, by NVML",
    }
)
"""What a series has, and what each figure is."""


@dataclass(frozen=True, slots=True)
class MemorySample:
    """A line of memory.jsonl: AT so many seconds after the start, the BYTES of each figure that anybody says."""

    at: Seconds
    bytes: Mapping[str, Count]


FORM = Form("memory-sample", "nvllm.memory-sample/1", "Memory at one moment: a line of memory.jsonl", MemorySample)


@contextlib.contextmanager
def recording(run: RunDirectory, in_use: Callable[[], MemoryInUse | None]) -> Iterator[None]:
    """Append samples to the series of RUN for the duration of the context.

    IN_USE asks the container engine; None means that there is no container yet, and so no directory to write into. The
    series ends where it cannot be written: that is no reason to end a campaign.
    """
    over, began = threading.Event(), time.monotonic()

    def record() -> None:
        with contextlib.suppress(OSError):
            while not over.wait(INTERVAL):
                if (sample := _sample(began, in_use)) is not None:
                    run.keep_sample(canonical.encode(documents.unstructure(FORM, sample)))

    thread = threading.Thread(target=record, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _sample(began: float, in_use: Callable[[], MemoryInUse | None]) -> MemorySample | None:
    try:
        used = in_use()
    except Refused:  # the container engine did not answer
        used = MemoryInUse(None, None)
    if used is None:
        return None
    figures = (facts.memory().get("MemAvailable"), used.container, used.engine, nvml.memory_in_use())
    named = {name: figure for name, figure in zip(FIGURES, figures, strict=True) if figure is not None}
    return MemorySample(round(time.monotonic() - began, 2), named)


def extremes(samples: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the least memory that SAMPLES, bytes by figure, say is available, and the most of each other figure."""
    extreme: dict[str, int] = {}
    for sample in samples:
        for name, value in sample.items():
            extreme[name] = (min if name == AVAILABLE else max)(value, extreme.get(name, value))
    return extreme
