"""Web pages for other people: one file each, without external resources, light and dark, and readable on a phone.

The template of a page extends ``nvllm/page.html.jinja``, which lies beside this module, and fills its blocks.
"""

from __future__ import annotations

import re
from pathlib import Path

_PART = r"[^\s/'\"`:;,()<>\[\]{}|]+"
_LOCAL = re.compile(rf"(?:\bfile:/+|(?:(?<![\w./~…])|(?<=\s-[A-Za-z]))(?:~[\w.-]*)?/)(?:{_PART}/+)*({_PART})/*")
_PAINT = re.compile(r"[\x1b?]\[[0-9;]*[A-Za-z]")


def shown(text: str) -> str:
    """Return TEXT as others may see it: of each absolute path only the last part, and no control characters.

    Addresses (https://...) and relative paths stay.
    """
    plain = "".join(one if one.isprintable() or one == "\n" else "?" for one in _PAINT.sub("", text))
    return _LOCAL.sub(r"…/\1", plain)


def rendered(template: Path, **values: object) -> str:
    """Return the page that TEMPLATE makes of VALUES; every text in it is `shown`, and has no effect as HTML."""
    # Here, because most commands need no page.
    from jinja2 import Environment, FileSystemLoader, PrefixLoader, StrictUndefined
    from markupsafe import Markup

    def finalize(value: object) -> object:  # a Markup is what a macro made of texts that were shown before
        return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=PrefixLoader(
            {"nvllm": FileSystemLoader(Path(__file__).parent), "page": FileSystemLoader(template.parent)}
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=finalize,
    )
    return environment.get_template(f"page/{template.name}").render(**values)
