"""Adds up a trace of PyTorch's profiler, in the container that wrote it: one JSON document on standard output.

On a GPU these are its kernels; without one, the operators of the processor, each without those that it calls.
"""

import base64
import gzip
import json
import os
import sys
from collections import defaultdict
from typing import Any

LARGEST = 16 << 20
"""Bytes of a trace that is handed out, as it is compressed. A larger one is only added up."""


def added_up(events: "list[dict[str, Any]]", category: str) -> "list[tuple[str, int, float]]":
    """Return name, calls and microseconds of the EVENTS of CATEGORY, without those nested in them; longest first."""
    calls: defaultdict[str, int] = defaultdict(int)
    times: defaultdict[str, float] = defaultdict(float)
    open_events: defaultdict[tuple[Any, Any, Any], list[tuple[str, float]]] = defaultdict(list)
    spans = [event for event in events if event.get("ph") == "X" and event.get("cat") == category]
    for span in sorted(spans, key=lambda event: (float(event["ts"]), -float(event["dur"]))):
        began, took = float(span["ts"]), float(span["dur"])
        around = open_events[span.get("rank"), span.get("pid"), span.get("tid")]
        while around and around[-1][1] <= began:
            around.pop()
        if around:
            times[around[-1][0]] -= took
        around.append((span["name"], began + took))
        calls[span["name"]] += 1
        times[span["name"]] += took
    return sorted(
        ((name, calls[name], round(took, 3)) for name, took in times.items()), key=lambda row: (-row[2], row[0])
    )


def main(directory: str) -> None:
    """Print what the traces below DIRECTORY add up to, and the first of them if it is small enough."""
    paths = sorted(
        os.path.join(place, name)
        for place, _, names in os.walk(directory)
        for name in names
        if name.endswith(".pt.trace.json.gz")
    )
    events = []
    for rank, path in enumerate(paths):
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            events += [{**one, "rank": rank} for one in json.load(stream)["traceEvents"]]
    gpu = any(one.get("cat") == "kernel" for one in events)
    trace = ""
    if paths and os.path.getsize(paths[0]) <= LARGEST:
        with open(paths[0], "rb") as stream:
            trace = base64.b64encode(stream.read()).decode()
    rows = added_up(events, "kernel" if gpu else "cpu_op")
    # vLLM names each step of a worker by what it does in it.
    steps = sum(one.get("cat") == "user_annotation" and str(one["name"]).startswith("execute_") for one in events)
    json.dump({"gpu": gpu, "kernels": rows, "steps": steps // max(1, len(paths)), "trace": trace}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
