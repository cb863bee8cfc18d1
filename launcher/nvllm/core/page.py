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
    from jinja2 import (  # here, because most commands need no page
        Environment,
        FileSystemLoader,
        PrefixLoader,
        StrictUndefined,
    )

    environment = Environment(
        loader=PrefixLoader(
            {"nvllm": FileSystemLoader(Path(__file__).parent), "page": FileSystemLoader(template.parent)}
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=lambda value: shown(value) if isinstance(value, str) else value,
    )
    return environment.get_template(f"page/{template.name}").render(**values)
