"""Pages in a real browser, light and dark: nothing is wider than a phone, every text of a plot is within it, is large
enough and has a colour of the page. Skipped without Chromium."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.bisect import page as bisect_page
from nvllm.bisect.answer import Done
from nvllm.bisect.driver import drive
from nvllm.bisect.journal import Log
from nvllm.bless import page as bless_page
from nvllm.cache.manifest import PhaseTime
from nvllm.core import proc
from nvllm.evidence import comparison, conclusion, page
from nvllm.evidence.arms import Arm
from nvllm.evidence.load import METRICS, PERCENTILES, PRIMARY, figure
from nvllm.evidence.records import ArmState
from support.bisect_world import SimulatedBench, all_of, free, start
from support.blessings_world import TREE, bless
from support.evidence_samples import benched, legs, manifest

pytestmark = pytest.mark.drawn

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
ARMS: tuple[Arm, ...] = (
    (),
    ("a-patch-with-a-long-name",),
    ("another-patch",),
    ("a-patch-with-a-long-name", "another-patch"),
)
HOSTILE = ("<script>x</script>", "$\\frac{1}{0}$ & _under_", "_" + 40 * "long-", "名前" * 20, "اسم", "\x1b[31m\n")
FRAMES = """<!DOCTYPE html><meta charset="utf-8"/><title>unknown</title>
<iframe width="390" height="900" style="color-scheme: light" srcdoc="{page}"></iframe>
<iframe width="1400" height="900" style="color-scheme: dark" srcdoc="{page}"></iframe>
<script>
const look = frame => {{
  const seen = frame.contentDocument, style = one => seen.defaultView.getComputedStyle(one);
  const texts = [...seen.querySelectorAll("svg.plot text")].filter(one => one.getClientRects().length);
  const ids = [...seen.querySelectorAll("[id]")].map(one => one.id);
  const scale = plot => plot.getBoundingClientRect().width / plot.viewBox.baseVal.width;
  return {{
    page: style(seen.body).backgroundColor,
    wider: seen.documentElement.scrollWidth > frame.clientWidth,
    texts: texts.length,
    widest: Math.max(...[...seen.querySelectorAll("svg.plot")].map(one => one.getBoundingClientRect().width)),
    outside: texts.filter(one => {{
      const box = one.getBoundingClientRect(), plot = one.ownerSVGElement.getBoundingClientRect();
      return box.left < plot.left - 1 || box.right > plot.right + 1 || box.bottom > plot.bottom + 1;
    }}).map(one => one.textContent),
    least: Math.min(...texts.map(one => parseFloat(style(one).fontSize) * scale(one.ownerSVGElement))),
    strange: texts.filter(one => style(one).fill != style(seen.body).color).length,
    unpainted: [...seen.querySelectorAll("svg.plot [style]")].filter(one =>
      [style(one).fill, style(one).stroke].some(paint => /^rgb\\(0, 0, \\d+\\)$/.test(paint))).length,
    twice: ids.length - new Set(ids).size,
    scripts: seen.scripts.length,
  }};
}};
onload = () => document.title = JSON.stringify([...document.querySelectorAll("iframe")].map(look));
</script>"""


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


def bench() -> str:
    named = [figure(share, metric) for metric in METRICS for share in PERCENTILES]
    runs = [{one: (place + 1) * (1 + run / 50) for place, one in enumerate(named)} for run in range(5)]
    found = [benched(name, [{**one, "output tokens/s": 100.0} for one in runs]) for name in ("eager", "piecewise")]
    wanted = replace(manifest((), runs=5), kind="bench")
    return page.html(wanted, found, conclusion.of(wanted, found))


def hostile() -> str:
    """Return the page of arms whose names no plot expects."""
    named = [(f"{number}{text}",) for number, text in enumerate(HOSTILE)]
    arms = [legs(arm, lambda _on, run, question: (question % 2 == 0, 9, 1.0 + run / 50)) for arm in [(), *named]]
    return page.html(manifest((), *named), arms, comparison.compare(arms))


def bisection() -> str:
    log = Log.of(start(free(12), "set"))
    done = drive(log, SimulatedBench(all_of(frozenset({"p03", "p06"}))))
    assert isinstance(done, Done)
    return bisect_page.html(log.entries, done)


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
@pytest.mark.parametrize("drawn", [ablation, sweep, bench, hostile, blessing, bisection])
def test_a_page_fits_a_phone_and_a_screen_and_its_plots_can_be_read(drawn: Callable[[], str], tmp_path: Path) -> None:
    assert BROWSER is not None
    place = tmp_path / "frames.html"
    place.write_text(FRAMES.format(page=html.escape(drawn(), quote=True)), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    done = proc.run([BROWSER, *options, place.as_uri()], env=proc.environment({}), timeout=120)
    said = re.search(r"<title>(\[.*?\])</title>", done.stdout.decode())
    assert said is not None, done
    light, dark = json.loads(html.unescape(said[1]))
    assert light.pop("widest") < 390
    assert dark.pop("widest") > 900
    for found in (light, dark):
        assert found.pop("texts") > 10
        assert found.pop("least") >= 10
    fine = {"wider": False, "outside": [], "strange": 0, "unpainted": 0, "twice": 0, "scripts": 0}
    assert light == {"page": "rgb(255, 255, 255)", **fine}
    assert dark == {"page": "rgb(20, 23, 27)", **fine}
