"""Nix as the builder: it is given the locked files, builds the image by the project's flake, and leaves an OCI layout.

In Nix's sandbox the same code makes the layers, so the image is the same. Only this module runs Nix.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvllm.core import canonical, proc, reading
from nvllm.core.lock import LockedRegistryBase
from nvllm.core.paths import Project
from nvllm.core.refusal import Refused, refuse, refuse_any
from nvllm.image.builder import ImageBuilder, uncompiled
from nvllm.image.identity import Build
from nvllm.kernels import toolchain
from nvllm.layers.oci import Image, Lower, kind_in
from nvllm.layers.tarlayer import Layer

FLAKE = "flake.nix"

_FEATURES = ("--extra-experimental-features", "nix-command flakes")
"""`nix build` and flakes are experimental, and off unless a configuration says otherwise."""
_PASSED = ("NIX_CONFIG", "NIX_CONF_DIR", "NIX_REMOTE", "NIX_SSL_CERT_FILE")
"""The user's settings of Nix: its configuration, its daemon, its certificates."""
_TIMEOUT = 6 * 3600.0
"""Seconds. Nix downloads every wheel of an image, up to 6 GB, and says nothing to nvllm meanwhile."""
_SHOWN = 1200
"""How many characters of Nix's last words a refusal shows."""


def require(project: Project, build: Build) -> str:
    """Return the path of the program nix. Raises Refused if Nix cannot build BUILD of PROJECT.

    NV512 if there is no Nix, NV316 if the project has no flake, if the base is an image of a registry, or if vLLM's
    extensions are compiled for its patch set.
    """
    program = proc.require("nix", "nix-bin")
    name = build.spec.name
    if isinstance(build.lock.base, LockedRegistryBase):
        base, cure = build.lock.base.image, f"nvllm build {name}"
        raise refuse("NV316", "--builder nix", "a base whose layers nvllm writes", base, cure)
    if build.native is not None:
        cure = f"nvllm build {name}"
        raise refuse("NV316", "--builder nix", "a patch set without native patches", "one that is compiled", cure)
    if not (project.root / FLAKE).is_file():
        cure = "write one, as docs/nix.md shows, or build without --builder nix"
        raise refuse("NV316", str(project.root / FLAKE), "the flake of the project", "no such file", cure)
    return program


class NixBuilder(ImageBuilder):
    """Builds whole images by Nix; its parts alone are built here."""

    def image(self, build: Build, below: Sequence[Lower] = ()) -> Image:
        """Return the image of BUILD, which Nix builds, after giving it every file that the lock names.

        BELOW is empty: an image on a registry base is refused. Raises Refused as `require` and `fetch` do, NV218 if
        vLLM still has to be compiled, and NV316 if Nix fails or builds something else than BUILD.
        """
        program = require(self.project, build)
        refuse_any(uncompiled(build))
        files = (*build.lock.files, *toolchain.files(build.lock))
        store = self.fetched(build, files)
        flake = f"{self.project.root}#oci-{build.spec.name}"
        paths = [str(store.path(sha256)) for sha256 in sorted({file.sha256 for file in files})]
        self.progress.note(f"giving {len(paths)} files to Nix")
        # By content, as `requireFile` in nix/image.nix asks for them: the sandbox fetches nothing.
        _run([proc.require("nix-store", "nix-bin"), "--add-fixed", "sha256", *paths], flake)
        self.progress.note(f"nix build {flake}")
        # --no-link: the link `result` would be left in the user's directory.
        output = _run([program, *_FEATURES, "build", "--no-link", "--json", "--print-build-logs", flake], flake)
        try:
            made = read(Path(_document(output)[0]["outputs"]["out"]))
            label = _document(made.config)["config"]["Labels"].get("nvllm.build-hash")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise _failed(flake, f"what nix says and builds has another form: {error}") from error
        if label != build.build_hash:
            cure = "git add ."
            raise refuse(
                "NV316",
                flake,
                f"build hash {build.build_hash}",
                f"build hash {label}; Nix sees only the files that git knows",
                cure,
            )
        return made


def read(layout: Path) -> Image:
    """Return the image, made by `oci.assemble`, in the OCI layout at LAYOUT."""
    blobs = layout / "blobs"

    def blob(digest: str) -> Path:
        return blobs / digest.replace(":", "/")

    index = _document(reading.content(layout / "index.json", reading.MANIFEST))
    manifest = _document(reading.content(blob(index["manifests"][0]["digest"]), reading.MANIFEST))
    config = reading.content(blob(manifest["config"]["digest"]), reading.MANIFEST)
    kinds = [kind_in(entry["created_by"]) or entry["created_by"] for entry in _document(config)["history"]]
    layers = [
        Layer(kind, descriptor["digest"], descriptor["size"], blob(descriptor["digest"]).resolve())
        for kind, descriptor in zip(kinds, manifest["layers"], strict=True)
    ]
    return Image(config, tuple(layers))


def _document(data: bytes) -> Any:
    """Return the JSON document DATA. Raises ValueError if it is none."""
    return canonical.decode(data)


def _run(argv: Sequence[str], flake: str) -> bytes:
    """Run ARGV and return its output. Raises Refused NV316, with the end of what it said, if it fails."""
    try:
        done = proc.run(argv, env=proc.environment({}, _PASSED), timeout=_TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise _failed(flake, f"no end in {error.timeout:.0f} s") from error
    if done.returncode != 0:
        raise _failed(flake, done.stderr.decode("utf-8", "replace").strip()[-_SHOWN:])
    return done.stdout


def _failed(flake: str, problem: str) -> Refused:
    return refuse("NV316", flake, "a build that succeeds", problem, shlex.join(["nix", "build", "-L", flake]))
