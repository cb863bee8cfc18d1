"""Print a bytecode file as lines that can be compared; runs under any Python, standard library only.

One job on stdin, as JSON: ``{"bytecode": base64, "source": [line, ...]}``. Each line of code is a heading, with its
source if that is known, and its instructions below. A process of its own: loading damaged bytecode may end a process.
"""

import base64
import dis
import json
import marshal
import re
import sys
from collections.abc import Iterator
from types import CodeType

_HEADER = 16
"""Bytes of a bytecode file before its code (PEP 552)."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def lines(code: CodeType, source: list[str]) -> Iterator[str]:
    """Yield the lines of CODE, then those of the functions and classes in it."""
    yield f"{code.co_qualname}({', '.join(code.co_varnames[: code.co_argcount])}), flags {code.co_flags:#x}"
    current = None
    for one in dis.get_instructions(code):
        position = one.positions.lineno if one.positions is not None else None
        if position is not None and position != current:
            current = position
            text = source[position - 1].strip() if 0 < position <= len(source) else ""
            yield f"  line {position}: {text}".rstrip()
        yield f"    {one.opname} {_ADDRESS.sub('', one.argrepr)}".rstrip()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from lines(constant, source)


def main() -> None:
    job = json.load(sys.stdin)
    code = marshal.loads(base64.b64decode(job["bytecode"])[_HEADER:])  # noqa: S302 - this process does only that
    print(json.dumps(list(lines(code, job["source"]))))


if __name__ == "__main__":
    main()
