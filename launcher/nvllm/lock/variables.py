"""The environment variables that vLLM reads, from its source, and those of a spec that it reads no longer, or reads
otherwise than another release."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator, Mapping

from nvllm.core.refusal import refuse
from nvllm.core.spec import ImageSpec

_MODULE = "vllm/envs.py"
_TABLE = "environment_variables"
"""The mapping in that module whose keys are the variables: 0.21 to 0.33 have it."""

_PREFIX = "VLLM_"
"""The names that are vLLM's own. Others are read by torch, by CUDA's tools and the like, which no source here shows."""


def known(sources: Mapping[str, bytes], where: str) -> frozenset[str]:
    """Return the variables that the table of SOURCES, path to content, names; they are parsed, never run.

    Raises Refused NV620 if there is no such table in the archive, which messages call WHERE, or it is empty.
    """
    names = frozenset(_table(sources))
    if not names:
        cure = "take a version of vLLM that this nvllm knows, or a newer nvllm"
        raise refuse("NV620", where, f"the table {_TABLE} in {_MODULE}", "none that names a variable", cure)
    return names


def _table(sources: Mapping[str, bytes]) -> Mapping[str, str]:
    """Return the table of SOURCES: the name of each variable, and the expression that reads it. Empty without one."""
    expressions: dict[str, str] = {}
    with contextlib.suppress(KeyError, SyntaxError, ValueError):
        for node in ast.parse(sources[_MODULE]).body:
            match node:
                case (
                    ast.AnnAssign(target=ast.Name(id=name), value=ast.Dict(keys=keys, values=values))
                    | ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(keys=keys, values=values))
                ) if name == _TABLE:
                    pairs = zip(keys, values, strict=True)
                    expressions |= {
                        str(key.value): _read(value) for key, value in pairs if isinstance(key, ast.Constant)
                    }
    return expressions


def _read(value: ast.expr) -> str:
    """Return the expression VALUE of a table; of a function without arguments, what it returns."""
    return ast.unparse(value.body if isinstance(value, ast.Lambda) and not ast.unparse(value.args) else value)


def changed(
    spec: ImageSpec, before: Mapping[str, bytes], after: Mapping[str, bytes]
) -> Iterator[tuple[str, str, str, str]]:
    """Yield place and value of each variable of SPEC that the sources AFTER read by another expression than BEFORE, and
    both expressions: what it means, or what holds without it, may be another thing then."""
    old, new = _table(before), _table(after)
    for steps, name, value in _written(spec):
        if name in old and name in new and old[name] != new[name]:
            yield steps, f"{name}={value}", old[name], new[name]


def unread(spec: ImageSpec, sources: Mapping[str, bytes], where: str) -> Iterator[tuple[str, str]]:
    """Yield place and name of each variable of vLLM's in SPEC that SOURCES, of the archive WHERE, do not read.

    A variable is read if the table has it, or if any module asks the environment for it. Raises what `known` raises.
    """
    table = known(sources, where)
    for steps, name, _ in _written(spec):
        if name.startswith(_PREFIX) and name not in table and not _asked(sources, name):
            yield steps, name


def foreign(spec: ImageSpec) -> tuple[str, ...]:
    """Return the variables of SPEC that are not vLLM's own, sorted."""
    return tuple(sorted({name for _, name, _ in _written(spec) if not name.startswith(_PREFIX)}))


def _written(spec: ImageSpec) -> Iterator[tuple[str, str, str]]:
    """Yield place, name and value of each variable of SPEC."""
    for name, value in spec.runtime.environment.items():
        yield f"runtime.environment.{name}", name, value
    for profile, profile_spec in spec.profiles.items():
        for name, value in profile_spec.environment.items():
            yield f"profiles.{profile}.environment.{name}", name, value


def _asked(sources: Mapping[str, bytes], name: str) -> bool:
    asks = re.compile(rb"(?:getenv\(|environ(?:\.get\(|\[))\s*[\"']" + re.escape(name.encode()) + rb"[\"']")
    return any(asks.search(content) for path, content in sources.items() if path.startswith("vllm/"))
