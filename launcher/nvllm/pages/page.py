"""Web pages for other people: one file each, without external resources, light and dark, and readable on a phone.

The template of a page extends ``nvllm/page.html.jinja``, which lies beside this module, and fills its blocks.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

_PART = r"[^\s/'\"`:;,()<>\[\]{}|]+"
_LOCAL = re.compile(rf"(?:\bfile:/+|(?:(?<![\w./~…])|(?<=\s-[A-Za-z]))(?:~[\w.-]*)?/)(?:{_PART}/+)*({_PART})/*")
_PAINT = re.compile(r"[\x1b?]\[[0-9;]*[A-Za-z]")


def printable(text: str) -> str:
    """Return TEXT as others may see it: of each absolute path only the last part, and no control characters.

    Addresses (https://...) and relative paths stay.
    """
    plain = "".join(char if char.isprintable() or char == "\n" else "?" for char in _PAINT.sub("", text))
    return _LOCAL.sub(r"…/\1", plain)


def rendered(template: Path, **values: object) -> str:
    """Return the page that TEMPLATE makes of VALUES; every text in it is `shown`, and has no effect as HTML."""
    return _environment(template.parent).get_template(f"page/{template.name}").render(**values)


@cache
def _environment(directory: Path) -> Environment:
    """Return what compiles the templates of DIRECTORY, each of them once."""
    from jinja2 import Environment, FileSystemLoader, PrefixLoader, StrictUndefined  # here: most commands need no page
    from markupsafe import Markup

    def finalize(value: object) -> object:  # a Markup is what a macro made of texts that were shown before
        return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    return Environment(
        loader=PrefixLoader({"nvllm": FileSystemLoader(Path(__file__).parent), "page": FileSystemLoader(directory)}),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=finalize,
    )
