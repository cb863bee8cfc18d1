"""Plots of a page, as SVG inside HTML: they have no size of their own, no script, and the colours of the page.

matplotlib draws each twice: as wide as a phone in CSS pixels, and as wide as a page on a desktop. The page shows the
one that fits, so that texts are at least `_SIZE` pixels high on both. matplotlib is imported when something is drawn,
because most commands draw nothing. Its settings are its defaults and those below, whatever a file on this host says,
and no date is written: the same values give the same text.
"""

from __future__ import annotations

import io
import logging
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from xml.etree import ElementTree as ET

from nvllm.pages.page import printable

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

MOST = 100
"""The most rows, or curves, of a plot. One that leaves some out says so; the table beside it has them."""

_COLOURS = ("text", "soft", "c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8")
"""Variables of the page's style. While a plot is drawn, the colour #0000NN stands for the one at NN, black for text."""
_PHASES = ("c0", "c3", "c2", "c4", "c5", "c6", "c7", "c8")
_CURVES = ("c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7")
_DASHES = ("-", "--", ":", "-.")

_WIDTHS: Mapping[str, int] = MappingProxyType({"narrow": 352, "wide": 960})
"""The widths of a plot in CSS pixels, on a phone and on a desktop, by its class on the page."""
_SIZE, _LINE = 11, 15
"""The height of texts and of a line with a text, in CSS pixels."""
_CELLS = 50
"""How many columns of a terminal the longest name takes. The font has a fixed width, so they fit on a phone."""
_TITLE = "title:"

Point: TypeAlias = tuple[float, float]
Mark: TypeAlias = Literal["lowest", "highest"]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate, which stands AT a value, and its interval from LOW to HIGH, None without one.

    HEAD stands above the LABEL where a group of them begins. TITLE is shown when a pointer is on it.
    """

    label: str
    at: float
    low: float | None
    high: float | None
    title: str
    head: str = ""


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of what LABEL names, and its LEAST and MOST value, if they are known."""

    label: str
    p50: float
    p95: float
    p99: float
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """The start of an engine: its NAME, and name, seconds and end of each phase."""

    name: str
    phases: tuple[tuple[str, float, float], ...]


def phase_names(starts: Sequence[Start]) -> list[str]:
    """Return the names of all phases of STARTS, in their order."""
    return list(dict.fromkeys(name for start in starts for name, _, _ in start.phases))


def intervals(
    label: str, rows: Sequence[Interval], ticks: Sequence[tuple[float, str]], scale: Literal["linear", "log"]
) -> str:
    """Return a plot of ROWS on an axis of SCALE with TICKS: its lowest value, that of no effect, and its highest."""
    drawn = rows[:MOST]
    lines = 2 * len(drawn) + sum(bool(row.head) for row in drawn)

    def draw(axes: Axes) -> None:
        line = 0
        for row in drawn:
            if row.head:
                _name(axes, line, row.head, weight="bold")
                line += 1
            _name(axes, line, row.label)
            line += 2
            title = _title(row.title)
            axes.vlines(ticks[1][0], line - 1, line, _paint("soft"), "dashed", linewidth=1)
            if row.low is not None and row.high is not None:
                axes.hlines(line - 0.5, row.low, row.high, _paint("c0"), linewidth=2, gid=title)
            axes.plot(row.at, line - 0.5, "o", color=_paint("c0"), markersize=7, gid=title)
        axes.set_xscale(scale)
        axes.set_xlim(ticks[0][0], ticks[-1][0])
        axes.minorticks_off()
        axes.set_xticks([at for at, _ in ticks], [text for _, text in ticks])
        first, _, last = axes.get_xticklabels()
        first.set_horizontalalignment("left")
        last.set_horizontalalignment("right")
        _rows(axes, lines, len(drawn), len(rows))

    return svg(label, draw, lines + 3)


def spreads(label: str, rows: Sequence[Spread], unit: str) -> str:
    """Return a plot of ROWS, whose values have UNIT.

    A dot stands at the median, a thick line goes to p95, a cross stands at p99, and a thin line covers everything.
    """
    drawn = rows[:MOST]
    lines = 2 * len(drawn)

    def draw(axes: Axes) -> None:
        for line, row in zip(range(0, lines, 2), drawn, strict=True):
            _name(axes, line, row.label)
            middle, values = line + 1.5, {"p50": row.p50, "p95": row.p95, "p99": row.p99}
            title = _title(", ".join(f"{name} {value:.3f} {unit}" for name, value in values.items()))
            ends = [end for end in (row.least, *values.values(), row.most) if end is not None]
            axes.hlines(middle, min(ends), max(ends), _paint("soft"), linewidth=1)
            axes.hlines(middle, row.p50, row.p95, _paint("c0"), linewidth=3, gid=title)
            axes.plot(row.p50, middle, "o", color=_paint("c0"), markersize=7, gid=title)
            axes.plot(row.p99, middle, "x", color=_paint("c0"), markersize=6, gid=title)
        _from_zero(axes, unit)
        _rows(axes, lines, len(drawn), len(rows))

    return svg(label, draw, lines + 3)


def timelines(label: str, starts: Sequence[Start]) -> str:
    """Return a plot of STARTS, one below the other, with a key of the phases; empty if none took any time."""
    drawn, names = starts[:MOST], phase_names(starts)
    if not any(seconds for start in drawn for _, seconds, _ in start.phases):
        return ""
    lines = 2 * len(drawn)

    def draw(axes: Axes) -> None:
        bars = {}
        colours = dict(zip(names, cycle(_PHASES), strict=False))
        for line, start in zip(range(0, lines, 2), drawn, strict=True):
            _name(axes, line, start.name)
            for name, seconds, ended in start.phases:
                colour, title = _paint(colours[name]), _title(f"{name}: {seconds:.1f} s")
                (bar,) = axes.barh(line + 1.5, seconds, 0.8, ended - seconds, color=colour, linewidth=0, gid=title)
                bars[name] = bar
        _from_zero(axes, "s")
        _rows(axes, lines, len(drawn), len(starts))
        _key(axes, bars, columns=2)

    return svg(label, draw, lines + 3 + math.ceil(len(names) / 2))


def curves(label: str, rows: Sequence[tuple[str, Sequence[float]]], across: str, up: str, first: int = 0) -> str:
    """Return a plot of ROWS: names, and values from 0 to 1. UP says what they are.

    They are those of FIRST, FIRST + 1... of what is ACROSS.
    """
    drawn = rows[:MOST]

    def draw(axes: Axes) -> None:
        _curves(axes, [(name, [*enumerate(values, first)]) for name, values in drawn])
        axes.set_xlim(first, first + max([1, *(len(values) - 1 for _, values in drawn)]))
        axes.set_ylim(0, 1)
        axes.set_ylabel(up)
        axes.set_xlabel(across + _left_out(len(drawn), len(rows)))
        axes.locator_params("x", nbins=4, integer=True)

    return svg(label, draw, 18 + min(len(drawn), len(_CURVES)))


_POINTS = 240
"""Points of a course: more would not be seen."""


def courses(label: str, rows: Sequence[tuple[str, Sequence[Point]]], across: str, up: str, marked: Mark) -> str:
    """Return a plot of ROWS, names and points, over what is ACROSS; UP is the unit.

    A dot stands at the value of all that is MARKED. Of points that are close together the same kind is drawn.
    """
    pick, value = min if marked == "lowest" else max, itemgetter(1)
    drawn = []
    for name, points in rows[:MOST]:
        step = math.ceil(len(points) / _POINTS)
        drawn.append((name, [pick(points[at : at + step], key=value) for at in range(0, len(points), step)]))

    def draw(axes: Axes) -> None:
        _curves(axes, drawn)
        extreme, name = pick(((pick(points, key=value), name) for name, points in drawn), key=lambda row: row[0][1])
        title = _title(f"{name}: {extreme[1]:.2f} {up} after {extreme[0]:.0f} s")
        axes.plot(*extreme, "o", color=_paint("text"), markersize=5, gid=title, zorder=2 + 2 * MOST)
        axes.set_ylim(0, 1.05 * max(axes.dataLim.y1, 0) or 1)
        axes.set_xlim(0, max(axes.dataLim.x1, 0) or 1)
        axes.set_ylabel(up)
        axes.set_xlabel(across + _left_out(len(drawn), len(rows)))
        axes.locator_params("x", nbins=4)

    return svg(label, draw, 18 + min(len(drawn), len(_CURVES)))


def _curves(axes: Axes, drawn: Sequence[tuple[str, Sequence[Point]]]) -> None:
    """Draw what is DRAWN, names and points, on AXES. The first have colours and a key, the others are grey."""
    lines = {}
    styles = zip([*_CURVES, *["c8"] * MOST], cycle(_DASHES), strict=False)
    for number, ((name, points), (colour, dashes)) in enumerate(zip(drawn, styles, strict=False)):
        across, up = [x for x, _ in points], [y for _, y in points]
        (lines[name],) = axes.plot(across, up, dashes, color=_paint(colour), zorder=2 + MOST - number, gid=_title(name))
    axes.grid(axis="y")
    _key(axes, dict([*lines.items()][: len(_CURVES)]), columns=1)


def _rows(axes: Axes, lines: int, drawn: int, of: int) -> None:
    """Turn AXES into LINES for rows from top to bottom, of which so many are DRAWN."""
    axes.set_ylim(max(lines, 1), 0)
    axes.yaxis.set_visible(False)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(_left_out(drawn, of))


def _left_out(drawn: int, of: int) -> str:
    return f" (the first {drawn} of {of} are drawn)" if drawn < of else ""


def _from_zero(axes: Axes, unit: str) -> None:
    """Let the values of AXES, none of which is negative, begin at 0, with ticks in UNIT."""
    axes.set_xlim(0, max(axes.dataLim.x1, 0) or 1)
    axes.locator_params("x", nbins=4)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} {unit}")


def _name(axes: Axes, line: int, text: str, weight: str = "normal") -> None:
    """Write TEXT on LINE of AXES, from the edge of the plot on."""
    axes.annotate(
        _cropped(text), (0.005, line + 0.5), xycoords=("figure fraction", "data"), va="center", weight=weight
    ).set_in_layout(False)


def _key(axes: Axes, drawn: Mapping[str, Artist], columns: int) -> None:
    """Write the names of what is DRAWN below AXES."""
    figure = axes.get_figure()
    assert figure is not None
    names = [_cropped(name, _CELLS // columns) for name in drawn]
    figure.legend(drawn.values(), names, loc="outside lower left", ncols=columns)


def _cropped(text: str, cells: int = _CELLS) -> str:
    """Return TEXT as others may see it in one line, without its middle if it needs more than CELLS columns."""
    from rich.cells import cell_len, set_cell_size

    line = " ".join(printable(text).split())
    if cell_len(line) <= cells:
        return line
    tail = set_cell_size(line[::-1], cells // 3)[::-1]
    return f"{set_cell_size(line, cells - cells // 3 - 1).rstrip()}…{tail.lstrip()}"


def _title(text: str) -> str:
    """Return the id of what shows TEXT when a pointer is on it; `_inlined` makes a title of it."""
    return f"{_TITLE}{' '.join(printable(text).split())}"


def _paint(colour: str) -> str:
    """Return the colour that stands for a variable of the page's style."""
    return f"#0000{_COLOURS.index(colour):02x}"


def svg(label: str, draw: Callable[[Axes], None], lines: float) -> str:
    """Return what DRAW draws, with room for LINES of text, as SVG for a page on which no other plot has this LABEL."""
    return f'<div class="plots">{"".join(_drawn(label, draw, lines, name) for name in _WIDTHS)}</div>'


def _drawn(label: str, draw: Callable[[Axes], None], lines: float, name: str) -> str:
    """Return what DRAW draws in the width NAME, as `svg` does."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns where HOME cannot be written
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": f"{label} {name}",  # ids, which are hashes, are the same in every run, and others in every plot
        "text.parse_math": False,  # $ is a character of a name
        "font.family": "DejaVu Sans Mono",  # comes with matplotlib; only its widths matter
        "font.size": _SIZE,
        **dict.fromkeys(("axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize"), _SIZE),
        **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), _paint("soft")),
        **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), _paint("text")),
        **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
        **dict.fromkeys(("legend.handlelength", "legend.columnspacing"), 1.5),
        "legend.labelspacing": 0.2,
        "grid.linewidth": 0.3,
        "figure.constrained_layout.use": True,
    }
    written = io.BytesIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings)
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the browser has another font
        # In inches, of which each becomes 72 units of the SVG.
        figure = Figure(figsize=(_WIDTHS[name] / 72, _LINE * lines / 72))
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        draw(axes)
        # `Figure.savefig` writes the same bytes, but draws everything twice: once only to measure it.
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        FigureCanvasSVG(figure).print_svg(written, metadata=metadata)  # type: ignore[no-untyped-call]  # no types
    return _inlined(written.getvalue(), label, name)


def _inlined(data: bytes, label: str, width: str) -> str:
    """Return the SVG in DATA as an element of a page: without size, font, style sheet and clips, in the page's colours.

    LABEL says what it shows to those who do not see it, and WIDTH is its class. What `_title` made becomes a title.
    """
    root = ET.fromstring(data)  # noqa: S314  (matplotlib has just written it)
    used = {*re.findall(r'href="#(\w+)', data.decode())}
    for element in [*root.iter()]:
        element.tag = element.tag.rpartition("}")[2]
        attributes = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
        name = attributes.pop("id", "")
        attributes.pop("clip-path", None)
        element.attrib.clear()
        element.attrib.update({key: text for key, value in attributes.items() if (text := _attribute(key, value))})
        element.tail = None
        if element.tag != "text":
            element.text = None
        if name in used:
            element.set("id", name)
        if name.startswith(_TITLE):
            title = ET.Element("title")
            title.text = name.removeprefix(_TITLE)
            element.insert(0, title)
    for defs in root.findall("defs"):
        root.remove(defs)
    root.attrib = {"class": f"plot {width}", "viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label}
    return ET.tostring(root, "unicode")


def _attribute(name: str, value: str) -> str:
    """Return VALUE of an attribute as a page needs it."""
    if name == "style":
        value = re.sub(r"font-family: [^;]*(; )?", "", value)
        return re.sub("#0000([0-9a-f]{2})", lambda match: f"var(--{_COLOURS[int(match[1], 16)]})", value)
    if name == "transform":
        value = re.sub(r"rotate\(-0 [^)]*\) ?", "", value)
    short = re.sub(r"-?\d+\.\d+", lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), value)
    return " ".join(short.split())
