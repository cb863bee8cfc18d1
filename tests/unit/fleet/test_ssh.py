"""Workers over ssh, by a stand-in for the program ssh that runs the command here: what each end does to the other.

The workers are shell scripts that say what a worker would. `tests/refusals/test_nv923.py` has the real worker, and
`tests/fleet/test_ssh.py` real sshd.
"""

from __future__ import annotations

import shlex
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from nvllm.bisect.records import Lost, Sent
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.fleet import ssh, tasks
from nvllm.fleet.machines import ClusterNode, NotCarriedError, RemoteMachines
from nvllm.fleet.registry import Repository, RepositoryName
from nvllm.fleet.ssh import SshLimits, SshMachines
from nvllm.fleet.tasks import MOST_LINE
from nvllm.trials import probe
from nvllm.trials.bench import EngineBench
from nvllm.trials.trial import Trial
from support import bisect_world
from support.ssh_stand_in import HELLO, READS, SAYS_HELLO, Hosts
from support.task_samples import HOST, TASK, Noting, answered

LINE = tasks.task_line(TASK)
ANSWER = tasks.answer_line(answered(TASK))
WAITS = "cat > /dev/null"
ANSWERS = f"echo {shlex.quote(ANSWER.decode().strip())}"


class Notes(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    hosts = Hosts(tmp_path)
    hosts.install()
    monkeypatch.setenv("PATH", str(hosts.bin), prepend=":")
    return hosts


def named(*names: str, limits: SshLimits | None = None, notes: Notes | None = None) -> SshMachines:
    limits = limits or SshLimits(end=5.0)
    return SshMachines([ssh.host(f"ssh://{name}") for name in names], notes or Notes(), limits)


def carried(machines: SshMachines) -> bytes:
    return machines.carry(machines.machines()[0], LINE)


def test_a_line_comes_back_with_its_answer(hosts: Hosts) -> None:
    home = hosts.add(
        "one", "echo unpacking >&2", SAYS_HELLO, READS, 'echo "$task" > task', ANSWERS, WAITS, "touch ended"
    )
    notes = Notes()
    machines = named("one", notes=notes)
    machines.greet()
    assert machines.machines() == [ClusterNode("ssh://one", "one", HOST)]
    assert carried(machines) == ANSWER
    assert (home / "task").read_bytes() == LINE
    assert (home / "ended").exists()
    assert notes.lines[0] == "one: unpacking"


def test_a_host_that_is_no_worker_is_refused_with_all_others(hosts: Hosts) -> None:
    other = HELLO.replace('"version":"', '"version":"9')
    hosts.add("good", SAYS_HELLO, WAITS)
    hosts.add("other", f"echo {shlex.quote(other)}", WAITS)
    hosts.add("greets", "echo Welcome to Debian", WAITS)
    hosts.add("answers", ANSWERS, WAITS)
    hosts.add("endless", f"head -c {MOST_LINE + 70000} /dev/zero", WAITS)
    hosts.add("broken", "echo nvllm: not found >&2", "exit 127")
    hosts.add("hangs", "exec sleep 5")
    names = ["good", "other", "greets", "answers", "endless", "broken", "hangs", "nowhere"]
    machines = named(*names, limits=SshLimits(hello=0.6, end=0.1))
    with pytest.raises(Refused) as caught:
        machines.greet()
    assert {one.code for one in caught.value.refusals} == {"NV923"}
    told = {one.where: one.found for one in caught.value.refusals}
    assert told.pop("ssh://endless").startswith("no hello but '\\x00")
    assert told == {
        "ssh://other": "nvllm 90.1.0",
        "ssh://greets": "no hello but 'Welcome to Debian'",
        "ssh://answers": "another answer than a hello",
        "ssh://broken": "ssh ended with 127: nvllm: not found",
        "ssh://hangs": "not a hello within 0.6 s",
        "ssh://nowhere": "ssh ended with 255: ssh: Could not resolve hostname nowhere",
    }


def test_a_worker_that_is_lost(hosts: Hosts) -> None:
    """It dies in the trial, or hangs and is silent. What it answers is not judged here: that is `machines`'s."""
    limits = SshLimits(beat=0.1, silence=0.3, end=0.1)
    hosts.add("dies", SAYS_HELLO, READS, "echo killed >&2", "kill -9 $$")
    hosts.add("silent", SAYS_HELLO, READS, "exec sleep 5")
    hosts.add("deaf", SAYS_HELLO, "exec sleep 5")
    told = {}
    for name in ("dies", "silent", "deaf"):
        machines = named(name, limits=limits)
        with pytest.raises(NotCarriedError) as caught:
            machines.carry(machines.machines()[0], (b" " * 200_000 if name == "deaf" else b"") + LINE)
        told[name] = str(caught.value)
    silent = "nothing came from it for 0.3 s"
    assert told == {"dies": "ssh ended with -9: killed", "silent": silent, "deaf": silent}


def test_a_worker_that_lives_may_take_longer_than_the_silence(hosts: Hosts) -> None:
    beats = "for n in 1 2 3 4 5 6; do sleep 0.1; echo; done"
    hosts.add("slow", SAYS_HELLO, READS, beats, ANSWERS, WAITS)
    assert carried(named("slow", limits=SshLimits(silence=0.4))) == ANSWER


def test_an_end_closes_the_pipe_and_waits_for_the_worker(hosts: Hosts) -> None:
    home = hosts.add("one", SAYS_HELLO, READS, "touch begun", WAITS, "sleep 0.2", "touch ended")
    machines, why = named("one"), []

    def carry() -> None:
        with pytest.raises(NotCarriedError) as caught:
            carried(machines)
        why.append(str(caught.value))

    thread = threading.Thread(target=carry)
    thread.start()
    while not (home / "begun").exists():
        time.sleep(0.01)
    machines.cancel()
    thread.join(10)
    assert why == ["it was ended"]
    assert (home / "ended").exists()


def test_an_answer_counts_whose_worker_has_ended_at_once(hosts: Hosts) -> None:
    hosts.add("quick", SAYS_HELLO, READS, ANSWERS)
    assert [carried(named("quick")) for _ in range(5)] == [ANSWER] * 5


def test_messages_are_shown_with_their_host_and_have_a_bound(hosts: Hosts) -> None:
    hosts.add("loud", "yes 0123456789 | head -c 3000000 >&2", SAYS_HELLO, READS, ANSWERS, WAITS)
    notes = Notes()
    assert carried(named("loud", notes=notes)) == ANSWER
    assert set(notes.lines) == {"loud: 0123456789"}
    assert 1000 < len(notes.lines) < 100_000


def test_a_trial_of_a_lost_host_goes_to_another(hosts: Hosts, tmp_path: Path) -> None:
    program = tmp_path / "probe"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    start = replace(
        bisect_world.start(bisect_world.free(2)),
        host=HOST,
        probe=probe.program(program, (), "", build_only=True),
    )
    sent = Sent("1" * 32, ("p01",), "b" * 64, f"sha256:{'c' * 64}", f"sha256:{'d' * 64}", HOST, 1)
    first = hosts.add("a", SAYS_HELLO, READS, "exit 1")
    hosts.add("b", SAYS_HELLO, READS, ANSWERS, WAITS)
    carrier = named("a", "b")
    carrier.greet()
    repository = Repository(RepositoryName("http", "127.0.0.1:5000", "nvllm"), None, Silent())
    machines = RemoteMachines(cast("EngineBench", Noting()), start, carrier, repository, tmp_path / "evidence", 64)
    lost = machines.trial(sent)
    assert isinstance(lost, Lost)
    assert lost.why == "a: ssh ended with 1"
    assert isinstance(machines.trial(sent), Trial)

    (first / "bin/nvllm").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(NotCarriedError):
        carrier.carry(carrier.machines()[0], LINE)
    assert [one.name for one in carrier.machines()] == ["b"]


def test_a_garbled_answer_is_believed_by_nobody(hosts: Hosts) -> None:
    hosts.add("one", SAYS_HELLO, READS, "echo garbage", WAITS)
    with pytest.raises(Refused) as caught:
        tasks.answer(carried(named("one")), "one")
    assert [one.code for one in caught.value.refusals] == ["NV345"]


def test_addresses() -> None:
    rows = {
        "ssh://spark": ("ssh://spark", "nvllm worker"),
        "ssh://me@spark.local:2222": ("ssh://me@spark.local:2222", "nvllm worker"),
        "ssh://spark/srv/mine": ("ssh://spark", "nvllm --project /srv/mine worker"),
        "ssh://spark/~/mine": ("ssh://spark", "nvllm --project mine worker"),
        "ssh://spark/srv/a b; reboot": ("ssh://spark", "nvllm --project '/srv/a b; reboot' worker"),
        "ssh://[fe80::1]:22/srv": ("ssh://[fe80::1]:22", "nvllm --project /srv worker"),
    }
    assert {address: tuple(ssh.host(address).argv("worker")[-2:]) for address in rows} == rows
    bad = ["ssh://", "ssh://-oProxyCommand=x", "ssh://a b", "ssh://a\n", "ssh://a/\x1b[2J", "ssh://a:x", "ray://a", "a"]
    assert [code(address) for address in bad] == ["NV108"] * len(bad)


def code(address: str) -> str:
    """Return what ADDRESS is refused for."""
    with pytest.raises(Refused) as caught:
        ssh.host(address)
    return caught.value.refusals[0].code
