"""The key by which a new project's blessings are signed: one that is there, or a new one that ssh-keygen makes."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nvllm.cache import signature
from nvllm.core import durable, reading
from nvllm.core.refusal import Refusal, refuse, refusing

_PRINCIPAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@-]{0,199}")
"""Of a pattern of OpenSSH's (`*`, `?`, `!`, a list with commas) anybody could be the signer."""
_PUBLIC = re.compile(r"((?:ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/]+={0,2})(?: [^\n]*)?\n?")


@dataclass(frozen=True, slots=True)
class Signer:
    """PRINCIPAL signs by KEY. PUBLIC is its public half, type and base64, None while there is no such key."""

    principal: str
    key: Path
    public: str | None = None

    @property
    def entry(self) -> str:
        """The line of an allowed signers file that lets the principal sign manifests, and nothing else."""
        return f'{self.principal} namespaces="{signature.NAMESPACE}" {self.public or "KEY"}\n'


def unusable(principal: str | None, key: Path | None, directory: Path) -> Iterator[Refusal]:
    """Yield what is wrong with PRINCIPAL and KEY, as they are asked for, for a project in DIRECTORY."""
    if principal is not None and not _PRINCIPAL.fullmatch(principal):
        expected = "a name or an address: letters, digits and . _ + @ -, not starting with a sign"
        yield Refusal("NV108", "--signer", expected, ascii(principal[:80]), "--signer you@example.org")
    if key is None:
        return
    if principal is None:
        yield Refusal("NV108", "--key", "--signer with it: whose key it is", "--key alone", "add --signer PRINCIPAL")
    if Path(os.path.realpath(key)).is_relative_to(os.path.realpath(directory)):
        expected, cure = "a key outside the project, which is committed", "name another --key, or leave it out"
        yield Refusal("NV108", "--key", expected, str(key), cure)


def of(principal: str, key: Path) -> Signer:
    """Return PRINCIPAL with KEY, whose signature was made and checked if it is there; nothing is written.

    Raises Refused NV512 without ssh-keygen, NV108 for a file that is no key, NV909 for a key that does not sign.
    """
    signature.program()
    if os.path.lexists(key):
        return _proved(Signer(principal, key, _public(key)))
    if os.path.lexists(beside := _beside(key)):
        cure = f"name another --key; or look what it is, and remove it: {shlex.quote(str(beside))}"
        raise refuse("NV108", f"--key {key}", "a key, or neither it nor its public half", f"only {beside}", cure)
    return Signer(principal, key)


def make(signer: Signer) -> Signer:
    """Return SIGNER with a public half: KEY is made if it has none, without a passphrase, mode 0600.

    It appears whole, by a link that fails if a file is there. Raises Refused NV920 if KEY cannot be written.
    """
    if signer.public is not None:
        return signer
    key, beside = signer.key, _beside(signer.key)
    with durable.writing(key, "NV920"):
        key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".nvllm-key-", dir=key.parent) as directory:
            made = Path(directory, "key")
            done = signature.run(["-q", "-t", "ed25519", "-N", "", "-C", signer.principal, "-f", str(made)], b"")
            if done.returncode != 0:
                cure = shlex.join(["ssh-keygen", "-t", "ed25519", "-f", str(key)])
                raise refuse("NV920", str(key), "a new key by ssh-keygen", signature.last_line(done), cure)
            new = _proved(replace(signer, key=made, public=_public(made)))
            # Links, which fail if somebody else has just made a key of that name; a rename would replace it.
            os.link(_beside(made), beside)
            try:
                os.link(made, key)
            except OSError:
                beside.unlink()
                raise
        durable.sync_directory(key.parent)
    return replace(new, key=key)


def _beside(key: Path) -> Path:
    return Path(f"{key}.pub")


def _public(key: Path) -> str:
    """Return the public half of KEY, which may be one itself. Raises Refused NV108 if there is none."""
    expected, cure = "an SSH key that can be read", "name a key that `ssh-keygen -y -f PATH` reads, or a new path"
    with refusing("NV108", f"--key {key}", expected, cure):
        texts = [reading.content(path, reading.CONFIGURATION) for path in (key, _beside(key)) if os.path.lexists(path)]
    done = signature.run(["-y", "-P", "", "-f", str(key)], b"")  # -P: nobody is asked for a passphrase
    for content in (*texts, done.stdout):
        public = _PUBLIC.fullmatch(content.decode("ascii", errors="replace"))
        if public is not None:
            return public[1]
    raise refuse("NV108", f"--key {key}", expected, signature.last_line(done), cure)


def _proved(signer: Signer) -> Signer:
    """Return SIGNER after a signature by its key was verified by its entry. Raises Refused NV909 if that fails."""
    where = f"--key {signer.key}"
    signed = signature.sign(b"", signer.key, where)
    with tempfile.TemporaryDirectory(prefix="nvllm-signers-") as directory:
        signers = Path(directory, "allowed_signers")
        durable.replace(signers, signer.entry.encode(), 0o644, code="NV920")
        cure = f"name another --key, or see whether {_beside(signer.key)} belongs to it"
        signature.verify(b"", signed, signers, where, cure)
    return signer
