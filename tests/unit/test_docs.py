"""The documentation against what it is about: pages, tables and counts that would go stale without anybody noticing."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from nvllm.core.paths import Places, Project
from nvllm.image import digests
from nvllm.lock import lockdoc
from nvllm.patches import seriesfile
from nvllm.patches.series import Series

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/patches"
SERIES: dict[str, Series] = {
    path.parent.name: seriesfile.load(path.parent, f"patches/{path.parent.name}")
    for path in sorted((ROOT / "patches").glob("*/series.yaml"))
}
IDS = sorted({patch.id for series in SERIES.values() for patch in series.patches})
HEADINGS = ("What breaks without it", "Proof", "Upstream", "Drop it")


def rows(text: str) -> list[list[str]]:
    """Return the cells of each line of TEXT that is a table's."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


# docs/patches


@pytest.mark.parametrize("name", IDS)
def test_a_patch_has_a_page_that_says_what_every_page_says(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {name}\n")
    bold = re.findall(r"^\*\*(.+?)\*\*", text, re.MULTILINE)
    assert [heading for heading in HEADINGS if heading not in {one.rstrip(".") for one in bold}] == []


def test_every_page_is_of_a_patch_and_in_the_table() -> None:
    assert sorted(path.stem for path in PAGES.glob("*.md") if path.stem not in {"README", "upstreaming"}) == IDS
    listed = [cells for cells in rows((PAGES / "README.md").read_text(encoding="utf-8")) if cells[0].startswith("[")]
    assert sorted(cells[0] for cells in listed) == [f"[{name}]({name}.md)" for name in IDS]
    for link, *cells, sentinel in listed:
        name = link[1:].partition("]")[0]
        for base, cell in zip(("v0.21.0", "v0.28.0", "v0.32.0", "v0.33.0"), cells, strict=True):
            patch = SERIES[base].patch(name)
            assert re.split(r"[ ,]", cell)[0] == ("" if patch is None else patch.status), (name, base)
            if patch is not None and patch.sentinel is not None:
                assert sentinel == f"`{patch.sentinel.name}`"


def test_what_would_be_sent_upstream_says_of_each_patch_where_it_is() -> None:
    page = rows((PAGES / "upstreaming.md").read_text(encoding="utf-8"))
    for patch in SERIES["v0.32.0"].patches:
        lines = [cells for cells in page if f"({patch.id}.md)" in cells[1]]
        assert lines or patch.status == "rejected", patch.id
        for _, _, there, _ in lines:
            reference = (patch.upstream.reference or "").partition("#")[2]
            if patch.upstream.state == "open":
                assert there == f"#{reference}, open"
            elif patch.upstream.state == "merged":
                assert there == "merged" or there.startswith(f"#{reference} ")


def test_every_proof_that_a_page_names_is_a_test() -> None:
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    written = set(re.findall(r"^def (test_\w+)", tests, re.MULTILINE))
    named = {(path.stem, name) for path in PAGES.glob("*.md") for name in re.findall(r"`(test_\w+)`", path.read_text())}
    assert {stem for stem, _ in named} == {*IDS, "upstreaming"}
    assert [(stem, name) for stem, name in sorted(named) if name not in written] == []


# docs/design.md


def test_the_drawing_has_every_room_in_the_order_of_the_contract() -> None:
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^(\w+)/ ", text[text.index("## Rooms") : text.index("## An image")], re.MULTILINE)
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    module, *rooms = pyproject["tool"]["importlinter"]["contracts"][0]["layers"]
    assert (module, drawn) == ("api", rooms)


def test_every_module_that_the_design_names_is_there() -> None:
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+/\w+\.py)`", text))
    assert len(named) > 8
    assert [path for path in sorted(named) if not (ROOT / "launcher/nvllm" / path).is_file()] == []


# docs/sm120.md


WORDS = {"cubin": "as machine code", "ptx": "as PTX", "none": "that do not run"}


def test_what_is_said_of_device_code_is_what_the_locks_say() -> None:
    table = [cells for cells in rows((ROOT / "docs/sm120.md").read_text(encoding="utf-8")) if ": `" in cells[0]]
    for column, platform in ((1, "linux/amd64"), (2, "linux/arm64")):
        said = {
            cells[0].replace("`", ""): cells[1] if cells[column] == "the same" else cells[column]
            for cells in table
            if cells[column] != "not there"
        }
        path = Project(ROOT, platform).lock("sm120")
        locked = {}
        for one in lockdoc.read(path, path.name).device_code:
            (code,) = {*one.targets.values()}  # both targets have the same
            counts = {"cubin": code.cubin, "ptx": code.ptx, "none": code.none}
            locked[f"{one.wheel}: {one.path}"] = ", ".join(f"{n} {WORDS[kind]}" for kind, n in counts.items() if n)
        assert said == locked


# docs/upgrade.md

UPGRADE = ROOT / "docs/upgrade.md"


def test_the_page_on_removal_names_every_directory_of_the_cache() -> None:
    """The cache is what takes gigabytes; the page says what each part of it is, and what its loss costs."""
    owned = Places(Path("/cache"), Path("/state"))
    parts = {value.name for value in (owned.store, owned.layers, owned.models, owned.code, owned.trees)}
    text = UPGRADE.read_text(encoding="utf-8")
    assert {name for name in parts if f"| `~/.cache/nvllm/{name}` |" not in text} == set()


def test_the_commands_of_the_page_remove_all_that_it_names(tmp_path: Path) -> None:
    """Those for files, in a HOME of their own; a blessed cache is read-only there, as nvllm leaves it."""
    (block,) = re.findall(r"^```\n(nvllm status\n.*?)^```$", UPGRADE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line for line in block.splitlines() if line.startswith(("chmod ", "rm "))]
    assert len(lines) == 2
    for part in (".cache/nvllm/trees/0", ".local/state/nvllm/runs"):
        (tmp_path / part).mkdir(parents=True)
        (tmp_path / part / "model").write_bytes(b"")
    (tmp_path / ".cache/nvllm/trees/0").chmod(0o555)
    subprocess.run(["sh", "-ec", "\n".join(lines)], env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]}, check=True)
    assert [path for path in tmp_path.rglob("*") if "nvllm" in path.name] == []


# Sentences

RIDDLES = (
    "differ by is noise",
    "what was not proved",
    "label decides nothing",
    "content with a doubt",
    "print themselves",
    "begins anew",
    "holds a serve",
    "of a HOME",
)
"""Phrases that stood in messages and pages, and that nobody would say."""

TEXTS = {".md", ".py", ".sh"}


def test_no_riddle_is_back() -> None:
    read = [ROOT / page for page in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    read += [
        path for part in ("docs", "launcher", "tools") for path in (ROOT / part).rglob("*") if path.suffix in TEXTS
    ]
    told = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in read}
    assert [
        (path, phrase) for path, text in told.items() for phrase in RIDDLES if phrase in " ".join(text.split())
    ] == []


# README.md, and what it says of the project


def contains(whole: object, part: object) -> bool:
    """Return whether WHOLE has all of PART: the keys of a mapping, the entries of a list, or the value itself."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(key in whole and contains(whole[key], value) for key, value in part.items())
    if isinstance(whole, list) and isinstance(part, list):
        return all(entry in whole for entry in part)
    return whole == part


def test_the_spec_in_the_readme_is_a_part_of_the_real_one() -> None:
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(block.splitlines()) <= 10
    assert contains(yaml.safe_load((ROOT / "images/cpu.yaml").read_text("utf-8")), yaml.safe_load(block))


def test_the_readme_has_the_figures_of_the_benchmarks() -> None:
    """Seconds of a toggle, beside a Dockerfile with a COPY, rounded as the README rounds them."""
    table = "\n".join(" ".join(cells) for cells in rows((ROOT / "docs/benchmarks.md").read_text("utf-8")))
    (toggle, copied) = re.findall(r"one of them \(([\d.]+) s, .*?COPYs the file already patched ([\d.]+) s", table)[0]
    text = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert f"in {float(copied):.1f} s, and nvllm takes {float(toggle):.1f} s" in text


@pytest.mark.parametrize("page", ["docs/reproducible.md", "docs/nix.md"])
def test_three_builders_give_the_recorded_digest(page: str) -> None:
    recorded = digests.read(ROOT / "manifests/cpu.digests.json", "cpu.digests.json")
    assert recorded is not None
    manifest = recorded.platforms["linux/amd64"].manifest or ""
    found = [cells for cells in rows((ROOT / page).read_text(encoding="utf-8")) if "`nvllm build cpu" in cells[1]]
    assert [cells[2] for cells in found] == [f"`{manifest[:19]}...`", "the same", "the same"]


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 90


def test_every_link_leads_to_a_file() -> None:
    wrong = []
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        wrong += [f"{page.relative_to(ROOT)}: {link}" for link in links if not (page.parent / link).exists()]
    assert wrong == []
