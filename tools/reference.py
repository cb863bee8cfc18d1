"""Writes the generated pages: ``python tools/reference.py [DIRECTORY]``, by default docs/reference.

commands.md and nvllm.1 come from the command line itself (click), spec.md and series.md from JSON Schemas, and json.md
from the schema of --json with the documents that `make examples` recorded. `make docs` runs it; a test compares.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from nvllm import __version__
from nvllm.cli.frame import common_options
from nvllm.cli.main import program
from nvllm.spec.waivers import WAIVERS

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs/reference"
SCHEMAS = ROOT / "docs/schemas"
EXAMPLES = Path(__file__).with_name("examples.json")

Schema = Mapping[str, Any]

_EXITS = (
    ("0", "Done."),
    ("1", "Failed: the work was allowed and did not succeed."),
    ("2", "Wrong input: the command line, the spec or the series."),
    ("3", "Refused: something is not as it was locked, blessed or planned."),
    ("130", "Interrupted."),
    ("143", "Terminated."),
)
_WHICH_IMAGE = """\
IMAGE may be left out wherever something else decides it, in this order:

1. A profile: the only image that has it. `nvllm serve --profile lower8` serves `gb10`.
2. A model, for the commands of `nvllm model`: the only image that has it, or any of those that pin the same one.
3. The project: its only image, or the `default-image` of `nvllm.yaml`, a file of two lines beside `images/`.

nvllm says on stderr which image it took and why, and the document of `--json` names it. Where several images are left,
the refusal NV111 lists the lines to choose from. `nvllm doctor` alone looks at the host and at every image."""
_ENVIRONMENT = (
    ("DOCKER_HOST", "The socket of the container engine, as Docker's own client reads it."),
    ("DOCKER_CONTEXT", "The Docker context whose engine is used, instead of the one that `docker context use` set."),
    ("NVLLM_HOME", "The directory of cache and state, instead of XDG_CACHE_HOME/nvllm and XDG_STATE_HOME/nvllm."),
    ("NVLLM_MODELS", "The directory of models that were made or fetched."),
    ("NVLLM_DEBIAN_MIRROR", "A Debian mirror, for a host whose apt names none."),
    ("NVLLM_DEBIAN_SNAPSHOT", "An archive of old Debian packages, asked last."),
    ("NVLLM_GITHUB_MIRROR", "A host that serves owner/name/archive/COMMIT.tar.gz."),
    ("NO_COLOR", "If it is set, no colour."),
)


# Commands


@dataclass(frozen=True, slots=True)
class Described:
    """One command as both pages show it. ARGUMENTS and OPTIONS are pairs of how it is written and what it does."""

    path: str
    usage: str
    help: str
    arguments: tuple[tuple[str, str], ...]
    options: tuple[tuple[str, str], ...]
    examples: str


def described(command: click.Command, context: click.Context) -> Described:
    """Return COMMAND of CONTEXT without its common options."""
    common = {option.name for option in common_options()}
    rows = [
        (param.param_type_name, record)
        for param in command.params
        if param.name not in common and (record := param.get_help_record(context)) is not None
    ]
    return Described(
        path=context.command_path,
        usage=" ".join([context.command_path, *command.collect_usage_pieces(context)]),
        help=inspect.cleandoc(command.help or ""),
        arguments=tuple(record for kind, record in rows if kind == "argument"),
        options=tuple(record for kind, record in rows if kind == "option"),
        examples=re.sub(r"\AExamples:\n", "", inspect.cleandoc(command.epilog or "")),
    )


def commands() -> Iterator[Described]:
    """Yield every command, a group before its own commands."""
    top = click.Context(program, info_name="nvllm")
    for name in program.list_commands(top):
        command = program.get_command(top, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=top)
        yield described(command, context)
        if isinstance(command, click.Group):
            for inner in command.list_commands(context):
                inner_command = command.get_command(context, inner)
                assert inner_command is not None
                yield described(inner_command, click.Context(inner_command, info_name=inner, parent=context))


def names() -> list[str]:
    """Return the commands that do something, without the program's name: no groups."""
    paths = [command.path for command in commands()]
    return [path.partition(" ")[2] for path in paths if not any(other.startswith(f"{path} ") for other in paths)]


def common() -> list[tuple[str, str]]:
    """Return the options that every command has."""
    context = click.Context(program, info_name="nvllm")
    options = [record for option in common_options() if (record := option.get_help_record(context)) is not None]
    return [*options, ("--version", "Show the version and exit."), ("--help", "Show the help and exit.")]


def _cell(text: str) -> str:
    """Return TEXT for a cell of a table; what stands in backquotes stays as it is."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()).replace("|", "\\|"))
    return "".join(
        part if part.startswith("`") else re.sub(r"([*<>]|(?<!\w)_|_(?!\w))", r"\\\1", part) for part in parts
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _named(column: str, rows: Sequence[tuple[str, str]]) -> str:
    return _table(
        [column, "what it is"], [("`" + left.replace("|", "\\|") + "`", _cell(right)) for left, right in rows]
    )


def commands_page() -> str:
    """Return the reference of the commands."""
    parts = [
        "# Commands\n\nGenerated from the command line by `make docs`; do not edit. See also `nvllm COMMAND --help`.\n",
        "\n## Options of every command\n\nThey may stand before and after the command.\n\n",
        _named("option", common()),
        f"\n## Which image\n\n{_WHICH_IMAGE}\n",
        f"\n## Exit status\n\n{_table(['status', 'meaning'], _EXITS)}",
        f"\n## Environment\n\n{_named('variable', _ENVIRONMENT)}",
    ]
    for command in commands():
        parts.append(f"\n## {command.path}\n\n```text\n{command.usage}\n```\n\n{_prose(command.help)}\n")
        parts += [f"\n{_named('argument', command.arguments)}"] if command.arguments else []
        parts += [f"\n{_named('option', command.options)}"] if command.options else []
        parts += [f"\n```text\n{inspect.cleandoc(command.examples)}\n```\n"] if command.examples else []
    return "".join(parts)


def _prose(text: str) -> str:
    return "\n\n".join(_cell(paragraph).replace("\\|", "|") for paragraph in text.split("\n\n"))


# The manual page


def _roff(text: str) -> str:
    """Return TEXT for a line of roff."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("'", "\\(aq")
    return re.sub(r"^\.", "\\&.", escaped, flags=re.MULTILINE)


def _paragraphs(text: str) -> str:
    return "\n.PP\n".join(_roff(" ".join(paragraph.split())) for paragraph in text.split("\n\n"))


def _items(rows: Sequence[tuple[str, str]]) -> str:
    return "".join(f".TP\n.B {_roff(left)}\n{_roff(right) or '-'}\n" for left, right in rows)


def _verbatim(text: str) -> str:
    return f".nf\n{_roff(inspect.cleandoc(text))}\n.fi\n"


def manual() -> str:
    """Return the manual page nvllm(1)."""
    parts = [
        f'.\\" Generated by `make docs`; do not edit.\n.TH NVLLM 1 "" "nvllm {__version__}" "User Commands"\n',
        f".SH NAME\nnvllm \\- {_roff(_lowered(program.help or ''))}\n",
        ".SH SYNOPSIS\n.B nvllm\n[OPTIONS] COMMAND [ARGS]...\n",
        ".SH OPTIONS\nThese may stand before and after the command.\n",
        _items(common()),
        ".SH COMMANDS\n",
    ]
    for command in commands():
        name = command.path.partition(" ")[2]
        parts.append(f".SS {_roff(name)}\n.B {_roff(command.usage)}\n.PP\n{_paragraphs(command.help)}\n")
        parts += [_items([*command.arguments, *command.options])]
        parts += [f".PP\n{_verbatim(command.examples)}"] if command.examples else []
    parts += [f".SH EXIT STATUS\n{_items(_EXITS)}", f".SH ENVIRONMENT\n{_items(_ENVIRONMENT)}"]
    parts.append(f".SH EXAMPLES\n{_verbatim(described(program, click.Context(program, info_name='nvllm')).examples)}")
    return "".join(parts)


def _lowered(text: str) -> str:
    """Return TEXT as the line NAME of a manual page has it: no capital first, no stop last."""
    return text[:1].lower() + text[1:].rstrip(".")


# Fields of a JSON Schema


def resolved(schema: Schema, top: Schema) -> Schema:
    """Return SCHEMA with what its $ref leads to in TOP below what it says itself."""
    merged = dict(schema)
    while reference := merged.pop("$ref", None):
        target: Any = top
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]
        merged = {**target, **merged}
    return merged


def variants(schema: Schema, top: Schema) -> list[Schema]:
    """Return the forms that SCHEMA allows beside its own: of oneOf, anyOf, and of each `then` of an allOf."""
    forms = [*schema.get("oneOf", []), *schema.get("anyOf", [])]
    forms += [
        {**resolved(branch["then"], top), "_when": branch["if"]}
        for branch in schema.get("allOf", [])
        if "then" in branch
    ]
    return [variant for variant in (resolved(form, top) for form in forms) if variant.get("type") != "null"]


def form(schema: Schema, top: Schema) -> str:
    """Return in words which values SCHEMA allows."""
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"a list: {form(resolved(schema.get('items', {}), top), top)}"
    if allowed := schema.get("x-allowed"):
        return _cell(str(allowed))
    least, most = schema.get("minimum"), schema.get("maximum")
    kinds = schema.get("type", "object" if "properties" in schema else "any value")
    words = [_KINDS.get(kind, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null"]
    if least is not None and most is not None:
        words.append(f"from {least} to {most}")
    elif least is not None or most is not None:
        words.append(f"at least {least}" if least is not None else f"at most {most}")
    return ", ".join(words)


_KINDS = {
    "object": "a mapping",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "`true` or `false`",
}


def chooses(variant: Schema) -> dict[str, Schema]:
    """Return the field whose one value says that VARIANT is meant, such as kind or status; empty if none does."""
    tested = variant.get("_when", {}).get("properties", {}) or variant.get("properties", {})
    return dict([(key, value) for key, value in tested.items() if isinstance(value, Mapping) and "const" in value][:1])


def objects(path: str, schema: Schema, top: Schema) -> Iterator[tuple[str, Schema]]:
    """Yield the mappings of fixed keys at PATH and below it, each with its schema; a variant's path says which."""
    schema = resolved(schema, top)
    forms = [(variant, chooses(variant)) for variant in variants(schema, top)]
    properties = schema.get("properties", {})
    if set(properties) - {key for _, choice in forms for key in choice}:
        yield path, schema
    for key, value in properties.items():
        if isinstance(value, Mapping):
            yield from objects(f"{path}.{key}" if path else key, value, top)
    for variant, choice in forms:
        suffix = "".join(f" ({key}: {value['const']})" for key, value in choice.items())
        own = variant.get("properties", {})
        chosen = {key: {**own.get(key, {}), **value} for key, value in choice.items()}
        yield from objects(f"{path}{suffix}", {**variant, "properties": {**own, **chosen}}, top)
    if isinstance(items := schema.get("items"), Mapping):
        yield from objects(f"{path}[]", items, top)
    if isinstance(values := schema.get("additionalProperties"), Mapping):
        yield from objects(f"{path}.NAME", values, top)


def fields_page(title: str, lead: str, path: Path, examples: Mapping[tuple[str, str], str]) -> str:
    """Return the reference of what the JSON Schema at PATH allows. EXAMPLES are of fields, by the paths of
    their mappings and their names; where there are any, each field has a column for one."""
    top = json.loads(path.read_text(encoding="utf-8"))
    parts = [f"# {title}\n\nGenerated from `{path.relative_to(ROOT)}` by `make docs`; do not edit. {lead}\n"]
    for name, schema in objects("", top, top):
        rows = []
        for key, value in schema["properties"].items():
            resolved_value = resolved(value, top) if isinstance(value, Mapping) else {}
            row = [
                f"`{key}`",
                default(key, resolved_value, schema),
                form(resolved_value, top),
                _cell(resolved_value.get("description", "")),
            ]
            rows.append([*row, _code(examples[name, key])] if examples else row)
        heading = f"`{name}`" if name else "The file"
        parts.append(f"\n## {heading}\n\n")
        parts += [f"{_prose(schema['description'])}\n\n"] if name and schema.get("description") else []
        parts.append(_table(["field", "default", "allowed", "meaning", *(["example"] if examples else [])], rows))
    return "".join(parts)


def default(key: str, field: Schema, of: Schema) -> str:
    """Return in words what a mapping OF fields has where its FIELD, called KEY, is left out."""
    if key in of.get("required", []):
        return "required"
    return f"`{json.dumps(field['default'])}`" if "default" in field else "none"


def _code(text: str) -> str:
    """Return TEXT as code in a cell of a table."""
    return f"`{text}`".replace("|", "\\|")


# Fields of an image spec, with examples of the specs that are here

_SPECS = tuple(ROOT / f"images/{name}.yaml" for name in ("cpu", "sm120", "gb10"))
_LONGEST = 72
"""Characters of an example; a longer one is cut."""

ELSEWHERE: Mapping[tuple[str, str], object] = {
    ("vllm", "native"): {"device": "cpu", "targets": ["_C"], "tools": ["cmake==4.4.4", "ninja==1.13.2"]},
    ("vllm.native", "device"): "cpu",
    ("vllm.native", "targets"): ["_C", "_C_AVX512", "_C_AVX2"],
    ("vllm.native", "tools"): ["cmake==4.4.4", "ninja==1.13.2"],
    ("vllm.native", "sources"): {
        "FETCHCONTENT_SOURCE_DIR_ONEDNN": {
            "index": "debian",
            "path": "pool/main/o/onednn/onednn_3.7.2+ds.orig.tar.xz",
            "sha256": "0cc51ca26c1af6a2bb1e71e378e7046f3ceb3e71791ee9d4e246d50f904a6ea6",
            "size": 9898052,
        }
    },
    ("vllm.native.sources.NAME", "index"): "debian",
    ("vllm.native.sources.NAME", "path"): "pool/main/o/onednn/onednn_3.7.2+ds.orig.tar.xz",
    ("vllm.native.sources.NAME", "sha256"): "0cc51ca26c1af6a2bb1e71e378e7046f3ceb3e71791ee9d4e246d50f904a6ea6",
    ("vllm.native.sources.NAME", "size"): 9898052,
    ("patches", "proved"): "required",
    ("models.NAME (kind: directory)", "path"): "/srv/models/mine",
    ("models.NAME (kind: huggingface)", "follow"): "main",
    ("profiles.NAME", "waivers"): [{"name": "host-ipc", "reason": "two engines share tensors"}],
    ("profiles.NAME", "bless"): {"valid-days": 90},
    ("profiles.NAME", "kernels"): {"missing": "refuse"},
    ("profiles.NAME", "gates"): {"memory": {"max-age": 30, "band": "64GiB"}},
    ("profiles.NAME", "campaign"): {"memory-floor": "4GiB"},
    ("profiles.NAME.campaign", "evaluate-as"): "piecewise",
    ("profiles.NAME", "restart"): {"attempts": 3, "within": 3600},
    ("profiles.NAME", "draft"): "small",
    ("profiles.NAME", "adapters"): ["pirate"],
    ("profiles.NAME", "chat-template"): "templates/chat.jinja",
    ("profiles.NAME", "served-name"): "default",
    ("profiles.NAME.limits", "open-files"): 65536,
    ("profiles.NAME", "access"): {"key-file": "/etc/nvllm/key", "publish": "192.168.1.20"},
    ("profiles.NAME.access", "key-file"): "/etc/nvllm/key",
    ("profiles.NAME.access", "publish"): "192.168.1.20",
    ("profiles.NAME.restart", "attempts"): 3,
    ("profiles.NAME.restart", "within"): 3600,
    ("profiles.NAME.restart", "pause"): 5,
    ("profiles.NAME.limits", "drain-timeout"): 60,
    ("profiles.NAME.limits", "stall-timeout"): 1200,
    ("profiles.NAME.gpu", "count"): 2,
    ("profiles.NAME.waivers[]", "name"): "host-ipc",
    ("profiles.NAME.waivers[]", "reason"): "two engines share tensors",
    ("profiles.NAME.bless", "valid-days"): 90,
    ("profiles.NAME.bless", "signers"): "manifests/allowed_signers",
    ("profiles.NAME.bless", "evaluation"): {"kind": "questions", "file": "gsm8k-50.jsonl", "floor": "45/50"},
    ("profiles.NAME.bless.evaluation (kind: questions)", "kind"): "questions",
    ("profiles.NAME.bless.evaluation (kind: questions)", "file"): "evaluations/gsm8k-50.jsonl",
    ("profiles.NAME.bless.evaluation (kind: questions)", "floor"): "45/50",
    ("profiles.NAME.bless.evaluation (kind: questions)", "prompt"): "Q: {question}\nA: Let me solve this step by step.",
    ("profiles.NAME.bless.evaluation (kind: questions)", "stop"): ["Q:"],
    ("profiles.NAME.bless.evaluation (kind: questions)", "extraction"): "strict",
    ("profiles.NAME.bless.evaluation (kind: questions)", "length"): 1024,
    ("profiles.NAME.bless.evaluation (kind: program)", "kind"): "program",
    ("profiles.NAME.bless.evaluation (kind: program)", "file"): "evaluations/ask.py",
    ("profiles.NAME.bless.evaluation (kind: program)", "floor"): "90%",
    ("profiles.NAME.kernels", "missing"): "refuse",
    ("profiles.NAME.kernels", "quiet-rounds"): 3,
    ("profiles.NAME.gates", "memory"): {"max-age": 30, "band": "64GiB"},
    ("profiles.NAME.gates", "thermal"): {"max-age": 1},
    ("profiles.NAME.gates", "disk"): {"max-age": 30},
    ("profiles.NAME.gates.memory", "max-age"): 30,
    ("profiles.NAME.gates.memory", "band"): "64GiB",
    ("profiles.NAME.gates.memory", "swap"): "2GiB",
    ("profiles.NAME.gates.thermal", "max-age"): 1,
    ("profiles.NAME.gates.thermal", "gpu-temperature"): 80,
    ("profiles.NAME.gates.thermal", "host-temperature"): 90,
    ("profiles.NAME.gates.disk", "max-age"): 30,
    ("profiles.NAME.gates.disk", "p50"): 10,
    ("profiles.NAME.gates.disk", "p99"): 100,
    ("profiles.NAME.campaign", "memory-floor"): "4GiB",
    ("device-code", "lacking"): [{"library": "vllm/_flashmla_C.abi3.so", "reason": "no profile chooses FlashMLA"}],
    ("device-code.lacking[]", "library"): "vllm/_flashmla_C.abi3.so",
    ("device-code.lacking[]", "reason"): "no profile chooses FlashMLA",
}
"""Examples of fields that no spec of this repository uses."""


def values(document: object, path: str) -> Iterator[Mapping[str, Any]]:
    """Yield the mappings at PATH, as `objects` writes it, in DOCUMENT."""
    step, _, rest = path.partition(".")
    named, _, kind = step.partition(" (")
    tag, _, chosen = kind.removesuffix(")").partition(": ")
    below: list[object] = [document]
    if step:
        fields = document if isinstance(document, dict) else {}
        below = [value for key, value in fields.items() if named in ("NAME", key, f"{key}[]")]
    if named.endswith("[]"):
        below = [entry for entries in below if isinstance(entries, list) for entry in entries]
    for value in below:
        if rest:
            yield from values(value, rest)
        elif isinstance(value, dict) and (not tag or value.get(tag) == chosen):
            yield value


def spec_examples() -> dict[tuple[str, str], str]:
    """Return an example of each field of an image spec: of a spec of this repository, or of ELSEWHERE."""
    top = json.loads((SCHEMAS / "image.schema.json").read_text(encoding="utf-8"))
    specs = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in _SPECS]
    examples: dict[tuple[str, str], str] = {}
    for name, schema in objects("", top, top):
        for key in schema["properties"]:
            used = [
                mapping[key]
                for spec in specs
                for mapping in values(spec, name)
                if mapping.get(key) not in (None, [], {})
            ]
            if not used and (name, key) not in ELSEWHERE:
                raise ValueError(f"no spec uses {name}.{key}: add an example to ELSEWHERE in tools/reference.py")
            text = flow(used[0] if used else ELSEWHERE[name, key])
            examples[name, key] = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."
    return examples


def flow(value: object) -> str:
    """Return VALUE as YAML in one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False)
    return text.removesuffix("...\n").strip()


def waivers() -> str:
    """Return the list of waivers as a section of the page."""
    rows = [(f"`{name}`", _cell(text)) for name, text in WAIVERS.items()]
    lead = "A profile names each exception from the hardening here, with a reason. Nothing else can be waived.\n\n"
    return f"\n## Waivers\n\n{lead}{_table(['name', 'what it allows'], rows)}"


def spec_page() -> str:
    """Return the reference of the fields of an image spec."""
    lead = (
        "`images/NAME.yaml`; the specs of this repository are whole examples with comments. Where they use a field, "
        "its example is theirs."
    )
    page = fields_page("Fields of an image spec", lead, SCHEMAS / "image.schema.json", spec_examples())
    return page + waivers()


# JSON output


_JSON_LEAD = """\
# JSON output

Generated by `make docs`; do not edit. With `--json` every command prints one document on stdout, and nothing else.
The form of `result` belongs to the command. Below is one document of each, as the project's own tests saw it
(`make examples` records them again). `...` stands where a list or a text was cut.
"""


def json_page() -> str:
    """Return the reference of what --json prints: the schema, and a recorded document of each command."""
    schema = (SCHEMAS / "output.schema.json").read_text(encoding="utf-8")
    recorded = json.loads(EXAMPLES.read_text(encoding="utf-8"))
    leaves = [f"nvllm {name}" for name in names()]
    parts = [_JSON_LEAD, f"\n## Schema\n\n```json\n{schema}```\n"]
    for name in leaves:
        command = name.partition(" ")[2]
        if command not in recorded:
            continue
        text = json.dumps(recorded[command], indent=2, ensure_ascii=False)
        parts.append(f"\n## {name}\n\n```json\n{text}\n```\n")
    missing = [f"`{name}`" for name in leaves if name.partition(" ")[2] not in recorded]
    if missing:
        parts.append(f"\n## Not recorded\n\nNo test without a container engine prints these: {', '.join(missing)}.\n")
    return "".join(parts)


PAGES = {
    "commands.md": commands_page,
    "nvllm.1": manual,
    "spec.md": spec_page,
    "series.md": lambda: fields_page(
        "Fields of a series",
        "`patches/BASE/series.yaml`; `nvllm patch new` and `nvllm patch refresh` write it.",
        SCHEMAS / "series.schema.json",
        {},
    ),
    "json.md": json_page,
}

if __name__ == "__main__":
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else REFERENCE
    directory.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (directory / name).write_text(page(), encoding="utf-8")
