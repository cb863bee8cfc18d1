"""What the host is: parsing against files, asking programs that misbehave, and this very machine."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from nvllm.host import facts as host
from support.host_samples import put_program

_TCP_HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def _row(address: str, port: int, state: str, inode: int) -> str:
    peer = "0" * len(address)
    return f"   0: {address}:{port:04X} {peer}:0000 {state} 00000000:00000000 00:00000000 00000000  0 0 {inode} 1 x\n"


def _word_order(address: bytes) -> str:
    """Return ADDRESS as the kernel prints it on this machine."""
    words = [address[at : at + 4] for at in range(0, len(address), 4)]
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


def _proc(root: Path, tcp: str = "", tcp6: str | None = None) -> Path:
    (root / "net").mkdir(parents=True)
    (root / "net/tcp").write_text(_TCP_HEAD + tcp)
    if tcp6 is not None:
        (root / "net/tcp6").write_text(_TCP_HEAD + tcp6)
    return root


def _v4(text: str) -> str:
    return _word_order(socket.inet_pton(socket.AF_INET, text))


def _v6(text: str) -> str:
    return _word_order(socket.inet_pton(socket.AF_INET6, text))


def test_mem_available_is_the_kernels_figure_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  24 kB\nMemFree:  1 kB\nMemAvailable:   3145728 kB\nBuffers: 1 kB\n")
    assert host.memory(tmp_path)["MemAvailable"] == 3 * 2**30


@pytest.mark.parametrize("text", ["", "MemTotal: 12 kB\n", "MemAvailable: lots\n"])
def test_no_mem_available_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "meminfo").write_text(text)
    assert "MemAvailable" not in host.memory(tmp_path)
    assert host.memory(tmp_path / "nowhere") == {}


def test_disk_of_a_path_that_is_not_there_yet_is_its_parents(tmp_path: Path) -> None:
    there, later = host.disk(tmp_path), host.disk(tmp_path / "a/b/c")
    assert later.filesystem == there.filesystem == tmp_path.stat().st_dev
    assert later.free > 0
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("address", "known"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("10.1.2.3", "10.1.2.3"),
        ("127.0.0.53", "127.0.0.53"),
    ],
)
def test_listening_on_ipv4(tmp_path: Path, address: str, known: str) -> None:
    root = _proc(tmp_path / "proc", _row(_v4(address), 8000, "0A", 28))
    assert host.listeners(root) == (host.Listener(8000, address=known),)


@pytest.mark.parametrize(
    ("address", "known"),
    [
        ("::", "127.0.0.1"),
        ("::1", "127.0.0.1"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1", "fe80::1"),
    ],
)
def test_listening_on_ipv6(tmp_path: Path, address: str, known: str) -> None:
    root = _proc(tmp_path / "proc", "", _row(_v6(address), 8000, "0A", 28))
    assert host.listeners(root) == (host.Listener(8000, address=known),)


def test_connections_are_no_listeners(tmp_path: Path) -> None:
    root = _proc(tmp_path / "proc", _row(_v4("127.0.0.1"), 8000, "01", 28) + _row(_v4("127.0.0.1"), 8000, "06", 0))
    assert host.listeners(root) == ()


def test_the_holder_of_a_socket_is_named(tmp_path: Path) -> None:
    root = _proc(tmp_path / "proc", _row(_v4("0.0.0.0"), 8000, "0A", 28) + _row(_v4("0.0.0.0"), 22, "0A", 29))
    (root / "41/fd").mkdir(parents=True)
    (root / "41/comm").write_text("python3\n")
    (root / "41/fd/0").symlink_to("/dev/null")
    (root / "41/fd/3").symlink_to("socket:[28]")
    (root / "42").mkdir()  # a process that ended while we looked
    assert host.listeners(root) == (host.Listener(22), host.Listener(8000, 41, "python3"))


def test_this_process_is_found_behind_its_own_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = [listener for listener in host.listeners(Path("/proc")) if listener.port == port]
    assert [listener.pid for listener in found] == [os.getpid()]
    assert found[0].program


def test_gpus_are_read_from_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake nvidia-smi, since most machines have none."""
    put_program(
        tmp_path / "bin",
        "nvidia-smi",
        'echo "0, GPU-aa, NVIDIA GB10, 12.1, 580.95.05"',
        'echo "1, GPU-bb, NVIDIA RTX PRO 6000, 12.0, 580.95.05"',
    )
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert host.nvidia_gpus(10) == (
        (
            host.Gpu(0, "GPU-aa", "NVIDIA GB10", "12.1", "580.95.05"),
            host.Gpu(1, "GPU-bb", "NVIDIA RTX PRO 6000", "12.0", "580.95.05"),
        ),
        None,
    )


@pytest.mark.parametrize(
    ("name", "unified"),
    [
        ("NVIDIA GB10", True),
        ("NVIDIA Thor", True),
        ("Orin (nvgpu)", True),
        ("NVIDIA GB100", False),
        ("NVIDIA H100 PCIe", False),
        ("NVIDIA RTX PRO 6000", False),
    ],
)
def test_which_gpus_use_the_memory_of_the_host(name: str, unified: bool) -> None:
    assert host.Gpu(0, "GPU-aa", name, "12.1", "580.95.05").unified is unified


def test_no_nvidia_smi_is_no_gpu_and_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host.nvidia_gpus(10) == ((), None)
    assert host.container_toolkit(10) == (None, None)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (('echo "NVIDIA-SMI has failed"', "exit 9"), "nvidia-smi ended with status 9 and said: NVIDIA-SMI has failed"),
        (("exit 3",), "nvidia-smi ended with status 3 and said: nothing"),
        (('echo "No devices were found"',), "nvidia-smi printed no list of GPUs: No devices were found"),
        (("exec /bin/sleep 60",), "nvidia-smi did not answer within 0.2 s"),
    ],
)
def test_what_a_failing_nvidia_smi_says_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...], problem: str
) -> None:
    """A fake nvidia-smi: a driver that fails or hangs cannot be had on demand."""
    put_program(tmp_path / "bin", "nvidia-smi", *lines)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert host.nvidia_gpus(0.2) == ((), problem)


def test_a_program_that_cannot_be_started_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_program(tmp_path / "bin", "nvidia-ctk")
    (tmp_path / "bin/nvidia-ctk").write_text("#!/nowhere/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert host.container_toolkit(10) == (None, "nvidia-ctk cannot be run: No such file or directory")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("NVIDIA Container Toolkit CLI version 1.17.8", ("1.17.8", None)),
        ("nvidia-ctk version: 1.16.2", ("1.16.2", None)),
        ("hello", (None, "nvidia-ctk --version printed no version: hello")),
    ],
)
def test_the_toolkits_version_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, expected: tuple[str | None, str | None]
) -> None:
    """A fake nvidia-ctk that prints LINE."""
    put_program(
        tmp_path / "bin", "nvidia-ctk", f'echo "{line}"', 'echo "commit: f8daa5e26de9fd7eb79259040b6dd5a52060048c"'
    )
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert host.container_toolkit(10) == expected


def test_probe_of_this_machine(tmp_path: Path) -> None:
    facts = host.probe([tmp_path])
    assert facts.mem_available is not None
    assert facts.mem_available > 0
    assert facts.disks[str(tmp_path)].free > 0
    assert "lo" in facts.interfaces
    assert (facts.uid, facts.gid) == (os.geteuid(), os.getegid())
    assert (facts.engine, facts.engine_problem, facts.containers, facts.locks) == (None, None, (), None)


def test_probe_against_another_proc(tmp_path: Path) -> None:
    root = _proc(tmp_path / "proc", _row(_v4("0.0.0.0"), 8000, "0A", 28))
    (root / "meminfo").write_text("MemAvailable: 2 kB\n")
    facts = host.probe([], root)
    assert facts.mem_available == 2048
    assert [one.port for one in facts.listeners] == [8000]
    assert facts.disks == {}


# The processors

X86 = """\
processor	: {number}
vendor_id	: AuthenticAMD
cpu family	: 26
model		: 2
model name	: AMD EPYC
stepping	: 1
microcode	: 0x1000065
cpu MHz		: {mhz}
physical id	: {socket}
core id		: {core}
fpu		: yes
flags		: {flags}
bogomips	: 5192.24
power management:

"""
ARM = """\
processor	: {number}
BogoMIPS	: 2000.00
Features	: fp asimd evtstrm sve
CPU implementer	: 0x41
CPU architecture: 8
CPU variant	: 0x0
CPU part	: {part}
CPU revision	: 1

"""


def cpus(tmp_path: Path, text: str, nodes: int = 1) -> host.Cpu:
    """Return what is read where /proc/cpuinfo is TEXT, on a machine of so many NUMA NODES."""
    (tmp_path / "cpuinfo").write_text(text)
    for number in range(nodes):
        (tmp_path / f"devices/system/node/node{number}").mkdir(parents=True, exist_ok=True)
    (tmp_path / "devices/system/node/has_memory").touch()
    return host.cpu(tmp_path, tmp_path)


def x86(*, flags: str = "sse2 avx2 fma", mhz: str = "2596.124") -> str:
    """Return the cpuinfo of two sockets of two cores with two threads each."""
    places = [(socket, core) for socket in (0, 1) for core in (0, 1)] * 2
    return "".join(
        X86.format(number=number, socket=socket, core=core, flags=flags, mhz=mhz)
        for number, (socket, core) in enumerate(places)
    )


def test_processors_of_x86(tmp_path: Path) -> None:
    found = cpus(tmp_path, x86(), nodes=2)
    assert (found.kind, found.flags) == ("AuthenticAMD 26 2", ("avx2", "fma", "sse2"))
    assert (found.count, found.cores, found.nodes) == (8, 4, 2)
    assert found.machine == os.uname().machine


def test_processors_of_arm(tmp_path: Path) -> None:
    """Two kinds of core in one machine, as in a GB10; nothing says which threads share a core, so none do."""
    found = cpus(tmp_path, "".join(ARM.format(number=n, part="0xd85" if n < 2 else "0xd87") for n in range(4)))
    assert found.kind == "0x41 8 0x0 0xd85, 0x41 8 0x0 0xd87"
    assert found.flags == ("asimd", "evtstrm", "fp", "sve")
    assert (found.count, found.cores, found.nodes) == (4, 4, 1)


def test_what_changes_from_one_moment_to_the_next_is_not_in_it(tmp_path: Path) -> None:
    before = cpus(tmp_path, x86())
    after = x86(mhz="4100.001", flags="fma sse2 avx2").replace("0x1000065", "0x1000066").replace("5192.24", "5100.00")
    assert cpus(tmp_path, after) == before


def test_a_flag_counts_if_every_processor_has_it(tmp_path: Path) -> None:
    one = X86.format(number=8, socket=0, core=4, flags="sse2 avx2", mhz="1")
    assert cpus(tmp_path, x86() + one).flags == ("avx2", "sse2")


def test_processors_that_the_kernel_does_not_tell_of(tmp_path: Path) -> None:
    assert host.cpu(tmp_path, tmp_path) == host.Cpu(os.uname().machine, "", (), 0, 0, 0)


def test_the_processors_of_this_machine() -> None:
    found = host.cpu(Path("/proc"))
    assert found.count == os.sysconf("SC_NPROCESSORS_ONLN")
    assert 1 <= found.cores <= found.count
    assert found.flags
    assert found == host.probe([]).cpu
