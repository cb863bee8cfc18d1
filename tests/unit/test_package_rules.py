"""The rules of the house that no linter knows: who may import which library, print, exit and catch; size.

Which room may import which is a contract of import-linter, in pyproject.toml.

Each rule is a function from a parsed module to what it finds, and is tried on a few bad lines as well: a rule
that finds nothing because it looks at nothing would be worse than none.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "launcher/nvllm"
FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
LINES = 600

HOMES_OF = {
    "docker": ("engine/client.py", "engine/containers.py", "engine/engine.py", "engine/images.py"),
    "huggingface_hub": ("sources/hub.py",),
    "pynvml": ("host/nvml.py",),
}
"""Libraries that a few modules hide from the others."""

PROGRAMS = (
    "runtime/",
    "image/variation.py",
    "kernels/precompile.py",
    "kernels/precompile38.py",
    "layers/bytecompile.py",
)
"""What runs by itself with the standard library alone, in an image or under the interpreter of one."""

TAG = re.compile(r"nvllm\.[a-z-]+/[0-9]+")

RUNNERS = {"core/proc.py", "fleet/cluster.py", "fleet/ssh.py", "runtime/machine.py", "serve/detach.py"}
"""Who starts programs: the one wrapper, what runs without a module of ours on a node or in a container, a talk with
the ssh of the user, the start of a supervisor."""

OPENERS = {
    "bisect/journal.py": "appends to a journal",
    "trials/probe.py": "reads the first line of a program",
    "bisect/trial_cache.py": "appends to the cache",
    "cache/pins.py": "locks and writes a pin by descriptor",
    "cache/staging.py": "hashes and copies a cache by descriptor",
    "cache/cachetree.py": "walks a cache by descriptor",
    "cli/crash.py": "writes a report",
    "cli/main.py": "opens /dev/null in the place of a closed stream",
    "cli/serve.py": "follows a log",
    "core/archives.py": "opens archives of any size, and reads them within bounds",
    "core/canonical.py": "hashes a file of any size",
    "core/durable.py": "opens directories, to sync and lock them",
    "core/reading.py": "is the one way",
    "fleet/blessings.py": "copies a staged cache into a layer, and a layer's files out by descriptor",
    "fleet/registry.py": "sends a layer by descriptor",
    "host/facts.py": "reads /proc and /sys",
    "host/locks.py": "locks files",
    "layers/archive.py": "streams a layer that was made here",
    "image/assemble.py": "runs in a build context that was made here, and checked by its sums",
    "image/contents.py": "reads layers and archives of any size, and documents within bounds",
    "image/dockerfiles.py": "reads the package's own modules",
    "image/builder.py": "reads the package's own modules",
    "kernels/kernellayer.py": "reads what a compiler has just written",
    "kernels/stubs.py": "reads what a compiler has just written",
    "layers/bytecode.py": "reads what an interpreter has just written",
    "layers/deb.py": "streams a locked file",
    "layers/rootfs.py": "reads a tree that was unpacked here",
    "layers/tarlayer.py": "writes a layer",
    "layers/wheel.py": "streams a locked file",
    "kernels/devicecode.py": "maps a library that it has unpacked",
    "models/modeltree.py": "hashes a model by descriptor",
    "serve/detach.py": "writes and follows a log",
    "serve/rundir.py": "appends to a log",
    "sources/bundle.py": "writes files of the store into a tar, and reads one, of any size",
    "sources/fetch.py": "writes a download",
    "sources/gitsource.py": "writes a download",
    "sources/store.py": "syncs a file",
}
"""Who opens files other than by `core/reading.py`, and why: what is written, streamed, or comes from nvllm itself."""

ZIP_OPENERS = {
    "core/archives.py": "is the one way",
    "image/assemble.py": "runs in a build context that was made here, and checked by its sums",
    "layers/bytecode.py": "reads and writes what nvllm itself stores",
    "layers/wheel.py": "keeps a wheel open, after the same check",
}
"""Who opens zip archives, and why."""

JSON_READERS = {
    "core/canonical.py": "is the one way",
    "core/secret.py": "looks for secrets in a text, which may have numbers that canonical JSON lacks",
    "core/workload.py": "reads an argument that the spec's rules have read",
    "host/locks.py": "reads a line of at most 4 kB",
    "image/assemble.py": "runs in a build context that was made here, and checked by its sums",
    "layers/oci.py": "reads a configuration that was made here",
    "kernels/check.py": "reads a layer that was made here",
    "kernels/kernellayer.py": "reads what the compiler has just written",
    "serve/detach.py": "reads what nvllm itself prints",
    "spec/speculative.py": "reads an argument as vLLM reads it",
}
"""Who reads JSON other than by `canonical.decode`, and why: nesting and numbers of others could end the program."""

Rule = Callable[[str, ast.Module], Iterator[str]]


def says(file: str) -> bool:
    """Return whether FILE may print: the command line, and what runs inside the image."""
    return file.startswith(("cli/", *PROGRAMS))


def dotted(node: ast.expr) -> str:
    """Return the name that NODE is, such as ``sys.stdout.write``, or an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and full name of everything that TREE imports, wherever, types alone left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and dotted(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        else:
            yield from imported(node)


def foreign_imports(file: str, tree: ast.Module) -> Iterator[str]:
    for line, name in imported(tree):
        homes = HOMES_OF.get(name.partition(".")[0], (file,))
        if file not in homes:
            yield f"{file}:{line}: only {' and '.join(homes)} import {name.partition('.')[0]}"


@functools.cache
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Return all nodes of TREE, which every rule looks through."""
    return tuple(ast.walk(tree))


def prints_and_exits(file: str, tree: ast.Module) -> Iterator[str]:
    if says(file):
        return
    for node in nodes(tree):
        if isinstance(node, ast.Call) and dotted(node.func) in {"print", "exit", "quit", "sys.exit", "os._exit"}:
            if file != "__main__.py":
                yield f"{file}:{node.lineno}: only the command line prints and exits"
        elif isinstance(node, ast.Attribute) and dotted(node) in {"sys.stdout", "sys.stderr"}:
            yield f"{file}:{node.lineno}: only the command line writes to {dotted(node)}"


def catches_everything(file: str, tree: ast.Module) -> Iterator[str]:
    allowed = 1 if file == "cli/main.py" else 0
    for node in nodes(tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        names = {dotted(kind) if kind is not None else "BaseException" for kind in kinds}
        if not names & {"Exception", "BaseException"}:
            continue
        last = node.body[-1]
        if isinstance(last, ast.Raise) and last.exc is None:
            continue  # it cleans up, and what happened goes on
        allowed -= 1
        if allowed < 0:
            yield f"{file}:{node.lineno}: catches everything"


def getattr_with_default(file: str, tree: ast.Module) -> Iterator[str]:
    for node in nodes(tree):
        if isinstance(node, ast.Call) and dotted(node.func) == "getattr" and len(node.args) > 2:
            yield f"{file}:{node.lineno}: getattr with a default makes a typo a value"


def other_programs(file: str, tree: ast.Module) -> Iterator[str]:
    runs = {"subprocess.run", "subprocess.Popen", "subprocess.call", "subprocess.check_call", "subprocess.check_output"}
    for node in nodes(tree):
        if isinstance(node, ast.Call) and dotted(node.func) in runs | {"os.system", "os.popen"} and file not in RUNNERS:
            yield f"{file}:{node.lineno}: programs are run through proc.run"


def opens_files(file: str, tree: ast.Module) -> Iterator[str]:
    if file in OPENERS or file.startswith(PROGRAMS):
        return
    for node in nodes(tree):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if (
            name in {"open", "os.open", "io.open", "os.fdopen"}
            or method in {"read_text", "read_bytes"}
            or (
                method == "open"
                and any(isinstance(one, ast.Constant) and "r" in str(one.value) for one in node.args[:1])
            )
        ):
            yield f"{file}:{node.lineno}: files are read through core/reading.py"


def reads_json(file: str, tree: ast.Module) -> Iterator[str]:
    if file in JSON_READERS or file.startswith(PROGRAMS):
        return
    for node in nodes(tree):
        if isinstance(node, ast.Call) and dotted(node.func) in {"json.load", "json.loads"}:
            yield f"{file}:{node.lineno}: JSON is read by canonical.decode"


def opens_archives(file: str, tree: ast.Module) -> Iterator[str]:
    """Find zip archives that are opened elsewhere than where they are bounded."""
    for node in nodes(tree):
        if (
            isinstance(node, ast.Call)
            and dotted(node.func) == "zipfile.ZipFile"
            and file not in ZIP_OPENERS
            and not file.startswith(PROGRAMS)
        ):
            yield f"{file}:{node.lineno}: zip archives are opened by core/archives.py"


def shadows_in_a_comprehension(file: str, tree: ast.Module) -> Iterator[str]:
    """Find variables of comprehensions that have the name of something global which the same function uses.

    In Python 3.12.1 and 3.12.3, at least, such a use in another comprehension may end in an UnboundLocalError.
    """
    known = {one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    known |= {
        name.asname or name.name
        for one in tree.body
        if isinstance(one, ast.Import | ast.ImportFrom)
        for name in one.names
    }
    for function in (one for one in nodes(tree) if isinstance(one, ast.FunctionDef)):
        bound: dict[str, set[int]] = {}
        inside = tuple(ast.walk(function))
        for maker in (one for one in inside if isinstance(one, _COMPREHENSIONS)):
            targets = (target for generator in maker.generators for target in ast.walk(generator.target))
            for name in {one.id for one in targets if isinstance(one, ast.Name)} & known:
                bound.setdefault(name, set()).update(id(one) for one in ast.walk(maker))
        for one in inside if bound else ():
            if isinstance(one, ast.Name) and one.id in bound and id(one) not in bound[one.id]:
                yield f"{file}:{one.lineno}: a comprehension beside it binds `{one.id}`"


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def names_that_say_nothing(file: str, tree: ast.Module) -> Iterator[str]:
    """Find variables, parameters and functions whose name would fit any other one.

    Fields of a class are names of a format. The programs are part of images, whose bytes would change with a name.
    """
    if file.startswith(PROGRAMS):
        return
    fields = {
        id(field.target)
        for node in nodes(tree)
        if isinstance(node, ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign)
    }
    for node in nodes(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            name, line = node.id, node.lineno
        elif isinstance(node, ast.arg):
            name, line = node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef):
            name, line = node.name, node.lineno
        else:
            continue
        if name in _NAMELESS:
            yield f"{file}:{line}: `{name}` does not say what it is"


_NAMELESS = frozenset({"one", "found", "said", "told", "shown", "held", "wanted", "ours", "theirs"})

RULES: list[Rule] = [
    foreign_imports,
    prints_and_exits,
    catches_everything,
    getattr_with_default,
    other_programs,
    opens_files,
    reads_json,
    opens_archives,
    shadows_in_a_comprehension,
    names_that_say_nothing,
]


@functools.cache
def parsed(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text(encoding="utf-8"), file)


@pytest.mark.thorough
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: Rule) -> None:
    assert [finding for file in FILES for finding in rule(file, parsed(file))] == []


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (foreign_imports, "import docker"),
        (foreign_imports, "def f():\n    from docker.errors import APIError"),
        (foreign_imports, "import huggingface_hub.utils as utils"),
        (prints_and_exits, "print(1)"),
        (prints_and_exits, "import sys\nsys.stdout.write('x')"),
        (prints_and_exits, "import sys\nsys.exit(1)"),
        (catches_everything, "try:\n    f()\nexcept Exception:\n    pass"),
        (catches_everything, "try:\n    f()\nexcept:\n    pass"),
        (catches_everything, "try:\n    f()\nexcept (OSError, BaseException) as e:\n    raise ValueError from e"),
        (getattr_with_default, "getattr(x, 'y', None)"),
        (other_programs, "subprocess.run(['true'])"),
        (other_programs, "os.system('true')"),
        (opens_files, "open('x')"),
        (opens_files, "os.open('x', os.O_RDONLY)"),
        (opens_files, "Path('x').read_text(encoding='utf-8')"),
        (opens_files, "(directory / 'x').read_bytes()"),
        (opens_files, "path.open('rb')"),
        (reads_json, "json.load(stream)"),
        (reads_json, "json.loads(text)"),
        (opens_archives, "zipfile.ZipFile(path)"),
        (
            shadows_in_a_comprehension,
            "def name(x): ...\ndef f(y):\n    a = [name for one in y for name in one]\n    return [name(x) for x in y]",
        ),
        (names_that_say_nothing, "names = [one.name for one in patches]"),
        (names_that_say_nothing, "def f(found): ..."),
        (names_that_say_nothing, "def said(): ..."),
    ],
)
def test_the_rule_finds_what_breaks_it(rule: Rule, text: str) -> None:
    assert len(list(rule("sample.py", ast.parse(text)))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    f()\nexcept BaseException:\n    clean()\n    raise",
        "try:\n    f()\nexcept OSError:\n    pass",
        "getattr(x, 'y')",
        "import dockerfile",
        "path.open('wb')",
        "reading.content(path, reading.SPEC)",
        "json.dumps(value)",
        "if TYPE_CHECKING:\n    import docker",
        "class Refusal:\n    found: str",
    ],
)
def test_the_rules_let_what_is_right_pass(text: str) -> None:
    assert [finding for rule in RULES for finding in rule("sample.py", ast.parse(text))] == []


def test_who_may_open_files_does() -> None:
    """A row that nobody needs would let the next reader in."""
    assert [file for file in sorted(OPENERS) if not opens(parsed(file))] == []


def opens(tree: ast.Module) -> bool:
    calls = {dotted(node.func) for node in nodes(tree) if isinstance(node, ast.Call)}
    methods = {node.attr for node in nodes(tree) if isinstance(node, ast.Attribute)}
    return bool(calls & {"open", "os.open", "os.fdopen"} or methods & {"read_text", "read_bytes", "open"})


def test_no_module_is_too_long_and_each_says_what_it_is_for() -> None:
    texts = {file: (PACKAGE / file).read_text(encoding="utf-8") for file in FILES}
    assert [file for file, text in texts.items() if len(text.splitlines()) > LINES] == []
    assert [file for file, text in texts.items() if text.strip() and not ast.get_docstring(parsed(file))] == []


def test_no_two_classes_of_the_package_have_one_name() -> None:
    names = [node.name for file in FILES for node in parsed(file).body if isinstance(node, ast.ClassDef)]
    public = [name for name in names if not name.startswith("_")]
    assert sorted({name for name in public if public.count(name) > 1}) == []
    assert len(public) > 200


def test_no_two_modules_use_one_tag() -> None:
    """A tag such as ``nvllm.lock/1`` names one format, or what one hash is taken over: two uses would be mixed up."""
    found: dict[str, set[str]] = {}
    for file in FILES:
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and TAG.fullmatch(node.value):
                found.setdefault(node.value, set()).add(file)
    assert len(found) > 10
    assert {tag: files for tag, files in found.items() if len(files) > 1} == {}
