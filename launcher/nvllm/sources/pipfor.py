"""pip, made to answer for another Python and another machine than the ones it runs on. Run by path, with ``-P``.

    python -P pipfor.py ENVIRONMENT ARGUMENT...

pip takes the tags of a foreign wheel as options, but evaluates environment markers (``platform_machine ==
"aarch64"``) for the interpreter that runs it, and has no option for that. ENVIRONMENT is a JSON object of the names
in the dependency specifiers standard; it replaces what pip's own copy of `packaging` would ask the interpreter.
pip is a pinned dependency: its module is where it is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from pip._internal.cli.main import main as pip
from pip._vendor.packaging import markers


def run(environment: Mapping[str, str], arguments: Sequence[str]) -> int:
    """Run pip with ARGUMENTS for ENVIRONMENT and return its exit status. Ends at once if pip does not take that."""
    markers.default_environment = lambda: {**environment}  # type: ignore[typeddict-item]
    for name, value in environment.items():
        if value and not markers.Marker(f"{name} == {value!r}").evaluate():
            raise SystemExit(f"ERROR: this pip answers for its own {name}, and not for {value}")
    return pip(list(arguments))


if __name__ == "__main__":
    raise SystemExit(run(json.loads(sys.argv[1]), sys.argv[2:]))
