"""Pages in a real browser: nothing is wider than a phone, no text is cut off. Skipped without Chromium."""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.bless import page as bless_page
from nvllm.cache.manifest import PhaseTime
from nvllm.core import proc
from nvllm.evidence import comparison, conclusion, page
from nvllm.evidence.arms import Arm
from nvllm.evidence.load import PRIMARY
from nvllm.evidence.records import ArmState
from support.blessings_world import TREE, bless
from support.evidence_samples import legs, manifest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
ARMS: tuple[Arm, ...] = (
    (),
    ("a-patch-with-a-long-name",),
    ("another-patch",),
    ("a-patch-with-a-long-name", "another-patch"),
)
FRAME = """<!DOCTYPE html><title>unknown</title><iframe id="page" width="{width}" height="900" srcdoc="{page}"></iframe>
<script>onload = () => {{
  const seen = document.getElementById("page").contentDocument;
  const texts = [...seen.querySelectorAll("svg.plot text")];
  const outside = texts.filter(one => {{
    const box = one.getBoundingClientRect(), plot = one.ownerSVGElement.getBoundingClientRect();
    return box.left < plot.left - 1 || box.right > plot.right + 1;
  }});
  document.title = [seen.documentElement.scrollWidth, texts.length, outside.length].join(" ");
}}</script>"""


def ablation() -> str:
    arms = [legs(arm, lambda on, run, question: (len(on) > 1, 9 + question % 3, 1.0 + run / 50)) for arm in ARMS]
    return page.html(manifest(*ARMS), arms, comparison.compare(arms))


def sweep() -> str:
    """Return the page of a sweep over profiles with long names."""
    names = ("piecewise-with-fp8-cache", "all-beta", "piecewise-with-fp8-cache-2")
    arms = []
    for place, name in enumerate(names):
        arm = legs((name,), lambda _on, run, question: (True, 9 + question % 3, 1.0 + run / 50), questions=40)
        figures = dict.fromkeys(PRIMARY, 100.0 + 7 * (place == 1))
        noisy = [{one: value + verdict.run / 9 for one, value in figures.items()} for verdict, _ in arm.legs]
        found = tuple((replace(leg[0], figures=one), leg[1]) for leg, one in zip(arm.legs, noisy, strict=True))
        arms.append(replace(arm, on=(), legs=found))
    states = tuple(ArmState(name, name.removesuffix("-2"), (), ()) for name in names)
    wanted = replace(manifest(()), kind="sweep", arms=states, ablated=())
    return page.html(wanted, arms, conclusion.of(wanted, arms))


def blessing() -> str:
    phases = tuple(PhaseTime(name, 4.5) for name in ("gate", "import", "weights", "warm-up", "server", "first token"))
    made = bless(TREE, trials=29)
    return bless_page.html(replace(made, trials=tuple(replace(one, phases=phases) for one in made.trials)), "in force")


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
@pytest.mark.parametrize("width", [390, 1000])
@pytest.mark.parametrize("drawn", [ablation, sweep, blessing])
def test_no_page_is_wider_than_the_window_and_no_text_than_its_plot(
    drawn: Callable[[], str], tmp_path: Path, width: int
) -> None:
    assert BROWSER is not None
    place = tmp_path / "frame.html"
    place.write_text(FRAME.format(width=width, page=html.escape(drawn(), quote=True)))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    done = proc.run([BROWSER, *options, place.as_uri()], env=proc.environment({}), timeout=120)
    found = re.search(r"<title>(\d+) (\d+) (\d+)</title>", done.stdout.decode())
    assert found is not None, done
    wide, texts, outside = map(int, found.groups())
    assert wide <= width
    assert texts > 20
    assert outside == 0
