"""NV856: a floor or a margin is a bare number, of which nobody knows whether it counts answers or hundredths."""

from __future__ import annotations

import json

import pytest

from nvllm.cli.main import main
from support.engine_world import ROOT


@pytest.mark.parametrize(("option", "value"), [("--floor", "45"), ("--floor", "51/50"), ("--margin", "0.03")])
def test_a_bare_number_is_refused_with_both_spellings(
    capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    words = ["sweep", "cpu", "--profiles", "tiny-eager", "--probe", "gsm8k", option, value, "--dry-run"]
    assert main(["--project", str(ROOT), "--json", *words]) == 2
    (refusal,) = json.loads(capsys.readouterr().out)["refusals"]
    assert (refusal["code"], refusal["where"]) == ("NV856", option)
    assert refusal["found"].startswith(f"{value}, which is ")
    counted, percent = ("45/50", "90%") if option == "--floor" else ("3/100", "3%")
    assert refusal["cure"] == f"{option} {counted}, or {option} {percent}"
