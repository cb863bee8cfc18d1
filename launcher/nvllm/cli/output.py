"""What --json prints: one document, the same form for every command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

from nvllm.cli.frame import SCHEMA, Seen
from nvllm.core.canonical import Json
from nvllm.core.catalogue import RefusalKind
from nvllm.core.fields import NOT_EMPTY, Form, Rule, Word
from nvllm.core.refusal import Refused, counted


@dataclass(frozen=True, slots=True)
class PrintedRefusal:
    """A refusal: its code, where it was found, and the one thing that cures it. `refusal.Refusal` has all fields."""

    code: Annotated[str, Rule("^NV[1-9][0-9]{2}$")]
    title: Word
    kind: RefusalKind
    where: Word
    expected: Word
    found: str
    cure: Word


@dataclass(frozen=True, slots=True)
class PrintedCrash:
    """A crash of nvllm itself. REPORT is the path of the report, null if it could not be written."""

    summary: str
    report: str | None


@dataclass(frozen=True, slots=True)
class Printed:
    """What every command prints on stdout with --json: one document. An interrupted command prints none."""

    schema: Annotated[str, Rule(choices=(SCHEMA,))]
    command: str
    """The command without the program's name, such as ``patch list``; empty if the line named none."""
    ok: bool
    result: Any = None
    """What the command found; each command has its own form."""
    refusals: Annotated[tuple[PrintedRefusal, ...], NOT_EMPTY] = ()
    crash: PrintedCrash | None = None


_REFUSAL = tuple(field.name for field in fields(PrintedRefusal))

FORM = Form(
    "output",
    SCHEMA,
    "Output of nvllm --json",
    Printed,
    also={
        "oneOf": [
            {"properties": {"ok": {"const": ok}}, "required": [name]}
            for ok, name in ((True, "result"), (False, "refusals"), (False, "crash"))
        ]
    },
)


def refusal_document(command: str, refused: Refused) -> Mapping[str, Json]:
    """Return what --json says of REFUSED."""
    return {
        "schema": SCHEMA,
        "command": command,
        "ok": False,
        **({"result": refused.result} if isinstance(refused, Seen) else {}),
        "refusals": [{name: getattr(refusal, name) for name in _REFUSAL} for refusal in counted(refused.refusals)],
    }
