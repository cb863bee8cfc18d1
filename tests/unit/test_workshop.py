"""The workshop: the locked development environment, the scripts, and what the CI runs."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKED = (ROOT / "requirements-dev.txt").read_text()
SCRIPTS = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tools").glob("*.sh"))] + [".ci/run"]


def pins() -> dict[str, str]:
    """Return the locked version of each package."""
    return dict(re.findall(r"^(\S+?)==(\S+)", LOCKED, re.MULTILINE))


def wanted() -> list[str]:
    """Return what pyproject.toml and tools/build.in ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    build = [line for line in (ROOT / "tools/build.in").read_text().splitlines() if line and not line.startswith("#")]
    return [
        *project["project"]["dependencies"],
        *project["dependency-groups"]["dev"],
        *project["build-system"]["requires"],
        *build,
    ]


def test_the_lock_has_what_is_wanted() -> None:
    asked = {one: pins().get(canonicalize_name(one.name)) for one in map(Requirement, wanted())}
    missing = [str(one) for one, version in asked.items() if version is None or not one.specifier.contains(version)]
    assert missing == [], "run tools/lock-dev.sh"


def test_what_is_installed_has_an_upper_bound() -> None:
    """`pip install .` reads no lock: without a bound it takes a major version that nobody has tried."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    unbounded = [text for text in asked if not any(one.operator == "<" for one in Requirement(text).specifier)]
    assert unbounded == []


def test_every_package_of_the_lock_has_hashes() -> None:
    for block in re.split(r"^(?=\S+==)", LOCKED, flags=re.MULTILINE)[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), block


def test_the_lock_names_no_host() -> None:
    assert "://" not in LOCKED
    assert not re.search(r"^--", LOCKED, re.MULTILINE)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_can_be_run_and_read(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    assert (ROOT / script).read_text().startswith("#!/usr/bin/env bash\n")
    assert subprocess.run(["bash", "-n", ROOT / script], check=False).returncode == 0


def test_every_target_of_make_says_what_it_does() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = re.findall(r"^  make (\S+) +\S", done.stdout, re.MULTILINE)
    phony = re.findall(r"^\.PHONY: (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(phony) - set(listed) == {"engine", "emulator"}  # steps of others, not things to ask for


def ci_tail(tmp_path: Path, status: int, *, environment: bool = True) -> subprocess.CompletedProcess[str]:
    """Run .ci/run where every test passes and the audit ends with STATUS; with an ENVIRONMENT, or without one."""
    for path in (".ci", "tools", ".venv/bin"):
        (tmp_path / path).mkdir(parents=True)
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    scripts = {"tools/bare.sh": 0, "tools/engine.sh": 0, "tools/audit.sh": status}
    scripts |= {".venv/bin/python": 0} if environment else {}
    for path, ends in scripts.items():
        (tmp_path / path).write_text(f"#!/bin/sh\nexit {ends}\n")
        (tmp_path / path).chmod(0o755)
    return subprocess.run([tmp_path / ".ci/run"], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("status", "ends"), [(0, 0), (1, 1), (75, 0), (124, 0)])
def test_the_ci_fails_for_a_known_vulnerability_and_says_where_none_was_looked_for(
    tmp_path: Path, status: int, ends: int
) -> None:
    done = ci_tail(tmp_path, status)
    assert done.returncode == ends, done.stdout + done.stderr
    assert ("not audited here" in done.stdout) == (status > 1)


def test_the_ci_says_that_it_has_nothing_to_audit_with(tmp_path: Path) -> None:
    done = ci_tail(tmp_path, 1, environment=False)
    assert (done.returncode, "not audited here" in done.stdout) == (0, True)


def test_a_bare_machine_runs_what_the_readme_says() -> None:
    done = subprocess.run([ROOT / "tools/bare.sh", "--list"], capture_output=True, text=True, check=True)
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["demo", "test", "test-nix"]
    assert all(line in (ROOT / "README.md").read_text().splitlines() for line in done.stdout.splitlines())


@pytest.mark.parametrize("argument", ["nothing", "dem", "demo test"])
def test_a_bare_machine_runs_nothing_else(argument: str) -> None:
    done = subprocess.run([ROOT / "tools/bare.sh", argument], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"bare: the README has no command `make {argument}`; it has: make demo ")


NVLLM = """#!/bin/sh
# Stands in for nvllm, whose commands have tests of their own: nobody serves a file of index $INDEX until `lock` ran.
echo "$*" >> calls
case "$*" in
    *model*) exit 9 ;;
    *lock*) touch moved ;;
    *"--json build cpu") echo '{"refusals": [{"code": "NV206", "where": "index '"$INDEX"': a"}]}'; exit 1 ;;
    *"build cpu") test -e moved || exit 1 ;;
esac
"""


@pytest.mark.parametrize(("index", "status"), [("debian", 9), ("pypi", 1)])
def test_the_demo_moves_a_lock_whose_packages_nobody_serves_and_no_other(
    tmp_path: Path, index: str, status: int
) -> None:
    for name in ("tools", "images", "manifests", "patches", ".venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "tools/demo.sh").write_bytes((ROOT / "tools/demo.sh").read_bytes())
    for lock in ("cpu.lock.json", "cpu.arm64.lock.json"):  # for whichever host this is
        (tmp_path / "manifests" / lock).touch()
    for name, text in (("nvllm", NVLLM), ("python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')):
        (tmp_path / ".venv/bin" / name).write_text(text)
        (tmp_path / ".venv/bin" / name).chmod(0o755)
    done = subprocess.run(
        ["bash", tmp_path / "tools/demo.sh"],
        env={**os.environ, "INDEX": index},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    calls = [line.removeprefix("--project .demo ") for line in (tmp_path / "calls").read_text().splitlines()]
    tried = ["build cpu", "--json build cpu"]
    moved = ["lock cpu --update debs", "build cpu", "build cpu"] if index == "debian" else []
    assert [call for call in calls if call.endswith(("build cpu", "debs"))] == [*tried, *moved]


def test_setup_says_what_is_missing() -> None:
    env = {**os.environ, "PYTHON": "/nonexistent/python3"}
    done = subprocess.run([ROOT / "tools/setup.sh"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("setup: needs Python 3.11 or newer, and found no /nonexistent/python3.")


def test_no_engine_is_started_where_another_is_named(tmp_path: Path) -> None:
    env = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none"}
    argv: list[str | Path] = [ROOT / "tools/engine.sh", "start", tmp_path / "engine"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"DOCKER_HOST is unix://{tmp_path}/none, and no engine answers there" in done.stderr
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize(
    ("machine", "committed", "first"),
    [
        ("x86_64", ["cpu.lock.json"], "patch check cpu"),
        ("aarch64", ["cpu.lock.json"], "lock cpu"),
        ("aarch64", ["cpu.lock.json", "cpu.arm64.lock.json"], "patch check cpu"),
    ],
)
def test_the_demo_makes_a_lock_that_is_not_committed(
    tmp_path: Path, machine: str, committed: list[str], first: str
) -> None:
    """The machine is one that `uname` says, and nvllm a script that is refused in its second step at the latest."""
    for directory in ("tools", "images", "patches", "manifests", ".venv/bin", "bin"):
        (tmp_path / directory).mkdir(parents=True)
    for name in committed:
        (tmp_path / "manifests" / name).touch()
    (tmp_path / "tools/demo.sh").write_bytes((ROOT / "tools/demo.sh").read_bytes())
    programs = {
        ".venv/bin/python": f'exec "{sys.executable}" "$@"',
        ".venv/bin/nvllm": 'echo "$@" >>calls\n[ "$3" != patch ]',
        "bin/uname": f"echo {machine}",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", tmp_path / "tools/demo.sh"], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0] == f"--project .demo {first}"
    said = "no lock of image cpu for aarch64 is committed: made first, as .demo/manifests/cpu.arm64.lock.json"
    assert (said in done.stdout) == (first == "lock cpu")


def test_stopping_stops_nothing_that_was_not_started(tmp_path: Path) -> None:
    # The pid file names a process that lives and is no engine: the number was given to another one.
    (tmp_path / "dockerd.pid").write_text(f"{os.getpid()}\n")
    subprocess.run([ROOT / "tools/engine.sh", "stop", tmp_path], check=True, capture_output=True)
    assert not (tmp_path / "dockerd.pid").exists()


def test_setup_says_what_it_cannot_install(tmp_path: Path) -> None:
    """A PATH with nothing but what the script itself starts with: no ssh-keygen, and no apt-get to get it with."""
    (tmp_path / "python3").symlink_to(sys.executable)
    for name in ("bash", "dirname", "env", "id"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    env = {**os.environ, "PATH": os.fspath(tmp_path)}
    done = subprocess.run([ROOT / "tools/setup.sh"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("setup: there is no ssh-keygen, which signs what is blessed; install the package ")


def test_setup_does_not_empty_what_a_link_points_to(tmp_path: Path) -> None:
    """An environment of another tree is there: what it lacks for this one is no reason to remove it."""
    (tmp_path / "here/tools").mkdir(parents=True)
    (tmp_path / "there").mkdir()
    (tmp_path / "there/kept").write_text("kept")
    for name in ("tools/setup.sh", "requirements-dev.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / "here" / name)
    (tmp_path / "here/.venv").symlink_to(tmp_path / "there")
    argv = [tmp_path / "here/tools/setup.sh"]
    env = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, (tmp_path / "there/kept").read_text()) == (1, "kept")
    assert done.stderr.startswith(f"setup: .venv is a link to {tmp_path}/there, ")
    assert done.stderr.endswith(f"rm '{tmp_path}/here/.venv'\n")


def test_no_test_needs_a_newer_tarfile_than_debian_has() -> None:
    """A filter is an argument of `untar.filtered` alone: Debian's Python, 3.11.2, knows none."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if "filter=" not in (text := path.read_text(encoding="utf-8")):
            continue  # parsing all of them would take seconds
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        unpacking = [
            one for one in calls if isinstance(one.func, ast.Attribute) and one.func.attr.startswith("extract")
        ]
        assert not [one for one in unpacking if any(given.arg == "filter" for given in one.keywords)], path


NAMED = re.compile(r"\b_[a-zA-Z]\w*")
"""A name that begins with one underscore: of nobody but the module that it stands in."""


DEFINES = re.compile(r"^ *(?:def |class )?([\w., ]*)(?:\(|:|(?<= )= )", re.MULTILINE)
"""What stands before the parameters, the type or the value in a line that defines something."""


def own_names(tree: ast.Module) -> set[str]:
    """Return the underscore names that TREE defines: functions, classes, variables, and attributes of `self`."""
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    stored = [node for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute)]
    defined |= {
        node.id if isinstance(node, ast.Name) else node.attr for node in stored if isinstance(node.ctx, ast.Store)
    }
    return {name for name in defined if NAMED.fullmatch(name)}


def _name(node: ast.expr) -> str:
    """Return the last word of NODE if it is a name with dots, else an empty string."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def reached_for(tree: ast.AST) -> Iterator[str]:
    """Yield every name that TREE takes of others: attributes, imports, strings for `setattr`; also code in strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and _name(node.func).endswith("attr"):  # setattr, and its like
            texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            yield from (text.rpartition(".")[2] for text in texts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"nvllm.*\n", node.value):
            with contextlib.suppress(SyntaxError):
                yield from reached_for(ast.parse(node.value))


def checked() -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of each file of the tests and the benchmarks, but for what runs inside an image."""
    for directory in ("tests", "benchmarks"):
        for path in sorted((ROOT / directory).rglob("*.py")):
            if path.parent.name != "probes":
                yield path, path.read_text(encoding="utf-8")


@pytest.mark.thorough
def test_no_test_reaches_for_what_a_module_keeps_for_itself() -> None:
    modules = [path.read_text(encoding="utf-8") for path in (ROOT / "launcher").rglob("*.py")]
    package = {name for text in modules for line in DEFINES.findall(text) for name in NAMED.findall(line)} - {"_exit"}
    for path, text in checked():
        if package & set(NAMED.findall(text)):  # parsing all of them would take seconds
            tree = ast.parse(text)
            found = set(reached_for(tree)) & package - own_names(tree)
            assert (path, found) == (path, set())


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("from nvllm.a import _one", "_one"),
        ("a._one()", "_one"),
        ("patch.setattr(a, '_one', 1)", "_one"),
        ("patch.setattr('nvllm.a._one', 1)", "_one"),
        ("CODE = 'import nvllm.a\\na._one = 1'", "_one"),
    ],
)
def test_what_reaches_is_found(code: str, name: str) -> None:
    assert name in set(reached_for(ast.parse(code)))


def test_own_names_are_those_that_a_file_defines() -> None:
    code = "def _f(): pass\nclass _C:\n    _x: int = 1\nself._y = 1\n_z = a._other"
    assert own_names(ast.parse(code)) == {"_f", "_C", "_x", "_y", "_z"}


def test_what_mypy_does_not_see_has_a_code_and_a_reason() -> None:
    for path, text in checked():
        for found in re.finditer(r"  # type[:] ignore.*", text):
            assert re.fullmatch(r"  # type[:] ignore\[[a-z,-]+\]  # \S.*", found[0]), f"{path}: {found[0]}"


def flawed(name: str, *flaws: str) -> str:
    """Return what pip-audit writes of the package NAME."""
    known = [{"id": flaw, "fix_versions": ["2"]} for flaw in flaws]
    return json.dumps({"dependencies": [{"name": name, "version": "1", "vulns": known}]})


def audit(tmp_path: Path, canary: str, lock: str) -> subprocess.CompletedProcess[str]:
    """Run the audit with a script for pip-audit, which runs CANARY for the package with flaws and LOCK for the lock."""
    program = tmp_path / "pip-audit"
    begin = '#!/bin/sh\nLOCK=$2\nwhile [ "$1" != --output ]; do shift; done\nOUTPUT=$2\n'
    program.write_text(f"{begin}case $LOCK in */canary) {canary} ;; *) {lock} ;; esac\n")
    program.chmod(0o755)
    env = {**os.environ, "AUDIT": str(program)}
    return subprocess.run([ROOT / "tools/audit.sh"], env=env, capture_output=True, text=True, check=False)


KNOWN = f"echo '{flawed('requests', 'C-1')}' >$OUTPUT; exit 1"


@pytest.mark.parametrize(
    ("flaws", "status", "said"),
    [
        ([], 0, "audit: 1 packages, 0 known vulnerabilities\n"),
        (["X-1"], 1, "a 1: X-1, fixed in 2\naudit: 1 packages, 1 known vulnerabilities\n"),
    ],
)
def test_the_audit_says_what_is_known(tmp_path: Path, flaws: list[str], status: int, said: str) -> None:
    done = audit(tmp_path, KNOWN, f"echo '{flawed('a', *flaws)}' >$OUTPUT; exit {status}")
    assert (done.returncode, done.stdout, done.stderr) == (status, said, "")


def test_what_is_looked_up_is_the_lock_of_nvllm_itself(tmp_path: Path) -> None:
    done = audit(tmp_path, KNOWN, f"echo $LOCK >{tmp_path}/lock; echo '{flawed('a')}' >$OUTPUT")
    assert done.returncode == 0
    assert (tmp_path / "lock").read_text() == "requirements-dev.txt\n"


@pytest.mark.parametrize("canary", [KNOWN, "echo 'ERROR: no route' >&2; exit 1"])
def test_the_audit_says_that_the_database_could_not_be_reached(tmp_path: Path, canary: str) -> None:
    """What was not looked up is never called clean."""
    done = audit(tmp_path, canary, "echo 'ERROR: no route' >&2; exit 1")
    assert (done.returncode, done.stdout, done.stderr) == (75, "", "audit: not done, ERROR: no route\n")


def test_an_index_that_knows_of_no_vulnerability_at_all_is_no_database(tmp_path: Path) -> None:
    clean = f"echo '{flawed('a')}' >$OUTPUT"
    done = audit(tmp_path, clean, clean)
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr == "audit: not done, the index that answers knows nothing of CVE-2018-18074\n"
