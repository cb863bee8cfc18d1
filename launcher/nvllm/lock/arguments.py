"""The arguments of ``vllm serve``, read from vLLM's source, and the profiles that have others.

vLLM itself refuses an unknown argument only on a machine with its device: without one its parser cannot even be made.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from nvllm.core import schemas
from nvllm.core.refusal import Refusal
from nvllm.core.spec import ImageSpec

_MODULES = ("vllm/engine/arg_utils.py", "vllm/entrypoints/openai/cli_args.py")
"""They make the parser: by calls of ``add_argument``, and from each field of a class that is called so:"""
_FIELDS = "FrontendArgs"

_DRAIN = "shutdown-timeout"
"""The argument that a profile's ``limits.drain-timeout`` becomes."""


def known(sources: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return the long names of the arguments, without the leading --, sorted; none if SOURCES lack a module of them.

    SOURCES is path to content. They are parsed, never run.
    """
    names: set[str] = set()
    for path in _MODULES:
        try:
            tree = ast.parse(sources[path])
        except (KeyError, SyntaxError, ValueError):
            return ()
        for node in ast.walk(tree):
            names.update(_added(node))
    return tuple(sorted(names))


def _added(node: ast.AST) -> Iterator[str]:
    """Yield the names that NODE, a part of a module, adds."""
    match node:
        case ast.Call(func=ast.Attribute(attr="add_argument"), args=words):
            for word in words:
                if isinstance(word, ast.Constant) and isinstance(word.value, str) and word.value.startswith("--"):
                    yield word.value.removeprefix("--")
        case ast.ClassDef(name=name, body=body) if name.endswith(_FIELDS):
            for line in body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    yield line.target.id.replace("_", "-")


def unknown(spec: ImageSpec, names: Sequence[str], label: str) -> Iterator[Refusal]:
    """Yield NV603 for each argument in a profile of SPEC, a file that messages call LABEL, that is not in NAMES.

    Without NAMES nothing is known, and nothing is refused. What follows a dot is a part of the argument's value.
    """
    for profile, profile_spec in spec.profiles.items():
        if names and profile_spec.limits.drain_timeout and _DRAIN not in names:
            expected = f"0: vllm serve {spec.vllm.version} has no --{_DRAIN}"
            timeout = str(profile_spec.limits.drain_timeout)
            yield Refusal("NV603", f"{label}: .profiles.{profile}.limits.drain-timeout", expected, timeout, "remove it")
        for argument in profile_spec.arguments if names else ():
            head = argument.partition(".")[0]
            if head not in names and head.removeprefix("no-") not in names:
                meant = schemas.nearest(head, list(names))
                cure = f"write {meant}" if meant is not None else "remove it"
                expected = f"an argument of vllm serve {spec.vllm.version}, in full"
                yield Refusal("NV603", f"{label}: .profiles.{profile}.arguments.{argument}", expected, head, cure)
