"""Signatures of manifests by SSH keys: ``ssh-keygen -Y sign`` and ``verify``, in the namespace ``nvllm``.

A signature proves that the holder of a key in the allowed signers file has blessed exactly these bytes. OpenSSH makes
and checks it; nvllm implements nothing of it, and never reads a key.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import tempfile
from pathlib import Path

from nvllm.core import proc
from nvllm.core.refusal import refuse, refusing

NAMESPACE = "nvllm"
_PROGRAM, _PACKAGE = "ssh-keygen", "openssh-client"
_TIMEOUT = 60.0
"""Seconds; a key with a passphrase waits for its agent."""


def sign(data: bytes, key: Path, where: str) -> bytes:
    """Return the signature of DATA by KEY: a private key, or a public one whose private half an agent has.

    Raises Refused NV909 for WHERE if nothing is signed, NV512 without ssh-keygen.
    """
    done = run(["-Y", "sign", "-n", NAMESPACE, "-f", str(key)], data)
    if done.returncode != 0:
        cure = shlex.join(["ssh-add", str(key)])
        raise refuse("NV909", where, f"a signature by {key}", last_line(done), cure)
    return done.stdout


def verify(data: bytes, signature: bytes, signers: Path, where: str, cure: str) -> str:
    """Return who signed: the principal of SIGNERS, an allowed signers file, whose SIGNATURE of DATA this is.

    Raises Refused NV909 for WHERE, with CURE, if nobody in it did, or if others may write to it.
    """
    _trusted(signers)
    with tempfile.TemporaryDirectory(prefix="nvllm-signature-") as directory:
        file = Path(directory, "signature")  # ssh-keygen takes the data from its input, and a signature from a file
        file.write_bytes(signature)
        # This only looks the key up, and checks no signature; `verify` checks it, for one principal.
        named = run(["-Y", "find-principals", "-s", str(file), "-f", str(signers)], b"")
        principals = named.stdout.decode(errors="replace").splitlines() if named.returncode == 0 else []
        problem = last_line(named)
        for principal in principals:
            argv = ["-Y", "verify", "-n", NAMESPACE, "-f", str(signers), "-I", principal, "-s", str(file)]
            done = run(argv, data)
            if done.returncode == 0:
                return principal
            problem = last_line(done)
    raise refuse("NV909", where, f"a signature of these bytes by a signer in {signers}", problem, cure)


def _trusted(signers: Path) -> None:
    """Raise Refused NV909 unless SIGNERS is a file that only root and we can write."""
    cure = f"write the signers into {signers} (man ssh-keygen, ALLOWED SIGNERS), mode 644"
    expected = "an allowed signers file that no other user can write"
    with refusing("NV909", str(signers), expected, cure):
        info = os.stat(signers)
    if not stat.S_ISREG(info.st_mode) or info.st_uid not in {0, os.geteuid()} or info.st_mode & 0o022:
        rights = f"mode {stat.S_IMODE(info.st_mode):04o}, user {info.st_uid}"
        raise refuse("NV909", str(signers), expected, rights, f"chmod 644 {shlex.quote(str(signers))}")


def program() -> str:
    """Return the path of ssh-keygen. Raises Refused NV512 if it is not here."""
    return proc.require(_PROGRAM, _PACKAGE)


def run(arguments: list[str], data: bytes) -> proc.Completed:
    """Return what ssh-keygen did with ARGUMENTS and the input DATA: a failure too, or no answer in time."""
    # There is no terminal to ask for a passphrase at: an agent must have it.
    env = proc.environment({"SSH_ASKPASS_REQUIRE": "never"}, passed=("SSH_AUTH_SOCK",))
    argv0 = program()
    try:
        return proc.run([argv0, *arguments], env=env, timeout=_TIMEOUT, stdin=data)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess([argv0, *arguments], 1, b"", b"no answer in time")


def last_line(done: proc.Completed) -> str:
    """Return the last line that the program printed."""
    lines = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else f"exit status {done.returncode}"
