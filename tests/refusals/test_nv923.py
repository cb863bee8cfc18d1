"""NV923, no worker over ssh: a host that was named does not start a worker of the same nvllm.

The worker is real. The program ssh is a stand-in that runs it on this machine, in another HOME.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nvllm import __version__
from nvllm.cli.main import main
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.fleet import ssh
from nvllm.fleet.ssh import SshMachines
from support.engine_world import ROOT
from support.ssh_stand_in import Hosts

WORKER = f'PYTHONPATH={shlex.quote(str(ROOT / "launcher"))} exec {shlex.quote(sys.executable)} -m nvllm "$@"'


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    hosts = Hosts(tmp_path / "between")
    hosts.install()
    monkeypatch.setenv("PATH", str(hosts.bin), prepend=":")
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "driver"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")
    return hosts


def test_hosts_without_a_worker(hosts: Hosts) -> None:
    good, lacks = f"ssh://good{ROOT}", "ssh://lacks/~/mine"
    hosts.add("good", WORKER)
    hosts.add("lacks", WORKER)
    machines = SshMachines([ssh.host(good), ssh.host(lacks), ssh.host("ssh://off")], Silent())
    with pytest.raises(Refused) as caught:
        machines.greet()
    refused = {one.where: one for one in caught.value.refusals}
    assert {one.code for one in refused.values()} == {"NV923"}
    assert set(refused) == {lacks, "ssh://off"}
    assert {one.expected for one in refused.values()} == {f"a worker of nvllm {__version__}"}
    assert refused[lacks].found.startswith("ssh ended with 2: NV107")
    assert refused["ssh://off"].found == "ssh ended with 255: ssh: Could not resolve hostname off"
    done = subprocess.run(["sh", "-c", refused["ssh://off"].cure], capture_output=True, check=False)
    assert (done.returncode, b"resolve hostname" in done.stderr) == (255, True)
    assert machines.machines()[0].label.startswith("cpu-")


def test_a_status_shows_each_host(hosts: Hosts, capsys: pytest.CaptureFixture[str]) -> None:
    """A worker without an engine refuses; that and a host that is off are rows beside each other."""
    hosts.add("good", WORKER)
    on = ["--on", f"ssh://good{ROOT},ssh://off", "--on", "ssh://off"]
    assert main(["fleet", "status", *on, "--json"]) == 0
    captured = capsys.readouterr()
    rows = {row["machine"]: row["problem"] for row in json.loads(captured.out)["result"]["machines"]}
    assert set(rows) == {"good", "off"}
    assert rows["good"].startswith("NV510: ")
    assert rows["off"].startswith("ssh ended with 255: ")
    assert "off: ssh: Could not resolve hostname off" in captured.err


def test_a_cluster_and_hosts_do_not_go_together(hosts: Hosts, capsys: pytest.CaptureFixture[str]) -> None:
    for on in (["--on", "ssh://a,ray://b"], ["--on", "ray://a", "--on", "ray://b"]):
        assert main(["fleet", "status", *on, "--json"]) == 2
        assert [one["code"] for one in json.loads(capsys.readouterr().out)["refusals"]] == ["NV108"]
