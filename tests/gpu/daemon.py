"""A stand-in for a container engine, on a machine that has none: `python -m gpu.daemon DIRECTORY`.

It answers on the socket `DIRECTORY/engine.sock` as Docker does, as far as `nvllm` asks: version, images, containers,
logs and commands in a container. So `DOCKER_HOST` may name it, and `nvllm` is the real one, client and all. DIRECTORY
also holds `image.json`, the only image: what the API says of it, and `root`, its files (see `container.py`).

It is no engine, and its version is 0.0.0: nothing is pulled, built or loaded, a container has no limit of memory,
processes or files, no network of its own and no policy of logs and restarts, and what it does not know it refuses. Real
engines with a GPU are for `containers.py`; this one serves the other cases, and the tests of a machine without a GPU.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer, ThreadingUnixStreamServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

VERSION = {"Version": "0.0.0", "ApiVersion": "1.47", "Components": [{"Name": "gpu.daemon, no engine"}]}
INFO = {"Driver": "none", "SecurityOptions": [], "DriverStatus": []}

DONE = frozenset({"CapDrop", "DeviceRequests", "IpcMode", "Mounts", "PortBindings", "ReadonlyRootfs", "SecurityOpt"})
DONE |= {"ShmSize", "Tmpfs"}
LEFT = frozenset({"LogConfig", "Memory", "MemorySwap", "NetworkMode", "PidsLimit", "RestartPolicy", "Ulimits"})
"""What a container may be asked for: what is done, and what is left out."""

HARDENED = {"CapDrop": ["ALL"], "SecurityOpt": ["no-new-privileges"], "IpcMode": "private"}
"""What `container.py` always does, so that nothing else may be asked for."""

PORT = 8000
"""Where a container listens, which has the host's network. Another port that is published leads there."""

_PAUSE = 0.05


class WrongRequestError(Exception):
    """A request that a container engine would refuse, or that this is no stand-in for."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def pump(source: socket.socket, target: socket.socket) -> None:
    """Send to TARGET what SOURCE says, to its end."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


class Forward(BaseRequestHandler):
    """A connection to a published port."""

    def handle(self) -> None:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", PORT)) as inner:
            back = threading.Thread(target=pump, args=(inner, self.request), daemon=True)
            back.start()
            pump(self.request, inner)
            back.join()


class Published(ThreadingTCPServer):
    """A port of the host that leads to that of a container."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Forward)
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()


@dataclass
class Container:
    """A container, as it was asked for, and its process if it was started."""

    id: str
    name: str
    description: dict[str, Any]
    directory: Path
    process: subprocess.Popen[bytes] | None = None
    pid: int = 0
    lines: list[tuple[int, bytes]] = field(default_factory=list)
    """Of its output: 1 or 2, and the line with the time before it."""
    open: int = 0
    """How many of its two streams may still say something."""
    published: list[Published] = field(default_factory=list)

    @property
    def status(self) -> str:
        if self.process is None:
            return "created"
        return "running" if self.process.poll() is None else "exited"

    @property
    def ended(self) -> bool:
        return self.status == "exited" and self.open == 0

    def start(self) -> None:
        """Start its process. Raises WrongRequestError if that does not come up."""
        self.directory.mkdir(parents=True)
        (self.directory / "root").mkdir()
        file = self.directory / "container.json"
        file.write_text(json.dumps(self.description), encoding="utf-8")
        argv = [sys.executable, str(Path(__file__).with_name("container.py")), str(file)]
        self.process = subprocess.Popen(
            [*argv, str(self.directory / "root")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.strip().isdigit():
            assert self.process.stderr is not None
            raise WrongRequestError(500, self.process.stderr.read().decode(errors="replace")[-400:] or "it ended")
        self.pid = int(line)
        self.open = 2
        for number, stream in ((1, self.process.stdout), (2, self.process.stderr)):
            threading.Thread(target=self._read, args=(number, stream), daemon=True).start()
        bindings = (self.description["HostConfig"].get("PortBindings") or {}).values()
        ports = {int(binding["HostPort"]) for every in bindings for binding in every}
        self.published = [Published(port) for port in sorted(ports - {PORT})]

    def _read(self, number: int, stream: Any) -> None:
        for line in stream:
            now = time.time_ns()
            stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now // 10**9))}.{now % 10**9:09}Z "
            self.lines.append((number, stamp.encode() + line))
        self.open -= 1

    def signal(self, number: int) -> None:
        if self.status == "running":
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it, and all its processes with the first one."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
        while self.published:
            server = self.published.pop()
            server.shutdown()
            server.server_close()

    def run(self, argv: list[str]) -> tuple[int, bytes]:
        """Run ARGV in the running container as its user, with its variables; return the status, and what it printed."""
        uid, _, gid = self.description["User"].partition(":")
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--ipc", "--pid", "--root"]
        done = subprocess.run(
            [*enter, f"--setuid={uid}", f"--setgid={gid}", "env", "-i", "--chdir=/", *self.description["Env"], *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return done.returncode, done.stdout

    def processor(self) -> float:
        """Return the seconds that its processes, and those of them that have ended, have used."""
        try:
            mine = os.readlink(f"/proc/{self.pid}/ns/pid")
        except OSError:
            return 0.0
        ticks = 0
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(process / "ns/pid") == mine:
                    ticks += sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:15]))
            except OSError:  # it has just ended
                continue
        return ticks / os.sysconf("SC_CLK_TCK")


class Machine:
    """All containers, and the one image, below DIRECTORY."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.image: dict[str, Any] = json.loads((directory / "image.json").read_text(encoding="utf-8"))
        self.containers: dict[str, Container] = {}
        self.commands: dict[str, tuple[Container, list[str], int | None]] = {}

    def find(self, name: str) -> Container:
        """Return the container with the id or the name NAME. Raises WrongRequestError if there is none."""
        for container in self.containers.values():
            if name in {container.id, container.name}:
                return container
        raise WrongRequestError(404, f"no such container: {name}")

    def found_image(self, reference: str) -> dict[str, Any]:
        """Return what the API says of the image REFERENCE. Raises WrongRequestError if there is none."""
        image: dict[str, Any] = self.image["said"]
        if reference not in {image["Id"], *image["RepoTags"]}:
            raise WrongRequestError(404, f"no such image: {reference}")
        return image

    def create(self, name: str, asked: dict[str, Any]) -> str:
        """Create the container NAME as ASKED, and return its id. Raises WrongRequestError for what is not known."""
        self.found_image(asked["Image"])
        host: dict[str, Any] = asked.get("HostConfig") or {}
        refuse_unknown(host)
        made = secrets.token_hex(32)
        description = {
            "root": self.image["root"],
            "Entrypoint": asked.get("Entrypoint") or [],
            "Cmd": asked.get("Cmd") or [],
            "Env": asked.get("Env") or [],
            "User": asked.get("User") or "0:0",
            "Labels": asked.get("Labels") or {},
            "HostConfig": host,
        }
        if name and any(container.name == name for container in self.containers.values()):
            raise WrongRequestError(409, f"the name {name} is in use")
        self.containers[made] = Container(
            made, name or made[:12], description, self.directory / "containers" / made[:12]
        )
        return made

    def remove(self, name: str) -> None:
        container = self.find(name)
        container.kill()
        del self.containers[container.id]

    def archive(self, path: str) -> bytes:
        """Return the file PATH of the image in a tar archive. Raises WrongRequestError if there is none."""
        root: Mapping[str, str] = self.image["root"]
        files = (Path(host) / path[len(at) :].lstrip("/") for at, host in root.items() if path.startswith(f"{at}/"))
        source = next((file for file in files if file.is_file()), None)
        if source is None:
            raise WrongRequestError(404, f"no such file: {path}")
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:
            tar.add(source, source.name)
        return stream.getvalue()

    def end(self) -> None:
        for key in list(self.containers):
            self.remove(key)


def refuse_unknown(host: Mapping[str, Any]) -> None:
    """Raise WrongRequestError if HOST, a host configuration, asks for what `container.py` does not do."""
    asked = {name for name, value in host.items() if value}
    if unknown := asked - DONE - LEFT:
        raise WrongRequestError(400, f"this stand-in for an engine does not know {', '.join(sorted(unknown))}")
    for name, only in HARDENED.items():
        if host.get(name) not in (None, only):
            raise WrongRequestError(400, f"this stand-in for an engine knows {name} {only} alone")
    if other := set(host.get("PortBindings") or {}) - {f"{PORT}/tcp"}:
        raise WrongRequestError(400, f"this stand-in for an engine publishes port {PORT} alone, not {', '.join(other)}")


def frame(number: int, text: bytes) -> bytes:
    """Return TEXT as a part of the stream NUMBER, 1 or 2, of a container's output."""
    return struct.pack(">BxxxL", number, len(text)) + text


def described(container: Container) -> dict[str, Any]:
    """Return what the API says of a container."""
    code = container.process.returncode if container.process is not None and container.status == "exited" else 0
    return {
        "Id": container.id,
        "Name": f"/{container.name}",
        "Config": {"Tty": False, "Labels": container.description["Labels"]},
        "HostConfig": {"LogConfig": {"Type": "json-file"}},
        "State": {"Status": container.status, "ExitCode": code, "OOMKilled": False},
    }


class Handler(BaseHTTPRequestHandler):
    """One request. The machine is the server's."""

    @property
    def machine(self) -> Machine:
        machine: Machine = self.server.machine  # type: ignore[attr-defined]  # `serve` sets it
        return machine

    def address_string(self) -> str:
        return "a client"  # the socket's own has no address

    def log_message(self, *_: object) -> None:
        pass

    def _json(self, document: object, status: int = 200) -> None:
        self._bytes(json.dumps(document).encode(), status)

    def _bytes(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self) -> None:
        url = urlsplit(self.path)
        steps = unquote(url.path).strip("/").split("/")
        if steps[0].startswith("v1."):
            steps = steps[1:]
        asked = {name: values[-1] for name, values in parse_qs(url.query).items()}
        sent = self.rfile.read(int(self.headers["Content-Length"] or 0))
        body: dict[str, Any] = json.loads(sent) if sent.strip() else {}
        try:
            self._route(self.command, steps, asked, body)
        except WrongRequestError as error:
            self._json({"message": str(error)}, error.status)
        except BrokenPipeError:  # the client has what it wanted
            return

    def _route(self, method: str, steps: list[str], asked: Mapping[str, str], body: dict[str, Any]) -> None:
        machine = self.machine
        match [method, *steps]:
            case [_, "_ping"]:
                self._bytes(b"OK")
            case ["GET", "version"]:
                self._json(VERSION)
            case ["GET", "info"]:
                self._json(INFO)
            case ["GET", "images", "json"]:
                self._json([{"Id": machine.image["said"]["Id"]}])
            case ["GET", "images", *name, "json"]:
                self._json(machine.found_image("/".join(name)))
            case ["GET", "containers", "json"]:
                self._json(
                    [
                        {
                            "Id": container.id,
                            "Names": [f"/{container.name}"],
                            "Labels": container.description["Labels"],
                            "State": container.status,
                        }
                        for container in machine.containers.values()
                    ]
                )
            case ["POST", "containers", "create"]:
                self._json({"Id": machine.create(asked.get("name", ""), body), "Warnings": []}, 201)
            case ["DELETE", "containers", name]:
                machine.remove(name)
                self._json({}, 200)
            case ["POST", "exec", command, "start"]:
                self._run(command)
            case ["GET", "exec", command, "json"]:
                self._json({"ExitCode": machine.commands[command][2]})
            case [_, "containers", name, verb]:
                self._container(machine.find(name), verb, asked, body)
            case _:
                raise WrongRequestError(404, f"this stand-in for an engine knows no {method} {'/'.join(steps)}")

    def _container(self, container: Container, verb: str, asked: Mapping[str, str], body: dict[str, Any]) -> None:
        match verb:
            case "json":
                self._json(described(container))
            case "start":
                container.start()
                self._json({}, 200)
            case "stop":
                self._stop(container, float(asked.get("t", 10)))
                self._json({}, 200)
            case "kill":
                container.kill()
                self._json({}, 200)
            case "archive":
                self._bytes(self.machine.archive(asked["path"]))
            case "stats":
                used = round(container.processor() * 10**9)
                self._json({"memory_stats": {}, "cpu_stats": {"cpu_usage": {"total_usage": used}}})
            case "logs":
                self._logs(container, follow=asked.get("follow") in {"1", "true", "True"})
            case "exec":
                made = secrets.token_hex(32)
                self.machine.commands[made] = (container, list(body["Cmd"]), None)
                self._json({"Id": made}, 201)
            case _:
                raise WrongRequestError(404, f"this stand-in for an engine knows no {verb} of a container")

    def _stop(self, container: Container, patience: float) -> None:
        container.signal(signal.SIGTERM)
        until = time.monotonic() + patience
        while container.status == "running" and time.monotonic() < until:
            time.sleep(_PAUSE)
        container.kill()

    def _stream(self) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "application/vnd.docker.raw-stream")
        self.end_headers()
        self.wfile.flush()

    def _logs(self, container: Container, *, follow: bool) -> None:
        self._stream()
        for number, line in said_by(container, follow=follow):
            self.wfile.write(frame(number, line))

    def _run(self, command: str) -> None:
        container, argv, _ = self.machine.commands[command]
        status, output = container.run(argv)
        self.machine.commands[command] = (container, argv, status)
        self._stream()
        time.sleep(_PAUSE)  # the client reads what follows the headers past its own buffer
        self.wfile.write(frame(1, output) if output else b"")

    do_GET = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815 - the names that http.server calls


def said_by(container: Container, *, follow: bool) -> Iterator[tuple[int, bytes]]:
    """Yield what a container has said, and if FOLLOW what it says until it ends."""
    at = 0
    while True:
        ended = container.ended
        while at < len(container.lines):
            yield container.lines[at]
            at += 1
        if ended or not follow or container.process is None:
            return
        time.sleep(_PAUSE)


class Server(ThreadingUnixStreamServer):
    """The socket of a MACHINE."""

    daemon_threads = True

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        new = machine.directory / "engine.new"
        super().__init__(str(new), Handler)
        new.rename(machine.directory / "engine.sock")  # who finds it can connect


def serve(directory: Path) -> None:
    """Answer on the socket in DIRECTORY until SIGTERM, which ends every container."""
    machine = Machine(directory)
    with Server(machine) as server:
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
        server.serve_forever(poll_interval=0.1)
    machine.end()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
