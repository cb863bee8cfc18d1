"""The environment variables that vLLM reads, from its source, and those of a spec that it reads no longer."""

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
    names: set[str] = set()
    with contextlib.suppress(KeyError, SyntaxError, ValueError):
        for node in ast.parse(sources[_MODULE]).body:
            match node:
                case (
                    ast.AnnAssign(target=ast.Name(id=name), value=ast.Dict(keys=keys))
                    | ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(keys=keys))
                ) if name == _TABLE:
                    names.update(str(key.value) for key in keys if isinstance(key, ast.Constant))
    if not names:
        cure = "take a version of vLLM that this nvllm knows, or a newer nvllm"
        raise refuse("NV620", where, f"the table {_TABLE} in {_MODULE}", "none that names a variable", cure)
    return frozenset(names)


def unread(spec: ImageSpec, sources: Mapping[str, bytes], where: str) -> Iterator[tuple[str, str]]:
    """Yield place and name of each variable of vLLM's in SPEC that SOURCES, of the archive WHERE, do not read.

    A variable is read if the table has it, or if any module asks the environment for it. Raises what `known` raises.
    """
    table = known(sources, where)
    for steps, name in _written(spec):
        if name.startswith(_PREFIX) and name not in table and not _asked(sources, name):
            yield steps, name


def foreign(spec: ImageSpec) -> tuple[str, ...]:
    """Return the variables of SPEC that are not vLLM's own, sorted."""
    return tuple(sorted({name for _, name in _written(spec) if not name.startswith(_PREFIX)}))


def _written(spec: ImageSpec) -> Iterator[tuple[str, str]]:
    for name in spec.runtime.environment:
        yield f"runtime.environment.{name}", name
    for profile, profile_spec in spec.profiles.items():
        for name in profile_spec.environment:
            yield f"profiles.{profile}.environment.{name}", name


def _asked(sources: Mapping[str, bytes], name: str) -> bool:
    asks = re.compile(rb"(?:getenv\(|environ(?:\.get\(|\[))\s*[\"']" + re.escape(name.encode()) + rb"[\"']")
    return any(asks.search(content) for path, content in sources.items() if path.startswith("vllm/"))
