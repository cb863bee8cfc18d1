"""Run a program in varied surroundings, to find out whether its result depends on them.

``variation.py SETTINGS ARGUMENT...``: SETTINGS is JSON, ``{"program": "module:function", "cwd": path, "umask": number,
"clock": seconds to add, "processors": number, "user": id or null}``. The function is called with the arguments, and
what it returns is the exit status. Directories are listed in reverse order. Standard library only; it changes the
modules os and time before anything else is imported. The caller varies the environment variables.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class _Scanned:
    """The entries of a directory in reverse order, as `os.scandir` returns them."""

    def __init__(self, listing: Any) -> None:
        with listing:
            self._entries = iter(sorted(listing, key=lambda entry: os.fsencode(entry.name), reverse=True))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> "_Scanned":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def reverse_directories() -> None:
    """Make every listing of a directory in this process come in reverse order of the names."""
    listdir, scandir = os.listdir, os.scandir
    os.listdir = lambda path=".": sorted(listdir(path), reverse=True)  # type: ignore[assignment]
    os.scandir = lambda path=".": _Scanned(scandir(path))  # type: ignore[assignment]


def shift_clock(seconds: int) -> None:
    """Let the time of day in this process be SECONDS later."""
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + seconds
    time.time_ns = lambda: now_ns() + seconds * 10**9

    def of_now(name: str, arguments: int) -> None:
        original: Callable[..., Any] = vars(time)[name]

        def shifted(*given: Any) -> Any:
            if len(given) < arguments or given[-1] is None:
                moment = time.localtime(time.time()) if name in {"strftime", "asctime"} else time.time()
                given = (*given[: arguments - 1], moment)
            return original(*given)

        setattr(time, name, shifted)

    for name in ("gmtime", "localtime", "ctime"):
        of_now(name, 1)
    for name, arguments in (("asctime", 1), ("strftime", 2)):
        of_now(name, arguments)
    # Without its part in C, datetime asks the module time; zoneinfo's part in C needs that of datetime.
    vars(sys)["modules"].update({"_datetime": None, "_zoneinfo": None})


def pretend_processors(number: int) -> None:
    """Let Python count NUMBER processors."""
    for name in {"cpu_count", "process_cpu_count"} & vars(os).keys():
        setattr(os, name, lambda: number)


def become(user: int) -> None:
    """Give the process's rights up for those of USER, and of the group of that number."""
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def main(argv: Iterable[str]) -> int:
    settings, *arguments = argv
    asked = json.loads(settings)
    os.umask(asked["umask"])
    os.chdir(asked["cwd"])
    if asked["user"] is not None:
        become(asked["user"])
    pretend_processors(asked["processors"])
    reverse_directories()
    shift_clock(asked["clock"])
    module, _, function = asked["program"].partition(":")
    status: int = vars(importlib.import_module(module))[function](arguments)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
