"""Documents of YAML and units of systemd, as text. They know nothing of what is exported."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """YAML in the order that it is given, texts of several lines as they are."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def yaml_documents(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return DOCUMENTS as one YAML stream; equal documents give equal bytes."""
    # No line is folded, so that a value can be searched for and copied.
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=1000)


def unit(sections: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """Return a unit of systemd with SECTIONS: the settings of each, in order."""
    return "\n".join(
        "".join([f"[{name}]\n", *(f"{key}={text}\n" for key, text in settings)]) for name, settings in sections.items()
    )


_PLAIN = re.compile(r"[A-Za-z0-9_./:=@,+$%-]+")


def command_word(text: str) -> str:
    """Return TEXT as one word of a command in a unit; systemd replaces no variable in it."""
    return unit_word(text.replace("$", "$$"))


def unit_word(text: str) -> str:
    """Return TEXT as one word of a unit, quoted where it must be; systemd replaces no specifier in it."""
    literal = text.replace("%", "%%")
    if _PLAIN.fullmatch(literal):
        return literal
    escaped = literal.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
