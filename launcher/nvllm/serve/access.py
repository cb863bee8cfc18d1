"""Who may ask an engine: the file with the API key, and the address that the port is published on.

The key stays in its file. The container gets the file as a read-only mount, the HTTP server in it reads it
(`runtime/access.py`), and nvllm reads it again for each request of its own. It is in no plan, log or evidence.
"""

from __future__ import annotations

import os
import shlex
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

from nvllm import runtime
from nvllm.core import reading
from nvllm.core.plan import EVERY_ADDRESS
from nvllm.core.refusal import Refusal, Refused, collected, refuse, refusing
from nvllm.core.spec import LOOPBACK, Access

_SHORTEST, _LONGEST = 16, 512
"""Characters of a key. A shorter one can be guessed; a longer one is some other file."""


def program() -> bytes:
    """Return the program that asks for the key inside the container."""
    return reading.content(Path(runtime.__file__).with_name("access.py"), reading.CONFIGURATION)


def refusals(access: Access, user: str, project: Path) -> list[Refusal]:
    """Return why ACCESS cannot be as the profile says, for an engine of USER, ``uid:gid``, served from PROJECT.

    NV525: the address is not one of this host. NV604: the key file cannot be read by the engine, can be read by others,
    lies in the project, or holds no key.
    """
    wrong = [] if access.publish in {LOOPBACK, EVERY_ADDRESS} else _address(access.publish)
    if access.key_file is not None:
        with collected(wrong):
            _key(access.key_file, int(user.partition(":")[0]), project)
    return wrong


def header(access: Access) -> Mapping[str, str]:
    """Return the header by which a request shows that it may ask; empty if no key is needed.

    Raises Refused NV604 if the file no longer holds a key.
    """
    if access.key_file is None:
        return {}
    return {"Authorization": f"Bearer {_content(access.key_file, os.geteuid())}"}


def _address(address: str) -> list[Refusal]:
    # A datagram socket on any port: it takes no port that an engine listens on.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            expected = "an address of this host, or 0.0.0.0 for all of them"
            cure = "correct `publish:` in the profile's `access:`; `ip -4 address` lists the addresses"
            return [Refusal("NV525", f"access.publish {address}", expected, error.strerror or str(error), cure)]
    return []


def _key(path: str, owner: int, project: Path) -> None:
    """Check the key file at PATH, whose owner must be the user OWNER. Raises Refused NV604."""
    if Path(path).resolve().is_relative_to(project.resolve()):
        cure = "move it out of the project, and correct `key-file:` in the profile's `access:`"
        raise _unfit(path, "a file outside of the project", "a file that version control may keep", cure)
    with refusing("NV604", path, "a file with an API key", _made(path, owner)):
        status = os.lstat(path)  # a link is refused: who may replace it decides where the key comes from
    if not stat.S_ISREG(status.st_mode):
        cure = "put a copy of the file itself there"
        raise _unfit(path, "a regular file", "something else, or a link", cure)
    if status.st_uid != owner:
        expected = f"a file of user {owner}, as whom the engine runs"
        raise _unfit(path, expected, f"a file of user {status.st_uid}", shlex.join(["sudo", "chown", str(owner), path]))
    if status.st_mode & 0o077 or not status.st_mode & 0o400:
        problem = f"mode {stat.S_IMODE(status.st_mode):04o}"
        raise _unfit(path, "a file that its owner alone can read", problem, shlex.join(["chmod", "600", path]))
    _content(path, owner)


def _content(path: str, owner: int) -> str:
    """Return the key in the file at PATH. Raises Refused NV604, which does not show it."""
    expected = f"one line of {_SHORTEST} to {_LONGEST} printable characters without a space"
    try:
        with refusing("NV604", path, expected, _made(path, owner)):
            key = reading.content(Path(path), reading.CONFIGURATION).decode("ascii").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise _unfit(path, expected, "bytes that are not ASCII", _made(path, owner)) from error
    if not _SHORTEST <= len(key) <= _LONGEST:
        raise _unfit(path, expected, f"{len(key)} characters", _made(path, owner))
    if not key.isprintable() or " " in key:
        raise _unfit(path, expected, "a space, or a character that cannot be printed", _made(path, owner))
    return key


def _made(path: str, owner: int) -> str:
    """Return the command that makes a key file for the user OWNER."""
    quoted = shlex.quote(path)
    given = f" && sudo chown {owner} {quoted}" if owner != os.geteuid() else ""
    return f"(umask 077; openssl rand -hex 32 > {quoted}){given}"


def _unfit(path: str, expected: str, problem: str, cure: str) -> Refused:
    return refuse("NV604", path, expected, problem, cure)
