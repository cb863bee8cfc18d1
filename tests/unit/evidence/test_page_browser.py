"""The page of a run in a real browser: nothing is wider than a phone, no text is cut off. Skipped without Chromium."""

from __future__ import annotations

import html
import re
import shutil
from pathlib import Path

import pytest

from nvllm.core import proc
from nvllm.evidence import comparison, page
from nvllm.evidence.arms import Arm
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


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
@pytest.mark.parametrize("width", [390, 1000])
def test_no_page_is_wider_than_the_window_and_no_text_than_its_plot(tmp_path: Path, width: int) -> None:
    assert BROWSER is not None
    arms = [legs(arm, lambda on, run, question: (len(on) > 1, 9 + question % 3, 1.0 + run / 50)) for arm in ARMS]
    text = page.html(manifest(*ARMS), arms, comparison.compare(arms))
    place = tmp_path / "frame.html"
    place.write_text(FRAME.format(width=width, page=html.escape(text, quote=True)))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    done = proc.run([BROWSER, *options, place.as_uri()], env=proc.environment({}), timeout=120)
    found = re.search(r"<title>(\d+) (\d+) (\d+)</title>", done.stdout.decode())
    assert found is not None, done
    wide, texts, outside = map(int, found.groups())
    assert wide <= width
    assert texts > 20
    assert outside == 0
