"""The pages that programs write, and the site that is built of all pages."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest

from nvllm.spec.waivers import WAIVERS

ROOT = Path(__file__).parents[2]
SCREENS = sorted((ROOT / "docs/screens").glob("*.svg"))


def tool(path: str) -> ModuleType:
    """Return the program tools/PATH as a module."""
    name = path.replace("/", "_").removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass looks its module up
    spec.loader.exec_module(module)
    return module


REFERENCE = tool("reference.py")


# docs/reference


@pytest.mark.parametrize("name", REFERENCE.PAGES)
def test_a_generated_page_is_what_make_docs_writes(name: str) -> None:
    assert (ROOT / "docs/reference" / name).read_text(encoding="utf-8") == REFERENCE.PAGES[name](), "run make docs"


def test_no_other_page_is_among_the_generated_ones() -> None:
    assert {path.name for path in (ROOT / "docs/reference").iterdir()} == {*REFERENCE.PAGES}


def test_fields_of_a_schema_of_every_form() -> None:
    place = {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]}
    top = {
        "$defs": {"place": {"type": "object", "properties": {"port": {"type": "integer", "minimum": 1, "maximum": 9}}}},
        "properties": {
            "one": place,
            "many": {"type": "array", "items": {"$ref": "#/$defs/place"}},
            "named": {"additionalProperties": {"$ref": "#/$defs/place"}},
        },
    }
    found = dict(REFERENCE.objects("", top, top))
    assert list(found) == ["", "one", "many[]", "named.NAME"]
    assert REFERENCE.form(found["one"]["properties"]["port"], top) == "a whole number, from 1 to 9"


def test_every_field_of_a_spec_has_a_meaning_an_example_and_a_default_or_is_required() -> None:
    page = (ROOT / "docs/reference/spec.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `([\w-]+)` \| (.*) \|$", page.partition("## Waivers")[0], re.MULTILINE)
    assert len(table) > 80
    lacking = []
    for name, cells in table:
        default, _, meaning, example = re.split(r" \| ", cells.replace("\\|", "or"))
        if not (meaning and default and example.strip("`")):
            lacking.append(name)
    assert lacking == []


def test_an_example_that_no_spec_has_is_a_value_of_its_field() -> None:
    """Those of the specs are: the specs are valid."""
    top = json.loads((REFERENCE.SCHEMAS / "image.schema.json").read_text(encoding="utf-8"))
    fields = {
        (path, key): value for path, one in REFERENCE.objects("", top, top) for key, value in one["properties"].items()
    }
    for where, example in REFERENCE.ELSEWHERE.items():
        schema = {"$defs": top["$defs"], **fields[where]}
        assert list(jsonschema.Draft202012Validator(schema).iter_errors(example)) == [], where


def test_every_waiver_is_listed() -> None:
    page = (ROOT / "docs/reference/spec.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([\w-]+)` \|", page.partition("## Waivers")[2], re.MULTILINE) == [*WAIVERS]


def test_every_recorded_document_is_one_of_the_schema() -> None:
    schema = json.loads((REFERENCE.SCHEMAS / "output.schema.json").read_text(encoding="utf-8"))
    recorded = json.loads(REFERENCE.EXAMPLES.read_text(encoding="utf-8"))
    assert {*recorded} <= {*REFERENCE.names()}
    assert len(recorded) > 20
    for name, document in recorded.items():
        whole = {**document, "refusals": [one for one in document.get("refusals", []) if one != "..."]}
        jsonschema.validate(whole if whole["refusals"] else document, schema)
        assert document["command"] == name


@pytest.mark.parametrize("check", [["mandoc", "-T", "lint", "-W", "error"], ["groff", "-ww", "-man", "-Tutf8", "-z"]])
def test_the_manual_page_is_good_roff(check: list[str]) -> None:
    if shutil.which(check[0]) is None:
        pytest.skip(f"there is no {check[0]}")
    done = subprocess.run([*check, ROOT / "docs/reference/nvllm.1"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# docs/screens


@pytest.mark.parametrize("path", SCREENS, ids=lambda path: path.stem)
def test_a_screen_names_nobody_and_asks_no_host(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("&#160;", " ")
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg|127\.0\.0\.1:)|@font-face|<script", text) == []
    assert re.findall(r"/(?:root|home|tmp|work|Users)/", text) == []


@pytest.mark.parametrize("path", SCREENS, ids=lambda path: path.stem)
def test_a_screen_is_light_where_its_reader_is(path: Path) -> None:
    """Each colour of the dark picture has a light one behind the same selector."""
    dark, _, light = path.read_text(encoding="utf-8").partition("@media (prefers-color-scheme: light) {")
    rules = light.partition("</style>")[0]
    named = re.findall(r"(\.[\w-]+-r\d+) \{", dark)
    assert named
    assert [name for name in named if f"{name} {{" not in rules] == []
    assert '[fill="#191919"] { fill: #ffffff }' in rules


def test_a_colour_without_a_light_one_is_refused() -> None:
    with pytest.raises(ValueError, match="LIGHT has no colour for #123456"):
        tool("screens.py").both("<style>\n.a-r1 { fill: #123456 }\n    </style>\n")


def test_a_bit_that_is_flipped_twice_is_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"abc")
    path.chmod(0o444)
    seen = []
    for _ in range(2):
        subprocess.run([sys.executable, ROOT / "tools/flip.py", path], check=True)
        seen.append(path.read_bytes())
    assert seen == [b"`bc", b"abc"]
    assert path.stat().st_mode & 0o777 == 0o444


def test_every_screen_is_recorded_by_the_command_and_shown_on_a_page() -> None:
    screens = tool("screens.py")
    drawn = {path.stem for path in SCREENS}
    assert drawn == {one.name for one in (*screens.SESSIONS, *screens.WITH_ENGINE)}
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    assert {*re.findall(r"\(screens/(\w+)\.svg\)", pages)} == drawn


def test_a_screen_is_recorded(tmp_path: Path) -> None:
    screens = tool("screens.py")
    (refusal,) = (one for one in screens.SESSIONS if one.name == "refusal")
    screens.record([refusal], tmp_path, real=False)
    text = (tmp_path / "refusal.svg").read_text(encoding="utf-8").replace("&#160;", " ")
    assert "NV105" in text
    assert "patch file changed" in text


# The site


@pytest.mark.thorough
def test_the_site_is_built_without_a_warning_and_asks_no_other_host(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools/site/build.py", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    pages = sorted((tmp_path / "html").rglob("*.html"))
    assert {"index.html", "concepts.html", "contributing.html"} <= {page.name for page in pages}
    loading = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"'](?:https?:)?//[^\"']*")
    for page in pages:
        assert loading.findall(page.read_text(encoding="utf-8")) == [], page
    for sheet in (tmp_path / "html").rglob("*.css"):
        assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")) == [], sheet
