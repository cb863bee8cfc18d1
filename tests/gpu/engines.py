"""Docker and Podman themselves, on a machine that has neither: from Debian's packages, as `pack.py` packs them.

An engine is root in the unpacked packages and has mounts of its own; network and processes are those of its caller.
What an engine and nvllm name by one path is given to both. NVIDIA's container toolkit is in no archive of packages: its
runtime is `cdi.py`, and its program only says a version. Needs root, Linux, and the Python packages of nvllm.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import docker
import requests

from gpu import cdi

Product = Literal["Docker", "Podman"]
PRODUCTS: tuple[Product, ...] = ("Docker", "Podman")

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
RUNTIME, SPECIFICATION = "usr/local/bin/nvllm-gpu-runtime", "etc/cdi/nvidia.json"
CHUNK = 1 << 20

_NOT_THERE = (docker.errors.DockerException, requests.exceptions.RequestException, OSError)


@dataclass
class Engine:
    """An engine of PRODUCT in ROOT, the unpacked packages. DATA is its own directory of images, below ROOT's `work`.

    SHARED are the directories that containers mount, and the driver's; SOCKET is in one of them.
    """

    product: Product
    root: Path
    shared: Sequence[Path]
    socket: Path
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @classmethod
    def below(cls, directory: Path, shared: Sequence[Path], product: Product, at: Path) -> Engine:
        """Return the engine of PRODUCT in what lay.py laid out in DIRECTORY; its socket is in `AT/engine`, now made."""
        (at / "engine").mkdir(parents=True)
        return cls(product, directory / "engines", shared, at / "engine/engine.sock")

    @property
    def data(self) -> str:
        return f"/work/{self.product.lower()}"

    @property
    def log(self) -> Path:
        return self.socket.with_name(f"{self.product.lower()}.log")

    def client(self, seconds: int = 60) -> contextlib.closing[docker.DockerClient]:
        return contextlib.closing(docker.DockerClient(base_url=f"unix://{self.socket}", timeout=seconds))

    def start(self, specification: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Start it with the CDI SPECIFICATION, and return what it says that it is.

        Raises RuntimeError with the end of its log if it ends, or does not answer within SECONDS.
        """
        prepare(self.root, specification)
        (self.root / self.data.lstrip("/")).mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as stream:
            argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", self.script()]
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.process.poll() is None:
            try:
                with self.client() as client:
                    version, info = client.version(), client.info()
                return {
                    "version": version["Version"],
                    "api": version["ApiVersion"],
                    "storage": info["Driver"],
                    "cgroups": info.get("CgroupVersion"),
                    "cdi": info.get("CDISpecDirs"),
                    "parts": {part["Name"]: part["Version"] for part in version.get("Components") or ()},
                }
            except _NOT_THERE:
                time.sleep(0.2)
        raise RuntimeError(f"{self.product} does not answer: {self.log_end()}")

    def log_end(self) -> str:
        return self.log.read_text(errors="replace")[-2500:]

    def script(self) -> str:
        """Return the shell script that makes the mounts and becomes the engine."""
        root = shlex.quote(str(self.root))
        mounted = [Path("/proc"), Path("/sys"), Path("/dev"), Path("/run"), *self.shared]
        lines = ["set -e", f"mount --bind {root} {root}", f"cd {root}"]
        for path in mounted:
            inside = shlex.quote(str(path.relative_to("/")))
            lines += [f"mkdir -p {inside}", f"mount --rbind {shlex.quote(str(path))} {inside}"]
        environment = ["env", "-i", f"PATH={PATH}", "HOME=/root", "TMPDIR=/work/tmp"]
        # Hooks of a container want the root of the mounts, which chroot does not change.
        lines += ["pivot_root . oldroot", "cd /", f"exec {shlex.join([*environment, *self.command()])}"]
        return "\n".join(lines)

    def command(self) -> list[str]:
        if self.product == "Podman":
            at = ["--root", self.data, "--runroot", "/run/nvllm-gpu-podman", "--storage-driver", "overlay"]
            return ["podman", *at, "system", "service", "--time=0", f"unix://{self.socket}"]
        at = ["--data-root", self.data, "--exec-root", "/run/nvllm-gpu-docker", "--pidfile", "/run/nvllm-gpu.pid"]
        return ["dockerd", "--config-file", "/etc/docker/daemon.json", *at, "--host", f"unix://{self.socket}"]

    def end(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()

    def load(self, argv: Sequence[str], tags: Sequence[str], labels: Mapping[str, str]) -> str:
        """Import the archive that ARGV writes as the image TAGS with LABELS, and return its id.

        Raises RuntimeError with what ARGV or the engine says.
        """
        changes = [f"LABEL {name}={value}" for name, value in labels.items()]
        repository, _, tag = tags[0].partition(":")
        with self.client(1800) as client, subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
            answer = client.api.import_image_from_stream(chunks(process), repository, tag, changes)
            if process.wait() != 0:
                raise RuntimeError(f"{argv[0]} ended with {process.returncode}")
            try:
                image: str = client.api.inspect_image(tags[0])["Id"]
            except docker.errors.ImageNotFound as error:
                raise RuntimeError(f"no image: {str(answer)[-1000:]}") from error
            for other in tags[1:]:
                name, _, version = other.partition(":")
                client.api.tag(image, name, version)
        return image if image.startswith("sha256:") else f"sha256:{image}"


def chunks(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Yield what PROCESS writes."""
    assert process.stdout is not None
    while data := process.stdout.read(CHUNK):
        yield data


def prepare(root: Path, specification: Mapping[str, Any]) -> None:
    """Write into ROOT, the unpacked packages, what the engines read: Docker's configuration and the SPECIFICATION."""
    for name in ("oldroot", "work/tmp", "etc/cdi", "etc/docker", "usr/local/bin", "root", "tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / SPECIFICATION).write_text(json.dumps(specification, indent=1), encoding="utf-8")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    resolver = root / "etc/resolv.conf"
    resolver.unlink(missing_ok=True)
    resolver.write_text("nameserver 127.0.0.1\n")
    config = {
        "features": {"cdi": True},
        "cdi-spec-dirs": ["/etc/cdi"],
        "runtimes": {"nvidia": {"path": f"/{RUNTIME}"}},
        "default-runtime": "nvidia",
    }
    (root / "etc/docker/daemon.json").write_text(json.dumps(config), encoding="utf-8")
    edit = shlex.join([sys.executable, str(Path(cdi.__file__)), str(root / SPECIFICATION)])
    programs = {
        RUNTIME: f"""#!/bin/bash
# In the place of NVIDIA's container runtime: adds the GPUs that Docker's --gpus names, and becomes runc.
bundle= creates= before=
for word; do
  if [ "$before" = --bundle ]; then bundle=$word; fi
  if [ "$word" = create ]; then creates=yes; fi
  before=$word
done
if [ "$creates" ]; then chroot /oldroot {edit} "$bundle" || exit 1; fi
exec runc "$@"
""",
        f"usr/local/bin/{cdi.HOOK}": "#!/bin/bash\necho 'the runtime takes this hook out' >&2\nexit 1\n",
    }
    for name, text in programs.items():
        (root / name).write_text(text, encoding="utf-8")
        (root / name).chmod(0o755)
