"""The arguments of ``vllm serve``, read from vLLM's source, and the profiles that have others.

vLLM itself refuses an unknown argument only on a machine with its device: without one its parser cannot even be made.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Mapping, Sequence

from nvllm.core import schemas
from nvllm.core.refusal import Refusal, refuse
from nvllm.core.spec import ImageSpec

_ENGINE = "vllm/engine/arg_utils.py"
"""It adds the engine's arguments to the parser. The server's are added by the module of these directories that has
the class: 0.21 to 0.28 keep it in ``openai``, 0.29 to 0.32 in ``launchers``, 0.33 in ``common``."""
_SERVER = "vllm/entrypoints/"
_FIELDS = "FrontendArgs"
"""Each field of a class whose name ends so is an argument, besides those of calls of ``add_argument``."""

_CURE = "take a version of vLLM that this nvllm knows, or a newer nvllm"

_DRAIN = "shutdown-timeout"
"""The argument that a profile's ``limits.drain-timeout`` becomes."""


def known(sources: Mapping[str, bytes], where: str) -> tuple[str, ...]:
    """Return the long names of the arguments, without the leading --, sorted.

    SOURCES is path to content, of an archive that messages call WHERE; they are parsed, never run. Raises Refused:
    NV606 if they lack a module that makes the parser, or it has no argument. An empty list would end every later check.
    """
    servers = [path for path in sources if path.startswith(_SERVER) and f"class {_FIELDS}".encode() in sources[path]]
    names: set[str] = set()
    for expected, paths in ((_ENGINE, [_ENGINE]), (f"a class {_FIELDS} in {_SERVER}", servers)):
        added: set[str] = set()
        for path in paths:
            with contextlib.suppress(KeyError, SyntaxError, ValueError):
                for node in ast.walk(ast.parse(sources[path])):
                    added.update(_added(node))
        if not added:
            raise refuse("NV606", where, f"{expected} that adds arguments", "none", _CURE)
        names |= added
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

    Without NAMES, as in a lock of an earlier nvllm, nothing is refused. What follows a dot is a part of the value.
    """
    for profile, profile_spec in spec.profiles.items():
        if names and profile_spec.limits.drain_timeout and _DRAIN not in names:
            expected = f"0: vllm serve {spec.vllm.version} has no --{_DRAIN}"
            timeout = str(profile_spec.limits.drain_timeout)
            yield Refusal("NV603", f"{label}: .profiles.{profile}.limits.drain-timeout", expected, timeout, "remove it")
        for argument, value in profile_spec.arguments.items() if names else ():
            head = argument.partition(".")[0]
            if head not in names and head.removeprefix("no-") not in names:
                meant = schemas.nearest(head, list(names))
                cure = f"write {meant}" if meant is not None else "remove it"
                # vLLM 0.33 makes one of the other: what is nearest says the contrary.
                switch = head.replace("disable-", "enable-", 1)
                if head != switch and switch in names:
                    cure = f"write {switch}: {str(not value).lower()}"
                expected = f"an argument of vllm serve {spec.vllm.version}, in full"
                yield Refusal("NV603", f"{label}: .profiles.{profile}.arguments.{argument}", expected, head, cure)
