"""docs/campaigns.md: each of its campaigns of evidence on an engine that is made up, and the form of what comes out.

`tests/e2e/test_campaigns.py` runs the same on the real one. That the parser takes each command, and that its names are
there, is what `tests/unit/test_docs_commands.py` looks at in every page.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from nvllm.core import workload
from support import campaign_page
from support.campaign_world import Campaign, campaign
from support.plansamples import FrontEnd, edit


@pytest.fixture
def made(
    tmp_path: Path, front: FrontEnd, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Campaign:
    monkeypatch.setattr(workload, "SETTINGS", workload.SETTINGS[:1])
    made = campaign(tmp_path, front, monkeypatch, capsys)
    edit(made.project.spec("demo"), "enforce-eager: true", "max-num-seqs: 2")  # it compiles
    front.longest = 128
    return made


@pytest.mark.thorough
def test_each_campaign_ends_with_what_the_page_promises(made: Campaign, tmp_path: Path) -> None:
    profiles: defaultdict[str, str] = defaultdict(lambda: "eager")
    wrong: dict[str, list[str]] = {}
    for words in campaign_page.lines():
        if words[0] in {"gate", "bless"}:  # they have worlds of their own
            continue
        assert ("gsm8k" in words) == ("--length" in words), (
            words
        )  # the tiny model's context is shorter than the default
        line = campaign_page.fewer(words, "demo", profiles, "a", tmp_path)
        status, document = made.nvllm(line)
        assert status == 0, document
        name = campaign_page.named(words)
        wrong[name] = campaign_page.misshapen(name, document["result"])
    assert wrong == {name: [] for name in campaign_page.PROMISED}
