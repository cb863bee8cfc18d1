"""What pip is configured with goes along to another root: its files, and the directories and files that it names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


class Machine:
    """A machine with a configured pip; everything of it lies below DIRECTORY."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = directory / "a home"
        self.env = {
            "HOME": str(self.home),
            "XDG_CONFIG_DIRS": str(directory / "xdg"),
            "PATH": os.environ["PATH"],
        }

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def there(self, name: str) -> Path:
        path = self.directory / name
        path.mkdir(parents=True)
        return path

    def carried(self) -> tuple[str, list[str], list[str]]:
        """Return the file that the tool wrote for the other root, and the directories and the files it names.

        What /etc/pip.conf of the machine of the test says is among it, and wins over what XDG_CONFIG_DIRS names. So
        each test looks for its own, and writes what that file may say too below HOME, which wins over both.
        """
        out = [self.directory / name for name in ("conf", "directories", "files")]
        argv = [sys.executable, "-I", str(ROOT / "tools/pip_carried.py"), *map(str, out)]
        subprocess.run(argv, env=self.env, check=True)
        conf, directories, files = (path.read_text() for path in out)
        return conf, directories.splitlines(), files.splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_files_become_one_and_the_later_wins(machine: Machine) -> None:
    machine.write(
        machine.directory / "xdg/pip/pip.conf", "[global]\ntimeout = 11\nin-no-other-file = 12\n[install]\nuser = no\n"
    )
    machine.write(machine.home / ".config/pip/pip.conf", "[global]\ntimeout = 13\n")
    conf, _, _ = machine.carried()
    lines = conf.splitlines()
    assert "in-no-other-file = 12" in lines
    assert "timeout = 13" in lines
    assert "timeout = 11" not in lines
    assert lines.index("[install]") < lines.index("user = no")


def test_pip_reads_what_was_written(machine: Machine) -> None:
    wheels = machine.there("wheels")
    machine.write(machine.home / ".pip/pip.conf", f"[global]\nfind-links =\n    {wheels}\n    relative/to/nothing\n")
    conf, _, _ = machine.carried()
    assert str(wheels) in conf
    argv = [sys.executable, "-m", "pip", "config", "list"]
    env = {**machine.env, "PIP_CONFIG_FILE": str(machine.directory / "conf"), "HOME": "/nonexistent"}
    said = subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout
    assert f"global.find-links='\\n{wheels}\\nrelative/to/nothing'" in said


def test_directories_of_wheels_and_of_indexes_go_along(machine: Machine) -> None:
    wheels, simple, named = (
        machine.there("wheels"),
        machine.there("an index/simple"),
        machine.there("of the environment"),
    )
    machine.write(
        machine.home / ".config/pip/pip.conf",
        f"[global]\nfind-links = {wheels} https://index.invalid/wheels {machine.directory}/missing\n"
        f"extra-index-url = {simple.as_uri()} https://index.invalid/simple\n",
    )
    machine.env["PIP_FIND_LINKS"] = named.as_uri()
    _, directories, _ = machine.carried()
    assert {str(wheels), str(simple.parent), str(named)} <= set(directories)
    assert not [one for one in directories if "invalid" in one or "missing" in one]


def test_a_directory_in_another_goes_along_once(machine: Machine) -> None:
    outer = machine.there("outer")
    inner = machine.there("outer/inner")
    machine.write(machine.home / ".config/pip/pip.conf", f"[global]\nfind-links = {inner} {outer}\n")
    _, directories, _ = machine.carried()
    assert str(outer) in directories
    assert str(inner) not in directories


def test_certificates_of_every_setting_go_along(machine: Machine) -> None:
    for name in ("of a file", "of pip", "of TLS"):
        machine.write(machine.directory / name, "a certificate")
    machine.write(machine.home / ".config/pip/pip.conf", f"[global]\ncert = {machine.directory / 'of a file'}\n")
    machine.env["PIP_CERT"] = str(machine.directory / "of pip")
    machine.env["SSL_CERT_FILE"] = str(machine.directory / "of TLS")
    machine.env["REQUESTS_CA_BUNDLE"] = "/nonexistent"
    _, _, certificates = machine.carried()
    assert {str(machine.directory / name) for name in ("of a file", "of pip", "of TLS")} <= set(certificates)
    assert "/nonexistent" not in certificates


def test_constraints_and_requirements_go_along(machine: Machine) -> None:
    """pip ends with an error where a file of constraints is not there, whatever it is asked to install."""
    names = ("constraints.txt", "more.txt", "build.txt")
    for name in names:
        machine.write(machine.directory / name, "torch<=2.14.1\n")
    first, second, build = (machine.directory / name for name in names)
    machine.write(machine.home / ".config/pip/pip.conf", f"[global]\nconstraint =\n    {first}\n    {second}\n")
    machine.env["PIP_BUILD_CONSTRAINT"] = str(build)
    _, _, files = machine.carried()
    assert {str(first), str(second), str(build)} <= set(files)
