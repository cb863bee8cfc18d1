"""The temperature sensors of the host that the kernel shows, in /sys/class/hwmon and /sys/class/thermal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nvllm.core import reading

_MOST = 4096
"""Bytes: the kernel answers each file of sysfs with one page at most."""


def temperatures(sys_root: Path = Path("/sys")) -> dict[str, float]:
    """Return degrees Celsius by the name of each sensor that can be read; empty where there is none."""
    return dict(_all(sys_root / "class"))


def _all(classes: Path) -> Iterator[tuple[str, float]]:
    for zone in sorted(classes.glob("thermal/thermal_zone*")):
        degrees = _degrees(zone / "temp")
        if degrees is not None:
            yield f"{_text(zone / 'type') or 'thermal'} ({zone.name})", degrees
    for value in sorted(classes.glob("hwmon/hwmon*/temp*_input")):
        degrees, stem = _degrees(value), value.name.removesuffix("_input")
        if degrees is not None:
            label = _text(value.with_name(f"{stem}_label")) or stem
            yield f"{_text(value.with_name('name')) or 'hwmon'} {label} ({value.parent.name})", degrees


def _degrees(path: Path) -> float | None:
    """Return what PATH says in thousandths of a degree; None for a sensor that is off, or says what cannot be."""
    try:
        degrees = int(_text(path)) / 1000
    except ValueError:
        return None
    return degrees if -50 < degrees < 250 else None


def _text(path: Path) -> str:
    try:
        return reading.content(path, _MOST).decode("utf-8", "replace").strip()
    except OSError:
        return ""
