"""The person's web browser. Only this module starts one."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path


def show(page: Path, env: Mapping[str, str]) -> bool:
    """Show the file PAGE in a browser, and return whether one was started.

    Without a display in ENV none is: a browser for a terminal would take it away from nvllm's own output.
    """
    if sys.platform != "darwin" and not (env.get("DISPLAY") or env.get("WAYLAND_DISPLAY")):
        return False
    try:
        return webbrowser.open(page.absolute().as_uri())
    except webbrowser.Error:
        return False
