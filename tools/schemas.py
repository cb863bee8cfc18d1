"""Writes docs/schemas/*.schema.json, for editors and other programs: ``python tools/schemas.py docs/schemas``.

nvllm itself derives the same schemas when it needs them. The descriptions are the docstrings of classes and fields.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nvllm.bisect import journal
from nvllm.bless import compiled, rejected
from nvllm.cache import manifest
from nvllm.cli import output
from nvllm.core import fields, lock, spec
from nvllm.core.fields import Form, Schema
from nvllm.evidence import records
from nvllm.fleet import tasks
from nvllm.host import gates
from nvllm.image import digests
from nvllm.patches import proved, series
from nvllm.port import devrecord
from nvllm.serve import memoryseries
from nvllm.spec import projectfile
from nvllm.trials import answers

FORMS: tuple[Form[Any], ...] = (
    compiled.FORM,
    devrecord.FORM,
    digests.FORM,
    gates.FORM,
    journal.FORM,
    lock.FORM,
    manifest.FORM,
    memoryseries.FORM,
    output.FORM,
    projectfile.FORM,
    proved.FORM,
    answers.FORM_ANSWER,
    records.FORM_COMPARISON,
    records.FORM_KERNELS,
    records.FORM_LEG,
    records.FORM_RUN,
    rejected.FORM,
    series.FORM,
    spec.FORM,
    tasks.FORM_ANSWER,
    tasks.FORM_TASK,
)


def described(form: Form[Any]) -> Schema:
    """Return the JSON Schema of FORM with descriptions, and with those defaults that are one word or number."""
    schema = fields.json_schema(form)
    for name, cls in fields.classes(form).items():
        part = schema["$defs"].get(name, schema)
        if not (cls.__doc__ or "").startswith(f"{name}("):  # what a dataclass without a docstring has
            part["description"] = plain(cls.__doc__ or "")
        declared = {declaration.field.name: declaration for declaration in fields.declared(cls, form)}
        for declaration in declared.values():
            if isinstance(declaration.field.default, bool | int | float | str):
                part["properties"][declaration.name]["default"] = declaration.field.default
        for field, text in docstrings(cls):
            part["properties"][declared[field].name]["description"] = plain(text)
    return schema


def docstrings(cls: type) -> Iterator[tuple[str, str]]:
    """Yield each field of CLS that has a docstring below it, and that."""
    for base in cls.__mro__[:-1]:
        (definition,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(definition, ast.ClassDef)
        for before, after in zip(definition.body, definition.body[1:], strict=False):
            if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
                assert isinstance(before.target, ast.Name)
                yield before.target.id, ast.literal_eval(after.value)


def plain(text: str) -> str:
    """Return TEXT in one line, with code in single backquotes."""
    return " ".join(text.replace("``", "`").split())


def render(form: Form[Any]) -> str:
    return json.dumps(described(form), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for form in FORMS:
        Path(sys.argv[1], f"{form.name}.schema.json").write_text(render(form), encoding="utf-8")
