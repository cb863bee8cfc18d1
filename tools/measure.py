"""Measure the package: `python tools/measure.py`. One line for each figure, in the same way each time."""

from __future__ import annotations

import ast
import io
import itertools
import sys
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "launcher" / "nvllm"


def modules() -> list[Path]:
    """Return the modules of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def comments(source: str) -> int:
    """Return the number of comments in the Python text SOURCE, without those for linters."""
    words = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type == tokenize.COMMENT and not token.string.startswith(("# noqa", "# type:")) for token in words)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def explained(source: str) -> int:
    """Return how many values, constants and fields, have a text below them in the Python text SOURCE."""
    bodies = (node.body for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Module | ast.ClassDef))
    return sum(
        isinstance(value, ast.Assign | ast.AnnAssign) and _is_text(text)
        for body in bodies
        for value, text in itertools.pairwise(body)
    )


def nicknames(source: str) -> int:
    """Return how many modules or names the Python text SOURCE imports under another name."""
    imports = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom))
    return sum(alias.asname is not None for node in imports for alias in node.names)


def figures() -> dict[str, str]:
    """Return each figure of the package by its name."""
    sources = {path: path.read_text(encoding="utf-8") for path in modules()}
    lines = {path: source.count("\n") for path, source in sources.items()}
    total = sum(lines.values())
    why = sum(map(comments, sources.values()))
    longest = max(lines, key=lambda path: lines[path])
    return {
        "modules": str(len(sources)),
        "lines": f"{total:,}",
        "longest module": f"{longest.relative_to(PACKAGE)}, {lines[longest]} lines",
        "comments": f"{why:,}, {100 * why / total:.1f} % of the lines",
        "values with a text below": f"{sum(map(explained, sources.values())):,}",
        "imports under another name": str(sum(map(nicknames, sources.values()))),
    }


if __name__ == "__main__":
    sys.stdout.writelines(f"{figure:<28} {value}\n" for figure, value in figures().items())
