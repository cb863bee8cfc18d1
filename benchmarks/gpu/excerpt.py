"""Take single definitions out of a source file, so that two versions of vLLM can run in one process.

Both are called `vllm`, and each registers operators of the same names with torch, so only one can be imported.
What is taken keeps its text; nothing of it is kept in this repository.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable


class LacksDefinitionError(Exception):
    """A source has no definition of a name at its top level."""


def call(page_zeroer: str) -> str:
    """Return what a call of PAGE_ZEROER, the patch's module, runs on the GPU and the host: without comments."""
    called = {"zero_pages_kernel", "zero_block_ids", "_room_for", "_launch"}
    nodes = [node for node in ast.walk(ast.parse(page_zeroer)) if isinstance(node, ast.FunctionDef)]
    return "\n".join(ast.unparse(node) for node in nodes if node.name in called)


def excerpt(source: str, names: Iterable[str]) -> str:
    """Return the functions and classes NAMES of SOURCE, with their decorators, in the order of NAMES."""
    lines = source.splitlines(keepends=True)
    definitions: dict[str, str] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            definitions[node.name] = "".join(lines[first - 1 : node.end_lineno])
    missing = [name for name in names if name not in definitions]
    if missing:
        raise LacksDefinitionError(", ".join(missing))
    return "\n\n".join(definitions[name] for name in names)
