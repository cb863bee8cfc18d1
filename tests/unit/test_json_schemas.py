"""docs/schemas: what tools/schemas.py writes, of every kind of document that nvllm reads or prints."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "docs/schemas"


def tool() -> Any:
    """Return tools/schemas.py as a module."""
    spec = importlib.util.spec_from_file_location("tools_schemas", ROOT / "tools/schemas.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = tool()


@pytest.mark.parametrize("form", TOOL.FORMS, ids=lambda form: form.name)
def test_the_committed_schema_is_the_generated_one(form: Any) -> None:
    text = (DIRECTORY / f"{form.name}.schema.json").read_text(encoding="utf-8")
    assert text == TOOL.render(form), "run `make docs`"
    Draft202012Validator.check_schema(json.loads(text))


def test_every_form_has_a_schema_and_every_schema_a_form() -> None:
    assert {path.name for path in DIRECTORY.iterdir()} == {f"{form.name}.schema.json" for form in TOOL.FORMS}
    declared = [
        found
        for path in (ROOT / "launcher/nvllm").rglob("*.py")
        for found in re.findall(r"^FORM.* = Form\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(declared) == len(TOOL.FORMS)


def test_every_field_of_a_spec_with_a_docstring_is_described() -> None:
    schema = json.loads((DIRECTORY / "image.schema.json").read_text(encoding="utf-8"))
    assert schema["properties"]["epoch"]["description"] == "Every file time in the image, in seconds since 1970."
    assert schema["$defs"]["Waiver"]["description"].startswith("A named exception")
