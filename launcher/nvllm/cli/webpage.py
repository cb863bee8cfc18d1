"""Web pages that commands write: the options, and where a page goes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from nvllm.cli.frame import PATH
from nvllm.core import durable
from nvllm.pages import browser


@dataclass(frozen=True, slots=True)
class WebPage:
    """What is asked for as a page: the file that --html names, and whether it is OPENED."""

    html: Path | None
    opened: bool

    def written(self, usual: Path, page: Callable[[], str]) -> str:
        """Write PAGE, to the USUAL file if none is named, and return what there is to say of it.

        Returns an empty text if no page is asked for. Raises Refused NV920 if it cannot be written.
        """
        if self.html is None and not self.opened:
            return ""
        target = self.html or usual
        text = page()
        with durable.writing(target.absolute(), "NV920"):
            if self.html is None:
                usual.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        if not self.opened or browser.show(target, os.environ):
            return f"wrote {target}"
        return f"wrote {target}; no browser can be started here: open it in one"


OPTIONS = (
    click.option("--html", type=PATH, metavar="FILE", help="Write the report as one web page, to send to others."),
    click.option("--open", "opened", is_flag=True, help="Show that page in a web browser, or say where it is."),
)
