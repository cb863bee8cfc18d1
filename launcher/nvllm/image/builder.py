"""Making images: fetch what the store lacks, make the layers that the cache lacks, load what the engine lacks.

This is the one build path: the command, the demo, the benchmarks and everything that rebuilds goes through it. Each
layer is a pure function of locked inputs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from nvllm.core import canonical, paths
from nvllm.core.canonical import Json
from nvllm.core.lock import Lock, LockedDebianBase, LockedFile, LockedNative, LockedRegistryBase, LockedWheel
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, collected, refuse, refuse_any
from nvllm.engine import engine as engines
from nvllm.engine.engine import Engine
from nvllm.host import facts
from nvllm.image import buildrecord, identity, native, recording, registry_base, sbom
from nvllm.image.buildrecord import Record
from nvllm.image.identity import Build
from nvllm.image.recording import Witness
from nvllm.kernels import kernellayer, toolchain
from nvllm.kernels.kernellayer import KernelCompiler, KernelSources
from nvllm.layers import bytecode, oci, patchlayer, rootfs, tarlayer, wheel
from nvllm.layers.bytecode import BytecodeCompiler, Interpreter, NoBytecode
from nvllm.layers.cache import LayerCache
from nvllm.layers.oci import Image, Lower
from nvllm.layers.patchlayer import Patched
from nvllm.layers.tarlayer import Layer, TarEntry
from nvllm.layers.wheel import Wheel
from nvllm.patches import seriesfile
from nvllm.patches.series import Patch
from nvllm.patches.unified import Diff
from nvllm.sources.store import Store

_UNPACKED = 4.0
"""Bytes of layers per byte of locked files: 3.8 for the image cpu, whose wheels unpack to 2.4 GB."""

ImagePart = Literal["base", "wheels", "patches", "kernels"]
"""A part of an image that can be built alone: one layer, or all layers of the patched files."""


class ImageBuilder:
    """Builds the images of PROJECT, with store, layers and records in PLACES. OFFLINE forbids fetching."""

    def __init__(self, project: Project, places: Places, progress: Progress, *, offline: bool) -> None:
        self.project = project
        self.places = places
        self.progress = progress
        self.offline = offline

    def image(self, build: Build, below: Sequence[Lower] = ()) -> Image:
        """Return the image of BUILD. BELOW are the layers of its base if the base is an image of a registry.

        Only what the layers that the cache lacks are made from is fetched. Raises Refused as `fetch` and `LayerBuilder`
        do; and before anything is fetched NV506 if the layers would not fit on the disk, and NV218 if vLLM still has to
        be compiled.
        """
        refuse_any(uncompiled(build))
        _require_space(build, LayerCache(self.places.layers))
        layers = self.builder(build, ())
        self.fetched(build, layers.needed())
        return layers.image(below)

    def upper(self, build: Build) -> list[Layer]:
        """Return the layers of BUILD that its patch set decides, fetching only the files that they are made from.

        Their bytes are those of the whole image. Raises Refused as `uncompiled`, `fetch` and `LayerBuilder` do.
        """
        refuse_any(uncompiled(build))
        return self.builder(build, (*build.lock.base_files, *_upper_files(build))).upper()

    def part(self, build: Build, name: ImagePart) -> list[Layer]:
        """Return the layers of BUILD that NAME stands for, fetching only the files that they are made from.

        Their bytes are those of the whole image. Raises Refused as `uncompiled`, `fetch` and `LayerBuilder` do, NV315
        for the kernels of an image without targets, and NV305 for the base of an image on a registry base.
        """
        refuse_any(uncompiled(build))
        lock = build.lock
        if name == "kernels":
            return self.kernels(build).kernels()
        debs = lock.base_files
        if name == "base":
            return [self.builder(build, debs).base()]
        if name == "wheels":
            return [self.builder(build, (*debs, *(wheel.file for wheel in lock.wheels))).wheels()]
        return self.builder(build, (*debs, lock.vllm.source, lock.vllm_wheel.file, *_native_files(build))).patches()

    def fetched(self, build: Build, files: Sequence[LockedFile]) -> Store:
        """Return the store, after fetching FILES of the lock of BUILD. Raises Refused as `fetch` does."""
        # `serve` and `status` look at images and fetch nothing: they start faster without the clients of indexes.
        from nvllm.sources import fetch
        from nvllm.sources.indexes import Sources

        store = Store(self.places.store)
        fetch.fetch(files, store, Sources.of(build.lock, os.environ), self.progress, offline=self.offline)
        return store

    def builder(self, build: Build, files: Sequence[LockedFile]) -> LayerBuilder:
        """Return the layer builder of BUILD, after fetching FILES of its lock. Raises Refused as `fetch` does."""
        store = self.fetched(build, files)
        cache = LayerCache(self.places.layers)
        return LayerBuilder(build, build.diffs(self.project), store, cache, self.progress)

    def kernels(self, build: Build) -> LayerBuilder:
        """Return a layer builder for the kernels layer of BUILD, fetching only the files that this layer needs.

        Raises Refused NV315 if the image has no targets, and as `uncompiled` and `fetch` do.
        """
        refuse_any(uncompiled(build))
        lock = build.lock
        if not build.spec.targets:
            where, cure = f"images/{build.spec.name}.yaml", "name an image with targets, such as sm120"
            raise refuse("NV315", where, "targets to compile kernels for", "none", cure)
        return self.builder(build, (lock.vllm.source, lock.vllm_wheel.file, *toolchain.inputs(lock)))

    def whole(self, build: Build, engine: Engine) -> Image:
        """Return the image of BUILD. ENGINE pulls its base if that is an image of a registry.

        Raises Refused as `image` and `registry_base.layers` do.
        """
        base = build.lock.base
        below: tuple[Lower, ...] = ()
        if isinstance(base, LockedRegistryBase):
            below = registry_base.layers(base, build.lock.platform, engine, self.progress, offline=self.offline)
        return self.image(build, below)

    def into_engine(self, build: Build, engine: Engine, tags: Sequence[str]) -> Record:
        """Build the image and load it into ENGINE under TAGS, as `load` does; return its build record."""
        return self.load(build, self.whole(build, engine), engine, tags)

    def load(self, build: Build, finished: Image, engine: Engine, tags: Sequence[str]) -> Record:
        """Load FINISHED, the image of BUILD, into ENGINE under TAGS; return its build record, which is written before.

        Raises Refused NV308, before the load, if the image is not as the project has recorded it.
        """
        witness = Witness(self.project, self.places, lambda: engine)
        witness.hold(build.spec.name, recording.of_image(build, finished), finished.layers)
        buildrecord.use(self.places, self.project, build.build_hash)
        built = buildrecord.of_image(finished, build.spec.name, build.build_hash, "built")
        return buildrecord.load(finished, built, engine, tags, self.places, self.progress)


def uncompiled(build: Build) -> Iterator[Refusal]:
    """Yield NV218 if the vLLM of BUILD still has to be compiled."""
    if build.uncompiled:
        name, vllm = build.spec.name, build.lock.vllm
        where, expected = f"{name}: lock, .wheels", f"the wheel of {vllm.distribution} {vllm.version}, compiled"
        cure = f"compile it, as docs/{name}.md shows, and lock it: nvllm lock {name} --compiled WHEEL"
        yield Refusal("NV218", where, expected, "none", cure)


def _upper_files(build: Build) -> tuple[LockedFile, ...]:
    """Return the files, besides the base, that the layers which the patch set of BUILD decides are made from."""
    lock = build.lock
    compiling = toolchain.inputs(lock) if build.spec.targets else ()
    return (lock.vllm.source, lock.vllm_wheel.file, *compiling, *_native_files(build))


def _native_files(build: Build) -> tuple[LockedFile, ...]:
    """Return the files, besides source and base, that compiling vLLM's extensions for BUILD needs."""
    if build.native is None:
        return ()
    return (*(wheel.file for wheel in build.lock.wheels), *build.native.files)


def _require_space(build: Build, cache: LayerCache) -> None:
    """Raise Refused NV506 if the base and the wheels of BUILD, less what CACHE has, would not fit on the disk."""
    lock = build.lock
    large = (
        ("base", base_factors(lock), lock.base_files),
        ("wheels", wheels_factors(lock), tuple(wheel.file for wheel in lock.wheels)),
    )
    absent = [file for kind, factors, files in large if cache.made(kind, factors) is None for file in files]
    needed = int(_UNPACKED * sum(file.size for file in absent))
    free = facts.disk(cache.directory).free
    if free < needed:
        room, cure = f"{free / 2**30:.1f} GiB free", "nvllm gc"
        raise refuse("NV506", str(cache.directory), f"about {needed / 2**30:.1f} GiB for the layers", room, cure)


class LayerBuilder:
    """Makes the layers of BUILD that CACHE lacks; STORE holds the files that these are made from.

    DIFFS are those of the patch set, in order.
    """

    def __init__(
        self, build: Build, diffs: tuple[Diff, ...], store: Store, cache: LayerCache, progress: Progress
    ) -> None:
        self.build = build
        self.diffs = diffs
        self.store = store
        self.cache = cache
        self.progress = progress

    def image(self, below: Sequence[Lower] = ()) -> Image:
        """Return the image, making the layers that are not in the cache.

        BELOW are the layers of a registry base, from `registry_base.layers`. Raises Refused NV301 for a patch that does
        not apply, NV208 for a wheel that is not of the commit, NV306 for an archive that cannot be unpacked, and NV305
        for a registry base without BELOW.
        """
        layers = [self.wheels()] if below else [self.base(), self.wheels()]
        layers.extend(self.upper())
        layers.append(self.identity(layers))
        return oci.assemble(
            layers,
            platform=self.build.lock.platform,
            epoch=self.build.lock.epoch,
            entrypoint=self.build.spec.runtime.entrypoint,
            environment=self.build.environment,
            labels={
                "nvllm.image": self.build.spec.name,
                "nvllm.build-hash": self.build.build_hash,
                **({oci.DEVELOPMENT: self.build.development} if self.build.development else {}),
            },
            below=below,
        )

    def needed(self) -> list[LockedFile]:
        """Return the locked files that the layers which the cache lacks are made from."""
        lock = self.build.lock
        files = []
        if self.cache.made("wheels", wheels_factors(lock)) is None:
            files += [wheel.file for wheel in lock.wheels]
        if not self._upper_made():
            files += _upper_files(self.build)
        if files or self.cache.made("base", base_factors(lock)) is None:
            files += lock.base_files  # of the interpreter that compiles bytecode
        return files

    def _upper_made(self) -> bool:
        """Return whether the cache has all layers that the patch set decides; never where extensions are compiled."""
        files = self._made_files()
        if files is None or self.build.native is not None:
            return False
        layers = [("record", self._patch_factors(self.build.patches))] if self.build.patches else []
        if self.build.spec.targets:
            layers.append(("kernels", self._kernel_factors(self._sources(files))))
        return all(self.cache.made(kind, factors) is not None for kind, factors in layers)

    def _made_files(self) -> dict[str, bytes | None] | None:
        """Return the changed files of the package, as their layers in the cache have them; None if it lacks a layer."""
        files: dict[str, bytes | None] = {}
        for part in patchlayer.parts(self.diffs):
            layer = self.cache.made(*self._part_key(part))
            if layer is None:
                return None
            files |= patchlayer.content(layer.path, part.paths, self.build.scheme)
        return files

    def upper(self) -> list[Layer]:
        """Return the layers that the patch set decides, in order.

        They need neither the base nor other wheels, unless extensions are compiled.
        """
        return [*self.patches(), *self.kernels()]

    # The factors of a layer name everything that its bytes depend on.

    def _write(self, kind: str, entries: list[TarEntry], path: Path) -> Layer:
        return tarlayer.write(kind, entries, epoch=self.build.lock.epoch, path=path, progress=self.progress)

    def _factors(self, specific: Mapping[str, Json]) -> dict[str, Json]:
        return _factors(self.build.lock, specific)

    @property
    def interpreter(self) -> BytecodeCompiler:
        """The compiler of bytecode: the image's interpreter. Unpacks the base tree if it is not in the cache."""
        base = self.build.lock.base
        if not isinstance(base, LockedDebianBase):
            return NoBytecode(base.python)
        return self._unpacked(base)

    def _unpacked(self, base: LockedDebianBase) -> Interpreter:
        packages = [(package.name, self.store.path(package.file.sha256)) for package in base.packages]
        tree = self.cache.unpacked(
            tree_factors(self.build.lock), lambda path: rootfs.unpack(packages, path, self.progress)
        )
        return Interpreter(tree, base.python)

    def base(self) -> Layer:
        """Return the base layer: the unpacked packages and the bytecode of the standard library.

        Raises Refused NV305 if the base is an image of a registry, whose layers are not files here.
        """
        base = self.build.lock.base
        if not isinstance(base, LockedDebianBase):
            cure = f"nvllm build {self.build.spec.name} --layers-only"
            raise refuse("NV305", ".base.image", "a base whose layers are files here", base.image, cure)

        def make(path: Path) -> Layer:
            interpreter = self._unpacked(base)
            library = interpreter.tree / f"usr/lib/python{interpreter.python}"
            followed = {p: rootfs.followed(interpreter.tree, p) for p in sorted(library.rglob("*.py"))}
            modules = {
                str(p.relative_to(interpreter.tree)): str(file) for p, file in followed.items() if file is not None
            }
            compiled = path.with_suffix(".bytecode.zip")
            interpreter.compile(None, modules, compiled)
            try:
                return self._write("base", [*rootfs.entries(interpreter.tree), *bytecode.entries(compiled)], path)
            finally:
                compiled.unlink()

        return self.cache.layer("base", base_factors(self.build.lock), make)

    def wheels(self) -> Layer:
        """Return the wheels layer: every locked wheel, unpacked, with bytecode."""
        lock, scheme = self.build.lock, self.build.scheme

        def make(path: Path) -> Layer:
            with contextlib.ExitStack() as stack:
                wheels, entries = self._open_wheels(stack)
                for archive in self._wheel_bytecode(wheels):
                    entries.extend(bytecode.entries(archive))
                entries.extend(wheel.environment(scheme, lock.base.interpreter))
                for name, version, of in lock.aliases:
                    entries.extend(wheel.alias(name, version, of, scheme))
                return self._write("wheels", entries, path)

        return self.cache.layer("wheels", wheels_factors(lock), make)

    def _open_wheels(self, stack: contextlib.ExitStack) -> tuple[dict[LockedWheel, Wheel], list[TarEntry]]:
        """Return every locked wheel, opened until STACK closes, and the entries of all wheels."""
        wheels: dict[LockedWheel, Wheel] = {}
        entries: list[TarEntry] = []
        refusals: list[Refusal] = []
        for locked in self.build.lock.wheels:
            with collected(refusals):  # report the other wheels too
                path = self.store.path(locked.file.sha256)
                wheels[locked] = stack.enter_context(Wheel(path, locked.file.filename, locked.omitted))
                entries.extend(wheels[locked].entries(self.build.scheme))
        refuse_any(refusals)
        return wheels, entries

    def _wheel_bytecode(self, wheels: Mapping[LockedWheel, Wheel]) -> list[Path]:
        scheme, factors = self.build.scheme, identity.interpreter_factors(self.build.lock)
        # One job a wheel: a wheel that many locks have in common is compiled once.
        jobs: dict[str, tuple[Path | None, Mapping[str, str]]] = {}
        for locked, opened in wheels.items():
            files = {place: info.filename for place, info in opened.placed(scheme).items() if place.endswith(".py")}
            if files:
                about: Json = {
                    "wheel": locked.file.sha256,
                    "site": scheme.site,
                    "interpreter": factors,
                    "script": bytecode.script_hash(),
                    **({"omitted": list(locked.omitted)} if locked.omitted else {}),
                }
                # Named after its wheel, so that `nvllm gc` can tell what it belongs to.
                jobs[f"{locked.file.sha256}-{canonical.digest('nvllm.bytecode/1', about)[:16]}"] = (opened.path, files)
        return bytecode.compile_all(self.interpreter, jobs, self.cache.bytecode, self.progress)

    def patches(self) -> list[Layer]:
        """Return the layers of the patch set: extensions, one for each changed file, RECORD; none for an empty set."""
        if not self.build.patches:
            return []
        return [*self._native(), *map(self._part, patchlayer.parts(self.diffs)), self._record()]

    def _native(self) -> list[Layer]:
        """Return the layer of vLLM's extensions; none if no patch changes their source.

        Its cache key holds the changed files of their source alone, so switching other patches compiles nothing.
        Raises Refused as `native.compiled` does, NV318 if an extension is not one of the wheel's, and NV510 if there is
        no engine.
        """
        build, locked = self.build, self.build.native
        if locked is None:
            return []
        archive, changed = self.store.path(build.lock.vllm.source.sha256), self._patched.compiled
        files: dict[str, Json] = {
            path: None if data is None else hashlib.sha256(data).hexdigest() for path, data in changed.items()
        }
        assert build.spec.vllm.native is not None
        targets, objects = build.spec.vllm.native.targets, object_factors(build.lock, locked)

        def make(path: Path) -> Layer:
            directory = self.cache.tree(objects)
            compiler = self.native_compiler(locked)
            # Every build of one base and source compiles in this directory, so that ninja finds its objects.
            with self.cache.locked(directory.stem):
                paths.ensure(directory)
                native.prepare(directory, archive, changed, locked, self.store)
                self.progress.note(f"compile {', '.join(targets)}; what it writes: {directory / native.LOG}")
                made = native.compiled(directory, targets, locked, compiler)
                with Wheel(self.store.path(build.lock.vllm_wheel.file.sha256)) as opened:
                    native.require_known(made, opened)
                entries = [
                    tarlayer.blob(f"{build.scheme.site}/{name}", file.read_bytes(), executable=True)
                    for name, file in made.items()
                ]
                return self._write("native", entries, path)

        factors = {"objects": objects, "native": build.native_factors(locked), "files": files}
        return [self.cache.layer("native", self._factors(factors), make)]

    def native_compiler(self, locked: LockedNative) -> native.Compiler:
        """Return the compiler of LOCKED: base, wheels and tools as an image in the engine, with a build record.

        It stays there until `nvllm gc`: the image of the build shares its largest layers.
        """
        lock, scheme = self.build.lock, self.build.scheme

        def tools(path: Path) -> Layer:
            with contextlib.ExitStack() as stack:
                opened = [
                    stack.enter_context(Wheel(self.store.path(tool.file.sha256), tool.file.filename))
                    for tool in locked.tools
                ]
                return self._write("tools", [entry for tool in opened for entry in tool.entries(scheme)], path)

        layer = self.cache.layer("tools", self._factors({"tools": native.factors(locked)["tools"]}), tools)
        name, key = f"{self.build.spec.name}-native", self.cache.key("compiler", object_factors(lock, locked))
        image = oci.assemble(
            [self.base(), self.wheels(), layer],
            platform=lock.platform,
            epoch=lock.epoch,
            entrypoint=(scheme.interpreter,),
            environment={},
            labels={"nvllm.image": name, "nvllm.build-hash": key},
        )
        connected, record = engines.require(), buildrecord.of_image(image, name, key, "built")
        if buildrecord.in_engine(record, connected) is None:
            where = paths.places(os.environ)
            record = buildrecord.load(image, record, connected, [identity.tag(name, key)], where, self.progress)
        loaded = buildrecord.in_engine(record, connected)
        assert loaded is not None
        return native.Compiler(connected, loaded.id, scheme)

    def _part_key(self, part: patchlayer.PatchedPart) -> tuple[str, dict[str, Json]]:
        """Return the kind of the layer of PART, and its factors."""
        patches = [self.build.patches[number] for number in part.diffs]
        factors = {
            **self._patch_factors(patches),
            "paths": list(part.paths),
            "interpreter": identity.interpreter_factors(self.build.lock),
        }
        return f"patches {part.paths[0]}", factors

    def _part(self, part: patchlayer.PatchedPart) -> Layer:
        kind, factors = self._part_key(part)

        def make(path: Path) -> Layer:
            entries = patchlayer.entries(self._patched, part.paths, self.build.scheme, self.interpreter)
            return self._write(kind, list(entries), path)

        return self.cache.layer(kind, factors, make)

    def _record(self) -> Layer:
        """Return the layer of vLLM's RECORD.

        Its cache key holds the whole patch set, though its bytes rarely change. So each set is applied as a whole once,
        including its changes outside the package, even if all its other layers are in the cache.
        """
        locked = self.build.lock.vllm_wheel

        def make(path: Path) -> Layer:
            changed = self._patched
            with Wheel(self.store.path(locked.file.sha256), locked.file.filename) as opened:
                text = patchlayer.record(opened.text("RECORD"), changed.files)
                record = f"{self.build.scheme.site}/{opened.dist_info}/RECORD"
                return self._write("record", [tarlayer.blob(record, text.encode())], path)

        return self.cache.layer("record", self._patch_factors(self.build.patches), make)

    def _patch_factors(self, patches: Sequence[Patch]) -> dict[str, Json]:
        return self._factors(
            {
                "source": self.build.lock.vllm.source.sha256,
                "wheel": self.build.lock.vllm_wheel.file.sha256,
                "patches": identity.patch_factors(patches),
                "format": patchlayer.FORMAT,
            }
        )

    @functools.cached_property
    def _patched(self) -> Patched:
        """The package with the whole patch set applied. Computed once: reading the source takes a second."""
        locked = self.build.lock.vllm_wheel
        with Wheel(self.store.path(locked.file.sha256), locked.file.filename) as opened:
            archive = self.store.path(self.build.lock.vllm.source.sha256)
            compiled = () if self.build.native is None else seriesfile.EXTENSIONS
            return patchlayer.patched(archive, self.diffs, opened, compiled)

    def kernels(self) -> list[Layer]:
        """Return the kernels layer, which has the cache manager alone for a patch set without kernels.

        There is none for an image without targets. Raises Refused as `KernelCompiler` does.
        """
        if not self.build.spec.targets:
            return []
        compiled, site = self.kernel_sources(), self.build.scheme.site

        def make(path: Path) -> Layer:
            if compiled is None:
                return self._write("kernels", [kernellayer.manager(site)], path)
            with self.kernel_compiler() as bench:
                return self._write("kernels", list(bench.entries(compiled)), path)

        return [self.cache.layer("kernels", self._kernel_factors(compiled), make)]

    def _kernel_factors(self, compiled: KernelSources | None) -> dict[str, Json]:
        lock = self.build.lock
        managed: dict[str, Json] = {"manager": kernellayer.rules(lock), "site": self.build.scheme.site}
        return self._factors(managed if compiled is None else kernellayer.factors(lock, compiled))

    def kernel_compiler(self) -> KernelCompiler:
        """Return the compiler of kernels, a context manager. Unpacks the base tree if Triton runs in it."""
        lock = self.build.lock
        interpreter = None
        if isinstance(lock.base, LockedDebianBase) and toolchain.runs_in_base(lock):
            interpreter = self._unpacked(lock.base)
        return KernelCompiler(lock, self.build.scheme.site, self.store, interpreter)

    def kernel_sources(self) -> KernelSources | None:
        """Return the modules of the patch set that hold kernels, None if there are none."""
        files = self._made_files()
        return self._sources(self._patched.files if files is None else files)

    def _sources(self, files: Mapping[str, bytes | None]) -> KernelSources | None:
        """Return those of FILES, which the patch set changes, that hold kernels, None if there are none."""
        chosen = kernellayer.sources(files)
        return KernelSources(self.build.spec.targets, chosen) if chosen else None

    def identity(self, below: list[Layer]) -> Layer:
        """Return the identity layer: the gate, the identity file and the SBOM."""
        document = identity.identity(self.build, [layer.diff_id for layer in below])
        factors = self._factors({"identity": document})

        def make(path: Path) -> Layer:
            entries = [
                tarlayer.blob(identity.IDENTITY_PATH, canonical.encode(document)),
                tarlayer.blob("opt/nvllm/sbom.spdx.json", canonical.encode(sbom.document(self.build))),
                *(tarlayer.blob(place, p.read_bytes()) for place, p in identity.runtime_paths().items()),
            ]
            return self._write("identity", entries, path)

        return self.cache.layer("identity", factors, make)


def _factors(lock: Lock, specific: Mapping[str, Json]) -> dict[str, Json]:
    return {"epoch": lock.epoch, "rules": identity.rules(), **specific}


def base_factors(lock: Lock) -> dict[str, Json]:
    """Return the factors of the base layer."""
    return _factors(lock, {"base": identity.base_factors(lock)})


def wheels_factors(lock: Lock) -> dict[str, Json]:
    """Return the factors of the wheels layer."""
    return _factors(
        lock,
        {
            "wheels": identity.wheel_factors(lock),
            "aliases": [list(alias) for alias in lock.aliases],
            "interpreter": identity.interpreter_factors(lock),
        },
    )


def tree_factors(lock: Lock) -> dict[str, Json]:
    """Return the factors of the unpacked base tree."""
    return {"rootfs": rootfs.FORMAT, "base": identity.base_factors(lock)}


def object_factors(lock: Lock, locked: LockedNative) -> dict[str, Json]:
    """Return the factors of the directory in which LOCKED compiles vLLM's extensions; no patch is among them."""
    return {
        "base": identity.base_factors(lock),
        "wheels": identity.wheel_factors(lock),
        "source": lock.vllm.source.sha256,
        "native": native.factors(locked),
    }


def trees(lock: Lock) -> list[dict[str, Json]]:
    """Return the factors of every tree that builds of LOCK keep in the layer cache."""
    extensions = lock.vllm.native
    return [tree_factors(lock), *([] if extensions is None else [object_factors(lock, extensions)])]
