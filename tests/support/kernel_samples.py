"""A kernels layer in small: cubins that are headers alone, and a workbench on which Triton is a recorded answer."""

from __future__ import annotations

import json
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

from nvllm.core.canonical import sha256_file
from nvllm.core.lock import Lock, LockedFile, LockedRegistryBase, LockedWheel
from nvllm.kernels import kernellayer, stubs
from nvllm.kernels.kernellayer import KernelSources
from nvllm.kernels.stubs import Platform
from support import locks

FLAGS = {"sm_90": 0x5A055A, "sm_90a": 0x5A0D5A, "sm_120": 0x6007802, "sm_120a": 0x600780A, "sm_121a": 0x600790A}
"""e_flags as ptxas 12.8 (sm_90) and 12.9 write them."""

PLATFORM = Platform("x86_64", "3.12")
SITE = "opt/venv/lib/python3.12/site-packages"
SOURCE = "int launch(void);"
WANTED = KernelSources(("sm_120a", "sm_121a"), {"vllm/nvllm/zero.py": b"@triton.jit\ndef zero(): ...\n"})


def elf(machine: int, flags: int = 0, version: int = 0) -> bytes:
    """Return an ELF header and nothing behind it."""
    data = bytearray(64)
    data[:6] = b"\x7fELF\x02\x01"
    data[8] = version
    struct.pack_into("<H", data, 18, machine)
    struct.pack_into("<I", data, 48, flags)
    return bytes(data)


def cubin(target: str) -> bytes:
    return elf(190, FLAGS[target], 7 if target.startswith("sm_9") else 8)


def files(**code: str) -> dict[str, bytes]:
    """Return the files of a layer: for each target the code for that target, or for the one that CODE names."""
    targets = {"sm_120a": "sm_120a", "sm_121a": "sm_121a", **code}
    found = {kernellayer.KEY: json.dumps({"key": "3.6.0-key"}).encode()}
    for target, inside in targets.items():
        found[f"{stubs.base32(hashed(target))}/zero.cubin"] = cubin(inside)
    for key in stubs.keys(SOURCE, PLATFORM):
        found[f"{key}/launcher{PLATFORM.suffix}"] = elf(62)
    return found


def hashed(target: str) -> str:
    return locks.sha(target)


class Bench:
    """A workbench of which Triton's answer to a check is known: each kernel of `files` is a hit."""

    platform = PLATFORM

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def stub_keys(self, source: str) -> list[str]:
        return stubs.keys(source, PLATFORM)

    def scratch(self) -> Path:
        place = self.directory / "scratch"
        place.mkdir()
        return place

    def run(self, action: str, wanted: KernelSources, base: Path) -> dict[str, Any]:
        assert (action, wanted) == ("check", WANTED)
        assert base.is_dir()
        launched = [{"name": "zero", "target": target, "hash": hashed(target)} for target in ("sm_120a", "sm_121a")]
        return {
            "kernels": launched,
            "stubs": [{"name": "launcher", "source": SOURCE}],
            "launches": 400,
            "key": "3.6.0-key",
        }


def layer(path: Path, content: Mapping[str, bytes]) -> Path:
    """Write CONTENT, paths in the image, as the tar PATH."""
    with tarfile.open(path, "w") as tar:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, BytesIO(data))
    return path


def ptxas(release: str = "12.9", days: str = "Tue_May_27_02:18:05_PDT_2025") -> bytes:
    """Return what of a ptxas says its version."""
    return (
        f"\0Built on %s\0{days}\0Cuda compilation tools, release {release}, V{release}.86\0"
        f"Build cuda_{release}.r{release}/compiler.36037853_0\0"
    ).encode()


def triton(path: Path, **changed: bytes) -> Path:
    """Write a wheel with the files of Triton's that are looked at, some of them CHANGED, by the name of the file."""
    members = {
        "triton/__init__.py": b"",
        "triton/compiler/compiler.py": b"compiler",
        "triton/_C/libtriton.so": path.name.encode(),
        "triton/backends/nvidia/bin/ptxas": ptxas("12.8"),
        "triton/backends/nvidia/bin/ptxas-blackwell": ptxas(),
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data in members.items():
            wheel.writestr(name, changed.get(Path(name).stem, data))
    return path


def locked(path: Path, name: str = "triton") -> LockedWheel:
    return LockedWheel(name, "3.6.0", LockedFile(path.name, sha256_file(path), path.stat().st_size, "pypi"))


def lock(image: LockedWheel, *tools: LockedWheel) -> Lock:
    """Return the lock of an image for Python 3.12 whose Triton is IMAGE."""
    base = LockedRegistryBase("registry", "3.12", f"cuda@sha256:{64 * '0'}", "/usr/bin/python3.12")
    return replace(locks.GOOD, base=base, wheels=(image,), tools=tools)
