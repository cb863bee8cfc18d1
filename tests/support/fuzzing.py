"""Changes of files and answers, and the check that each of them is read or refused: for hypothesis and for atheris."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator, MutableMapping, MutableSequence
from pathlib import Path
from typing import Any

from nvllm.core.refusal import Refused
from support import fuzzed, fuzzed_answers, fuzzed_evidence, fuzzed_fleet, fuzzed_state
from support.fuzzed import Reader

READERS = {
    **fuzzed.READERS,
    **fuzzed_answers.READERS,
    **fuzzed_state.READERS,
    **fuzzed_evidence.READERS,
    **fuzzed_fleet.READERS,
}

SECONDS = 5.0
"""The most processor time that one file may take, whatever else the machine does."""

MEMORY = 1 << 30
"""The most memory that one file may take, in bytes."""

KINDS = ["replace", "insert", "cut", "repeat", "end", "node", "node"]
"""What an edit does. A ``node`` replaces a part of a JSON document by one of NODES, and leaves the rest well formed."""

TOKENS = [
    b"",
    b"\0",
    b"\n",
    b"\r\n",
    b"\xff",
    b"\xe2\x82",
    b"-",
    b"..",
    b"../",
    b"/",
    b"%",
    b"'",
    b'"',
    b"\\",
    b"{",
    b"[",
    b"]",
    b"}",
    b"[" * 200,
    b"[" * 100_000,
    b"{a: " * 80,
    b"&a ",
    b"*a",
    b"<<: *a",
    b"!!int ",
    b"!!python/object:x ",
    b"1:1:1",
    b"0x" + b"f" * 60,
    b"9" * 400,
    b"9" * 5000,
    b"1e999",
    b"NaN",
    b"Infinity",
    b"-0",
    b"1152921504606846976",
    b"\\ud800",
    b"null",
    b"true",
    b"2026-01-01",
    b"@@ -1 +1 @@\n",
    b"@@ -0,0 +1,99999999999 @@\n",
    b"rename from a\n",
    b"old mode 100644\n",
    b"GIT binary patch\n",
    b"\\ No newline at end of file\n",
    b"+++ b/../x\n",
    b"From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n",
    b"Subject: =?utf-8?q?=ff?=\n",
    b"\xef\xbb\xbf",
    b"PK\x01\x02",
    b"PK\x05\x06",
    b"\xff" * 8,
    bytes(8),
    bytes(512),
    b"\x7fELF",
    b"#",
    b"|",
    b"~",
]

NODES: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    2**53 - 1,
    2**53,
    10**40,
    1e308,
    "",
    "x",
    "../../x",
    "/etc/passwd",
    "a\0b",
    "\ud800",
    "\u2028",
    "9" * 5000,
    "nan",
    "1e999",
    "x" * 300,
    "=" * 64,
    [],
    [[]],
    {},
    {"": {}},
    [None] * 1000,
    {str(number): number for number in range(1000)},
]


def changed(data: bytes, edits: list[tuple[str, int, bytes]]) -> bytes:
    """Return DATA with EDITS: what to do, where (in millionths of the length), and with what."""
    for kind, place, token in edits:
        at = len(data) * place // 10**6
        if kind == "replace":
            data = data[:at] + token + data[at + len(token) :]
        elif kind == "insert":
            data = data[:at] + token + data[at:]
        elif kind == "cut":
            data = data[:at] + data[at + 1 + 7 * len(token) :]
        elif kind == "repeat":
            data = data[:at] + data[max(0, at - 40) : at] * (1 + len(token)) + data[at:]
        elif kind == "node":
            data = _with_node(data, place)
        else:
            data = data[:at] + token
    return data[: 1 << 20]


def _with_node(data: bytes, place: int) -> bytes:
    """Return the JSON document DATA with another value at PLACE; DATA itself if it is no such document."""
    try:
        document: Any = json.loads(data)
    except (ValueError, RecursionError):
        return data
    nodes = list(_nodes(document))
    value = NODES[place % len(NODES)]
    if nodes:
        holder, key = nodes[place // len(NODES) % len(nodes)]
        holder[key] = value
    else:
        document = value
    return json.dumps(document).encode()


def _nodes(document: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each object or list in DOCUMENT with each key or index of it."""
    items: Any = ()
    if isinstance(document, MutableMapping):
        items = document.items()
    elif isinstance(document, MutableSequence):
        items = enumerate(document)
    for key, value in items:
        yield document, key
        yield from _nodes(value)


def check(reader: Reader, data: bytes, directory: Path) -> None:
    """Let READER read DATA, and check what comes of it."""
    path = directory / reader.filename
    path.write_bytes(data)
    started, before = time.process_time(), peak()
    try:
        reader.reads(path)
    except Refused as refused:
        for one in refused.refusals:
            assert all((one.code, one.where, one.expected, one.found, one.cure)), one
    assert time.process_time() - started < SECONDS
    assert peak() - before < MEMORY


def peak() -> int:
    """Return the most memory that this process ever had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
