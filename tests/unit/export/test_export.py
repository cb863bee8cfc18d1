"""What every export has in common: what is refused, what the container reads, and words that no platform replaces."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.refusal import Refusal
from nvllm.core.spec import RestartRules
from nvllm.export import compose, export, kubernetes, mounted, quadlet, systemd, texts
from nvllm.serve import planner
from support import export_world
from support.export_world import BLESSED, TREE, UNBLESSED
from support.plansamples import MODEL
from support.rows import each_row

SERVICE = systemd.Service(("/usr/bin/nvllm",), {}, "operator")
KEPT = {
    "kubernetes": kubernetes.guarantees(BLESSED, (1, 36)),
    "quadlet": quadlet.guarantees(BLESSED),
    "compose": compose.guarantees(BLESSED),
    "systemd": systemd.guarantees(),
}


@each_row("platform", KEPT)
def test_a_platform_says_of_every_guarantee_whether_it_is_held(platform: str) -> None:
    assert list(KEPT[platform]) == list(export.GUARANTEES)


def test_what_is_not_held_stands_in_every_file() -> None:
    written = {
        "kubernetes": kubernetes.exported(BLESSED, (1, 36)),
        "quadlet": quadlet.exported(BLESSED),
        "compose": compose.exported(BLESSED),
        "systemd": systemd.exported(BLESSED, SERVICE),
    }
    for platform, made in written.items():
        text = made.files[0].data.decode()
        for name, one in KEPT[platform].items():
            assert (f"#   {name}: " in text) == (not one.kept), (platform, name)


def test_what_is_about_this_host_now_does_not_count() -> None:
    codes = ("NV505", "NV507", "NV509", "NV901", "NV403", "NV501")
    found = export.relevant([Refusal(code, "a", "b", "c", "d") for code in codes])
    assert [one.code for one in found] == ["NV901", "NV403", "NV501"]


def test_the_gate_gets_what_the_plan_says() -> None:
    written = mounted.programs(BLESSED)
    assert written["launch.json"] == planner.expectations(BLESSED.plan, (MODEL,), TREE)
    machine = json.loads(written["machine.json"])
    assert machine["cpu"]["flags"] == list(BLESSED.plan.cpu.flags)
    assert machine["cpu"]["layout"] == {"count": 8, "cores": 4, "nodes": 1}
    assert machine["probe"]["max_tokens"] == BLESSED.plan.probe.max_tokens
    compile(written["machine.py"], "machine.py", "exec")


def test_the_run_directory_is_exactly_what_the_gate_lists() -> None:
    names = {one.path for one in mounted.mounted_files(UNBLESSED) if one.path.startswith("run/")}
    assert names == {"run/launch.json", *(f"run/{one}" for one in UNBLESSED.plan.sentinels)}


def test_the_machine_is_compared_before_the_gate_and_the_gate_before_the_engine() -> None:
    found = list(BLESSED.container.command)
    assert found[:3] == [BLESSED.plan.command.interpreter, "-I", "/nvllm/machine.py"]
    assert tuple(found[3:]) == BLESSED.plan.command.words


@given(st.dictionaries(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])), st.text(max_size=40)))
def test_yaml_gives_back_what_was_written(document: dict[str, str]) -> None:
    assert list(yaml.safe_load_all(texts.yaml_documents([document]))) == [document]


@given(st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=30))
def test_a_word_of_a_unit_is_one_word(text: str) -> None:
    quoted = texts.unit_word(text)
    assert shlex.split(quoted) == [text.replace("%", "%%")]
    assert texts.command_word(text).count("$") == 2 * text.count("$")


def test_what_changes_how_a_container_is_made_is_refused() -> None:
    waived = export_world.waived("host-network", "writable-root", "reason-only")
    found = export.refusals(waived, "compose")
    assert [(one.code, one.found) for one in found] == [("NV333", "host-network"), ("NV333", "writable-root")]
    assert export.refusals(waived, "systemd") == []
    unknown = dataclasses.replace(BLESSED, plan=dataclasses.replace(BLESSED.plan, manifest_id=""))
    assert [one.code for one in export.refusals(unknown, "quadlet")] == ["NV333"]


def test_the_page_says_of_every_platform_what_it_holds() -> None:
    page = (Path(__file__).parents[3] / "docs/export.md").read_text(encoding="utf-8")
    for name, text in export.GUARANTEES.items():
        kept = [one[name] for one in KEPT.values()]
        cells = [one.by if one.kept else f"**not held**: {one.by}" for one in kept]
        assert f"| {' | '.join([f'{name}: {text}', *cells])} |\n" in page


def test_a_restart_and_a_drain_are_exported_as_far_as_the_platform_has_them() -> None:
    """One list of every line that is not there."""
    limits = dataclasses.replace(BLESSED.plan.limits, drain_timeout=30)
    again = dataclasses.replace(
        export_world.blessed(limits=limits), restart=RestartRules(attempts=4, within=900, pause=7)
    )
    written = {
        "kubernetes": kubernetes.exported(again, (1, 36)),
        "quadlet": quadlet.exported(again),
        "compose": compose.exported(again),
        "systemd": systemd.exported(again, SERVICE),
    }
    expected = {
        "kubernetes": ["terminationGracePeriodSeconds: 40"],
        "quadlet": [
            "Restart=on-failure", "RestartSec=7", "StartLimitIntervalSec=900", "StartLimitBurst=5", "StopTimeout=40",
            "TimeoutStopSec=60",
        ],
        "compose": ["restart: on-failure:4", "stop_grace_period: 40s"],
        "systemd": ["Restart=on-abnormal", "TimeoutStopSec=90"],
    }  # fmt: skip
    missing = [
        (platform, line)
        for platform, lines in expected.items()
        for line in lines
        if line not in [text.strip() for text in written[platform].files[0].data.decode().splitlines()]
    ]
    assert missing == []
    lost = {platform for platform, made in written.items() if not made.guarantees["restart"].kept}
    assert lost == {"kubernetes", "quadlet", "compose"}, "only nvllm serve checks everything before a restart"
