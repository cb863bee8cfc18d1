"""The launch plan: one frozen value, made of an image, a profile, a located model and a host.

Nothing is looked up here. The plan is a function of its arguments, so the plan that ``--dry-run`` prints is the plan
that `serve` carries out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from nvllm.cache.cachetree import Tree, TreeFile
from nvllm.core import canonical
from nvllm.core.canonical import Json
from nvllm.core.lock import LockedModel, ModelFile
from nvllm.core.plan import (
    ACCESS,
    ACCESS_ARGUMENTS,
    ACCESS_ENVIRONMENT,
    ACCESS_PROGRAM,
    BLESSED_ENVIRONMENT,
    CACHE,
    CONTAINER_PORT,
    ENGINE_ENVIRONMENT,
    FORCE_LOAD,
    HOME,
    KEY_FILE,
    RUN_DIRECTORY,
    SCHEMA,
    SEEDS,
    TEMPLATES,
    CpuLayout,
    LaunchPlan,
    Mount,
    PlannedCache,
    PlannedCommand,
    PlannedCpu,
    PlannedGpu,
    PlannedTemplate,
    Scratch,
    ServedModel,
)
from nvllm.core.spec import ImageSpec, Missing, Profile
from nvllm.host.facts import Cpu, Gpu
from nvllm.image import identity
from nvllm.layers.wheel import Scheme
from nvllm.lock.templates import LocalTemplate
from nvllm.models.local import LocalModel
from nvllm.serve import access, servehash
from nvllm.spec import speculative

_MODELS, _DRAFTS, _ADAPTERS = "/models", "/drafts", "/adapters"
"""The directories inside the container of the served model, of the draft model and of the adapters."""
_HOME_SIZE = 512 * 2**20
"""Bytes of a tmpfs at most. It takes memory only as it is filled, and that counts towards the profile's limit."""
_LOCKS_SIZE = 2**20
"""The size of a directory for lock files, which are empty."""


@dataclass(frozen=True, slots=True)
class PlannedImage:
    """The image of a plan. Without a lock, its BUILD_HASH is not known and therefore empty.

    IDS are what the engine knows it as, first the digest of its configuration; empty if it was never built.
    """

    spec: ImageSpec
    build_hash: str
    scheme: Scheme
    environment: Mapping[str, str]
    ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is to be served: a profile of IMAGE."""

    image: PlannedImage
    profile_name: str
    model: LocalModel
    draft: LocalModel | None
    """None unless the profile names one."""
    user: tuple[int, int]
    gpus: Sequence[Gpu]
    cpu: Cpu
    run_directory: Path
    """On this host; it is mounted at /run/nvllm."""
    adapters: Sequence[LocalModel] = ()
    """In the order of the profile's."""
    template: LocalTemplate | None = None

    @property
    def profile(self) -> Profile:
        return self.image.spec.profiles[self.profile_name]


def instance_name(image: str, profile: str) -> str:
    return f"nvllm-{image}-{profile}"


def container_user(uid: int, gid: int) -> str:
    """Return the ``uid:gid`` of the engine: the operator's, with 1000 for root and for root's group."""
    # The gate refuses root, also root of a container.
    return f"{uid}:{gid or 1000}" if uid != 0 else "1000:1000"


def engine_arguments(profile: Profile) -> list[str]:
    """Return the profile's arguments, with its draft model, as vLLM takes them; sorted by name, adapters last."""
    arguments = dict(profile.arguments)
    if profile.draft is not None:
        arguments = speculative.drafting(arguments, f"{_DRAFTS}/{profile.draft}")
    if profile.chat_template is not None:
        arguments["chat-template"] = _template_path(profile.chat_template)
    if profile.adapters:
        arguments["enable-lora"] = True
    adapters = [f"{name}={_ADAPTERS}/{name}" for name in profile.adapters]
    return [
        # Sorted: the order in which a profile writes them changes no hash.
        *(part for name, value in sorted(arguments.items()) for part in _argument(name, value)),
        *(["--lora-modules", *adapters] if adapters else []),
    ]


def _template_path(file: str) -> str:
    return f"{TEMPLATES}/{PurePosixPath(file).name}"


def _argument(name: str, value: bool | int | float | str) -> list[str]:  # noqa: FBT001 - a value of the spec
    if isinstance(value, bool):
        if "." in name:  # a part of a JSON value: vLLM takes the next word as its value
            return [f"--{name}", "true" if value else "false"]
        return [f"--{name}" if value else f"--no-{name}"]
    # A negative number that stands alone looks like an option; with a dot in it, vLLM takes it for one.
    return [f"--{name}={value}"] if str(value).startswith("-") else [f"--{name}", str(value)]


def plan(request: PlanRequest) -> LaunchPlan:
    """Return the launch plan of REQUEST."""
    profile, image, spec = request.profile, request.image, request.image.spec
    path = f"{_MODELS}/{profile.model}"
    engine = (
        # `runtime/seed.py`, which runs what follows. Also in a bootstrap, where there is nothing to copy: it and the
        # serves have one command, and one hash.
        *((image.scheme.interpreter, "-I", f"/{identity.SEED_PATH}") if profile.blessed else ()),
        *spec.runtime.entrypoint,
        path,
        "--served-model-name",
        profile.served_name or profile.model,
        *_listening(profile),
        # How long vLLM lets requests finish when it is asked to stop; by itself not at all.
        *(("--shutdown-timeout", str(profile.limits.drain_timeout)) if profile.limits.drain_timeout else ()),
        *engine_arguments(profile),
        # Last: of several, the last one that is added sees a request first.
        *(() if profile.access.key_file is None else ACCESS_ARGUMENTS),
    )
    environment = {**image.environment, **profile.environment, **ENGINE_ENVIRONMENT}
    if profile.access.key_file is not None:
        environment.update(ACCESS_ENVIRONMENT)
    scratch = [Scratch("/tmp", profile.limits.temporary), Scratch(HOME, _HOME_SIZE)]  # noqa: S108
    if profile.blessed:
        environment.update({name: text for name, text in BLESSED_ENVIRONMENT.items() if name != FORCE_LOAD})
        # For the engine's other caches: a mount point that Docker creates would belong to root.
        scratch.append(Scratch(str(PurePosixPath(CACHE).parent), _HOME_SIZE))
    served = [(_served(profile.model, path, request.model), request.model)]
    if profile.draft is not None and request.draft is not None:
        served.append((_served(profile.draft, f"{_DRAFTS}/{profile.draft}", request.draft), request.draft))
    adapters = [
        (_served(name, f"{_ADAPTERS}/{name}", local), local)
        for name, local in zip(profile.adapters, request.adapters, strict=True)
    ]
    unhashed = LaunchPlan(
        schema=SCHEMA,
        instance=instance_name(spec.name, request.profile_name),
        image=spec.name,
        image_id=next(iter(image.ids), ""),
        build_hash=image.build_hash,
        profile=request.profile_name,
        dev=profile.dev,
        serve_hash="",
        # -I: the gate imports nothing but the standard library, whatever PYTHONPATH the plan sets for vLLM.
        command=PlannedCommand((image.scheme.interpreter, "-I", f"/{identity.GATE_PATH}"), engine),
        environment=dict(sorted(environment.items())),
        mounts=(
            Mount(str(request.run_directory), RUN_DIRECTORY),
            *(
                Mount(str(real), f"{model.path}/{inside}")
                for model, local in (*served, *adapters)
                for inside, real in local.files
            ),
            *_own_mounts(request),
        ),
        scratch=tuple(scratch),
        user=container_user(*request.user),
        port=profile.port,
        limits=profile.limits,
        host=profile.host,
        gpu=profile.gpu,
        gpus=tuple(
            PlannedGpu(gpu.uuid, gpu.name, gpu.capability, gpu.driver)
            for gpu in request.gpus[: profile.gpu.count if profile.gpu is not None else 0]
        ),
        cpu=planned_cpu(request.cpu, threads=profile.gpu is None),
        model=served[0][0],
        draft=served[1][0] if len(served) > 1 else None,
        sentinels=tuple(sorted(profile.sentinels)),
        waivers=profile.waivers,
        probe=profile.probe,
        manifest_id=next(iter(image.ids[1:]), ""),
        adapters=tuple(adapter for adapter, _ in adapters),
        template=_template(request.template),
        served_name=profile.served_name or "",
        access=profile.access,
    )
    return replace(unhashed, serve_hash=servehash.serve_hash(unhashed))


def _own_mounts(request: PlanRequest) -> list[Mount]:
    """Return the mounts of the chat template, of the program that asks for the API key, and of the key."""
    mounts = []
    if request.template is not None:
        mounts.append(Mount(str(request.template.file), _template_path(request.template.locked.path)))
    key_file = request.profile.access.key_file
    if key_file is not None:
        program = request.run_directory.parent / ACCESS_PROGRAM
        mounts += [Mount(str(program), f"{ACCESS}/{ACCESS_PROGRAM}"), Mount(key_file, KEY_FILE)]
    return mounts


def _template(local: LocalTemplate | None) -> PlannedTemplate | None:
    if local is None:
        return None
    locked = local.locked
    return PlannedTemplate(locked.path, _template_path(locked.path), locked.size, locked.sha256)


def _served(name: str, path: str, local: LocalModel) -> ServedModel:
    return ServedModel(name, path, local.locked.tree, local.locked.revision)


def loading(plan: LaunchPlan, tree: Tree, missing: Missing = "report") -> LaunchPlan:
    """Return PLAN for an engine that loads the blessed cache TREE and nothing else; `mounting` adds its mount.

    MISSING is what happens to a kernel that TREE lacks. The serve hash stays: the bootstrap, the trials and every serve
    have the same one.
    """
    environment = {**plan.environment, **BLESSED_ENVIRONMENT}
    locks = [Scratch(f"{CACHE}/{path}", _LOCKS_SIZE) for path in tree.lock_directories]
    copies = [
        Scratch(f"{CACHE}/{path}", sum(file.size for file in tree.below(path)) + _HOME_SIZE) for path in tree.seeds
    ]
    return replace(
        plan,
        environment=dict(sorted(environment.items())),
        scratch=(*plan.scratch, *locks, *copies),
        cache=PlannedCache(tree.hash, CACHE, tree.seeds, missing),
    )


def mounting(plan: LaunchPlan, copy: Path) -> LaunchPlan:
    """Return PLAN, which is `loading` a cache, with the staged COPY of that cache mounted read-only."""
    assert plan.cache is not None
    seeds = [Mount(str(copy), SEEDS)] if plan.cache.seeds else []
    return replace(plan, mounts=(*plan.mounts, Mount(str(copy), plan.cache.target), *seeds))


def running_in(plan: LaunchPlan, run_directory: Path) -> LaunchPlan:
    """Return PLAN with RUN_DIRECTORY of this host mounted at /run/nvllm."""
    return replace(
        plan,
        mounts=tuple(
            Mount(str(run_directory), mount.target) if mount.target == RUN_DIRECTORY else mount for mount in plan.mounts
        ),
    )


def _listening(profile: Profile) -> list[str]:
    """Return where vLLM listens: on all addresses of its own network, or on loopback with host networking.

    From outside, it is reached only where the container's port is published.
    """
    if any(waiver.name == "host-network" for waiver in profile.waivers):
        return ["--host", "127.0.0.1", "--port", str(profile.port)]
    return ["--host", "0.0.0.0", "--port", str(CONTAINER_PORT)]  # noqa: S104 - inside the container


def planned_cpu(cpu: Cpu, *, threads: bool) -> PlannedCpu:
    """Return the facts of CPU that decide what is compiled: with a GPU, the number of THREADS is not one of them."""
    layout = CpuLayout(cpu.count, cpu.cores, cpu.nodes) if threads else None
    return PlannedCpu(cpu.machine, cpu.kind, cpu.flags, layout)


def expectations(plan: LaunchPlan, models: Sequence[LockedModel], cache: Tree | None = None) -> bytes:
    """Return the file that the gate compares everything with, as JSON.

    MODELS are the locked models of the plan, in its order; CACHE is the tree that the plan loads, if any. Besides the
    models, the gate checks every directory that has an exact set of read-only files as it checks a model, because its
    own bytes decide the build hash of every image: what the copies of the cache are made from, and single files.
    """
    document: Json = {
        "schema": "nvllm.gate/1",
        "build_hash": plan.build_hash,
        "serve_hash": plan.serve_hash,
        "user": plan.user,
        "waivers": [waiver.name for waiver in plan.waivers],
        "sentinels": list(plan.sentinels),
        "environment": sorted(plan.environment),
        "command": list(plan.command.engine),
        "models": [
            *(_directory(model.path, locked.files) for model, locked in zip(plan.models, models, strict=True)),
            *([] if cache is None else [_directory(f"{SEEDS}/{path}", cache.below(path)) for path in cache.seeds]),
            *_own_files(plan),
        ],
        "cache": _cache(plan, cache),
    }
    return canonical.encode(document)


def _own_files(plan: LaunchPlan) -> list[Json]:
    """Return what the gate expects of the chat template and of the program that asks for the API key.

    Each is a directory with one file. The key itself is not among them: its hash would be one more place to keep it.
    """
    expected: list[Json] = []
    if plan.template is not None:
        file = ModelFile(PurePosixPath(plan.template.path).name, plan.template.size, plan.template.sha256)
        expected.append(_directory(TEMPLATES, [file]))
    if plan.access.key_file is not None:
        program = access.program()
        file = ModelFile(ACCESS_PROGRAM, len(program), hashlib.sha256(program).hexdigest())
        expected.append(_directory(ACCESS, [file]))
    return expected


def _directory(path: str, files: Iterable[ModelFile | TreeFile]) -> Json:
    return {"path": path, "files": [{"path": file.path, "size": file.size, "sha256": file.sha256} for file in files]}


def _cache(plan: LaunchPlan, tree: Tree | None) -> Json:
    if plan.cache is None or tree is None:
        return None
    target, seeds = plan.cache.target, tree.seeds

    def mounted(path: str) -> bool:  # and not below a scratch, which is empty when the gate looks
        return not any(path.startswith(f"{seed}/") for seed in seeds)

    return {
        "path": target,
        "files": [
            {"path": file.path, "size": file.size, "mode": file.mode, "sha256": file.sha256}
            for file in tree.files
            if mounted(file.path)
        ],
        "directories": [
            {"path": directory.path, "mode": directory.mode}
            for directory in tree.directories
            if mounted(directory.path)
        ],
        "locks": [*tree.lock_directories, *seeds],
        "seeds": [{"from": f"{SEEDS}/{path}", "to": f"{target}/{path}"} for path in seeds],
        "missing": plan.cache.missing,
    }
