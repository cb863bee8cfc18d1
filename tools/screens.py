"""Records terminal sessions as docs/screens/*.svg: ``python tools/screens.py [--engine] [NAME]...``, or `make screens`.

Each session runs real commands on a copy of this project, in a terminal of its own, and rich draws the output. HOME is
a directory made for the recording, shown as ``~``. No engine answers: the simulated bench of the tests builds and tries
what a bisect asks for. --engine also records the sessions that need a container engine, with the engine of DOCKER_HOST
and the caller's cache of what is addressed by its bytes; without it their pictures stay as they are. NAMEs choose
sessions. A picture is dark, or light where the reader's browser is.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
SCREENS = ROOT / "docs/screens"
PROJECT = ("images", "manifests", "patches")

# rich names a font of a content network; a picture that is offline has the reader's own. rich also cuts the
# last line off at the height where some fonts have their underscore.
FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
    <style>
    .{unique_id}-matrix {{
        font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
        font-size: {char_height}px;
        line-height: {line_height}px;
        font-variant-east-asian: full-width;
    }}
    .{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
    {styles}
    </style>
    <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="100%" />
    </clipPath>
    {lines}
    </defs>
    {chrome}
    <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix" xml:space="preserve">
    {matrix}
    </g>
    </g>
</svg>
"""


@dataclass(frozen=True, slots=True)
class Session:
    """The lines that are typed one after the other on a terminal of WIDTH columns, and the file's name."""

    name: str
    title: str
    lines: tuple[str, ...]
    width: int = 100
    after: tuple[str, ...] = ()
    """What is run afterwards and not shown."""


SESSIONS = (
    Session("help", "nvllm --help", ("nvllm --help",)),
    Session("doctor", "nvllm doctor, where no engine runs", ("nvllm doctor",)),
    Session("lock", "nvllm lock --check", ("nvllm lock cpu --check --offline",)),
    Session("patches", "nvllm patch list", ("nvllm patch list --series v0.32.0",), 150),
    Session(
        "refusal",
        "A patch file was changed",
        ("echo >>patches/v0.32.0/0001-aot-load-guard.patch", "nvllm build cpu --dry-run"),
    ),
    Session(
        "bisect",
        "nvllm bisect, trials simulated",
        (
            "nvllm bisect start cpu --bad spec --good none --set --test ./probe.sh",
            "nvllm bisect run --quiet >report.txt",
            "nvllm bisect status",
        ),
        136,
    ),
)
WITH_ENGINE = (
    Session("build", "nvllm build", ("nvllm build cpu --patches none", "nvllm build cpu")),
    Session(
        "serve",
        "nvllm serve",
        (
            "nvllm model make cpu tiny-lfm2",
            "nvllm serve cpu --profile tiny-eager --detach",
            "nvllm status",
            "nvllm stop nvllm-cpu-tiny-eager",
        ),
        110,
    ),
    Session(
        "bless",
        "nvllm bless",
        (
            "nvllm serve cpu --profile tiny-blessed",
            "nvllm bless cpu --profile tiny-blessed --quiet",
            "nvllm manifest show cpu-tiny-blessed",
            "nvllm serve cpu --profile tiny-blessed --detach --quiet",
            "nvllm stop nvllm-cpu-tiny-blessed --quiet",
        ),
        136,
    ),
    Session(
        "story",
        "one bit of a blessed cache is flipped",
        (
            "nvllm build cpu",
            "nvllm bless cpu --profile tiny-blessed --quiet",
            "nvllm serve cpu --profile tiny-blessed --detach --quiet",
            "nvllm stop nvllm-cpu-tiny-blessed --quiet",
            "flip-a-bit",
            "nvllm serve cpu --profile tiny-blessed --detach --quiet",
        ),
        110,
        ("flip-a-bit",),
    ),
)

_SIMULATED = """\
import sys
from nvllm.trials import bench
from nvllm.cli.main import main
from nvllm.engine import engine
from support.bisect_world import SimulatedBench, all_of
if sys.argv[1:2] == ["bisect"]:
    engine.require = lambda: None
    bench.EngineBench = lambda *_: SimulatedBench(all_of(frozenset({"mamba-block-ids", "eager-logprobs"})))
sys.exit(main())
"""
"""nvllm, with a bench that finds every set bad which holds these two patches."""

_FLIP = f"""\
#!/bin/sh -e
path=$({shlex.quote(sys.executable)} {ROOT}/tools/flip.py --find tiny-blessed nvllm 2>/dev/null || cat flipped)
{shlex.quote(sys.executable)} {ROOT}/tools/flip.py "$path"
echo "$path" | tee flipped
"""
"""A second call is refused the path, because the cache is not the blessed one then; the first has kept it."""

LIGHT = {
    DIMMED_MONOKAI.background_color.hex: "#ffffff",
    DIMMED_MONOKAI.foreground_color.hex: "#24292f",
    DIMMED_MONOKAI.ansi_colors[1].hex: "#b31d28",
    DIMMED_MONOKAI.ansi_colors[2].hex: "#4d6a00",
    DIMMED_MONOKAI.ansi_colors[3].hex: "#7a5d00",
    DIMMED_MONOKAI.ansi_colors[4].hex: "#0550ae",
    DIMMED_MONOKAI.ansi_colors[5].hex: "#6e3a76",
    DIMMED_MONOKAI.ansi_colors[6].hex: "#1b5f75",
}
"""The colours of the dark picture that are others where the reader's browser is light."""


def both(svg: str) -> str:
    """Return SVG, which is dark, with rules that make it light where the reader's browser is. Raises ValueError if a
    colour of its text has no light one."""
    classes = re.findall(r"(\.[\w-]+-r\d+) \{ fill: (#\w+)", svg)
    if missing := {colour for _, colour in classes} - LIGHT.keys():
        raise ValueError(f"LIGHT has no colour for {', '.join(sorted(missing))}")
    rules = [f"{name} {{ fill: {LIGHT[colour]} }}" for name, colour in classes]
    rules += [f'[fill="{dark}"] {{ fill: {light} }}' for dark, light in LIGHT.items() if f'fill="{dark}"' in svg]
    rules.append('[stroke="rgba(255,255,255,0.35)"] { stroke: #d0d7de }')
    light = "".join(f"    {rule}\n" for rule in rules)
    begins, ends = "    @media (prefers-color-scheme: light) {\n", "    }\n    </style>\n"
    return svg.replace("    </style>\n", f"{begins}{light}{ends}", 1)


def typed(line: str, width: int, directory: Path, environment: dict[str, str]) -> str:
    """Return what LINE writes to a terminal of WIDTH columns. Raises RuntimeError if the shell does not know it."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    with subprocess.Popen(
        ["bash", "-c", line], cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer
    ) as child:
        os.close(writer)
        output = b""
        while True:
            try:
                data = os.read(reader, 65536)
            except OSError:  # Linux says so when nobody holds the other end any more
                break
            output += data
    os.close(reader)
    if child.returncode in (126, 127):
        raise RuntimeError(f"{line}: {output.decode()}")
    return re.sub(r"\x1b\[\?\d+[hl]", "", output.decode().replace("\r\n", "\n"))


def picture(session: Session, directory: Path, environment: dict[str, str], hidden: dict[str, str]) -> str:
    """Return the SVG of SESSION in DIRECTORY, with each text of HIDDEN replaced."""
    parts = [f"\x1b[1m$ {line}\x1b[0m\n{typed(line, session.width, directory, environment)}" for line in session.lines]
    text = "".join(parts).rstrip("\n")
    for secret, replacement in hidden.items():
        text = text.replace(secret, replacement)
    console = Console(record=True, width=session.width, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    for line in Text.from_ansi(text).split("\n"):
        line.rstrip()
        for row in line.divide(range(session.width, len(line), session.width)):  # as a terminal breaks a line
            console.print(row, no_wrap=True, crop=False)
    drawn = console.export_svg(
        title=session.title, theme=DIMMED_MONOKAI, code_format=FORMAT, unique_id=f"nvllm-{session.name}"
    )
    for line in session.after:
        typed(line, session.width, directory, environment)
    return both("".join(f"{line.rstrip()}\n" for line in drawn.splitlines()))


def laid(top: Path) -> tuple[Path, Path]:
    """Make a fresh copy of the project and a directory of programs in TOP, and return both."""
    project, programs = top / "project", top / "bin"
    shutil.rmtree(project, ignore_errors=True)
    programs.mkdir(parents=True, exist_ok=True)
    for name in PROJECT:
        shutil.copytree(ROOT / name, project / name)
    probe = project / "probe.sh"
    probe.write_text("#!/bin/sh\nexit 0\n")
    nvllm = programs / "nvllm"
    nvllm.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(top))}/simulated.py "$@"\n')
    (top / "simulated.py").write_text(_SIMULATED)
    flip = programs / "flip-a-bit"
    flip.write_text(_FLIP)
    for program in (probe, nvllm, flip):
        program.chmod(0o755)
    return project, programs


def record(sessions: Sequence[Session], into: Path, *, real: bool) -> None:
    """Write the picture of each of SESSIONS to INTO. REAL ones have the caller's engine, and take minutes."""
    with tempfile.TemporaryDirectory() as made:
        top = Path(made).resolve()
        hidden = {str(top): "~", str(Path.home()): "~"}
        for session in sessions:
            project, programs = laid(top)
            environment = {
                "TERM": "xterm-256color",
                "LANG": "C.UTF-8",
                "HOME": str(top),
                "DOCKER_HOST": "unix:///nonexistent/docker.sock",
                "PATH": f"{programs}:{os.environ['PATH']}",
                "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("launcher", "tests")),
            }
            if real:
                environment |= {
                    "DOCKER_HOST": os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"),
                    "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
                    # Bars that are redrawn leave nothing to see; a dumb terminal gets progress as lines.
                    "TERM": "dumb",
                    "FORCE_COLOR": "1",
                    "COLUMNS": str(session.width),
                    "LINES": "50",
                }
            svg = picture(session, project, environment, hidden)
            (into / f"{session.name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    SCREENS.mkdir(exist_ok=True)
    named = [word for word in sys.argv[1:] if word != "--engine"]
    record([session for session in SESSIONS if session.name in named or not named], SCREENS, real=False)
    if "--engine" in sys.argv[1:]:
        record([session for session in WITH_ENGINE if session.name in named or not named], SCREENS, real=True)
    else:
        sys.stdout.write("without --engine the sessions of build, serve, bless and the story are not recorded\n")
