"""Making a launch plan: the command line and environment of a small spec, to the letter, and what holds for all."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvllm.cache import cachetree
from nvllm.cache.cachetree import Tree
from nvllm.cache.store import TreeStore
from nvllm.core import canonical
from nvllm.core.plan import CACHE, FORCE_LOAD, LaunchPlan, Mount, PlannedGpu, Workbench
from nvllm.core.refusal import Refused
from nvllm.core.spec import Access, GpuNeed, ImageSpec, ResourceLimits, Waiver
from nvllm.engine import container, containers, engine
from nvllm.host.facts import INSTANCE_LABEL, Product
from nvllm.models.local import LocalModel
from nvllm.runtime import gate
from nvllm.serve import planner, servehash
from nvllm.serve.planner import engine_arguments
from nvllm.spec import specfile
from nvllm.spec.waivers import WAIVERS
from support import blessings_world, locks, plansamples
from support.plansamples import GPUS, MODEL, PLAN, SPEC, plan, wanted, with_profile
from support.specs import SHOWN

words = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=6)
names = st.from_regex(r"[a-z][a-z0-9-]{0,6}(\.[A-Za-z0-9_]{1,4})?", fullmatch=True)
values = st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-1e6, 1e6) | words
ids = st.integers(0, 2**32 - 2)


# To the letter


def test_the_command_of_a_small_spec() -> None:
    assert PLAN.command.words == (
        *("/opt/venv/bin/python3.11", "-I", "/opt/nvllm/gate.py"),
        *("vllm", "serve", "/models/tiny", "--served-model-name", "tiny", "--host", "0.0.0.0", "--port", "8000"),
        *("--enforce-eager", "--max-model-len", "128"),
    )


def test_the_environment_of_a_small_spec() -> None:
    assert list(PLAN.environment.items()) == [
        ("DO_NOT_TRACK", "1"),
        ("HF_HUB_OFFLINE", "1"),
        ("HOME", "/home/nvllm"),
        ("LC_ALL", "C.UTF-8"),
        ("LOGNAME", "nvllm"),
        ("OMP_NUM_THREADS", "2"),
        ("PATH", "/opt/venv/bin:/usr/bin:/bin"),
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("TMPDIR", "/tmp"),
        ("TRANSFORMERS_OFFLINE", "1"),
        ("USER", "nvllm"),
        ("VLLM_CACHE_ROOT", "/home/nvllm/.cache/vllm"),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("VLLM_TARGET_DEVICE", "cpu"),
    ]


def test_everything_else_of_a_small_spec() -> None:
    assert (PLAN.instance, PLAN.image, PLAN.profile, PLAN.dev) == ("nvllm-demo-eager", "demo", "eager", False)
    assert [(mount.source, mount.target) for mount in PLAN.mounts] == [
        ("/host/state/runs/nvllm-demo-eager/run", "/run/nvllm"),
        ("/host/models/tiny/config.json", "/models/tiny/config.json"),
        ("/host/models/tiny/sub/weights", "/models/tiny/sub/weights"),
    ]
    assert [(one.target, one.size) for one in PLAN.scratch] == [("/tmp", 65536), ("/home/nvllm", 512 * 2**20)]
    assert (PLAN.user, PLAN.port, PLAN.gpu, PLAN.gpus) == ("1234:1235", 8000, None, ())
    assert (PLAN.sentinels, PLAN.waivers) == (("drain", "zeroer"), ())
    assert (PLAN.model.tree, PLAN.model.revision) == (MODEL.tree, None)
    assert PLAN.build_hash == wanted().image.build_hash


# The engine's arguments


def arguments(**given_: bool | int | float | str) -> list[str]:
    return engine_arguments(dataclasses.replace(SPEC.profiles["eager"], arguments=given_))


def test_a_boolean_is_a_flag_or_its_negation() -> None:
    assert arguments(b=False, a=True) == ["--a", "--no-b"]


def test_a_boolean_within_a_value_is_written_out() -> None:
    """vLLM takes the next argument for the value of a dotted name, whatever it is."""
    assert arguments(**{"compilation-config.cudagraph": True, "a.b": False, "seed": 1}) == [
        *("--a.b", "false"),
        *("--compilation-config.cudagraph", "true"),
        *("--seed", "1"),
    ]


def test_a_negative_number_is_not_taken_for_an_option() -> None:
    """vLLM reads ``-0.5`` standing alone as the dotted name of an option."""
    assert arguments(bias=-0.5, seed=-1) == ["--bias=-0.5", "--seed=-1"]


@given(st.dictionaries(names, values, max_size=6))
def test_arguments_are_sorted_by_name_and_none_is_lost(given_: dict[str, bool | int | float | str]) -> None:
    found = arguments(**given_)
    options = [one for one in found if one.startswith("--")]
    heads = [option.partition("=")[0].removeprefix("--") for option in options]
    assert len(options) == len(given_)
    assert [
        head if head in given_ and given_[head] is not False else head.removeprefix("no-") for head in heads
    ] == sorted(given_)
    reversed_ = dict(reversed(list(given_.items())))
    assert arguments(**reversed_) == found


# Who, where


@given(ids, ids)
def test_the_engine_is_never_root(uid: int, gid: int) -> None:
    user, _, group = planner.container_user(uid, gid).partition(":")
    assert int(user) > 0
    assert int(group) > 0
    if uid and gid:
        assert (int(user), int(group)) == (uid, gid)


def test_a_root_operator_is_another_user_inside() -> None:
    assert plan(user=(0, 0)).user == "1000:1000"
    assert planner.container_user(0, 5) == "1000:1000"


def test_an_operator_of_the_root_group_is_not_of_it_inside() -> None:
    assert planner.container_user(501, 0) == "501:1000"


def test_a_profile_cannot_put_the_engine_online() -> None:
    """What nvllm decides wins: an engine that asks a hub serves something else than what was hashed."""
    spec = with_profile(SPEC, environment={"HF_HUB_OFFLINE": "0", "HOME": "/x", "OTHER": "1"})
    found = plan(spec).environment
    assert (found["HF_HUB_OFFLINE"], found["HOME"], found["OTHER"]) == ("1", "/home/nvllm", "1")


def test_a_profile_may_say_more_than_the_image() -> None:
    spec = with_profile(SPEC, environment={"VLLM_TARGET_DEVICE": "other"})
    assert plan(spec).environment["VLLM_TARGET_DEVICE"] == "other"


def test_a_gpu_profile_takes_as_many_as_it_needs() -> None:
    spec = with_profile(SPEC, gpu=GpuNeed(("12.1",), "580.1"))
    assert [gpu.uuid for gpu in plan(spec, gpus=GPUS).gpus] == ["GPU-6f1c"]
    assert plan(spec, gpus=()).gpus == ()
    assert plan(gpus=GPUS).gpus == ()


# A pure function


def test_the_same_makes_the_same() -> None:
    assert plan() == plan()


@settings(max_examples=20)
@given(st.dictionaries(names, values, max_size=5), st.dictionaries(words, words, max_size=5), st.randoms())
def test_the_order_of_mappings_decides_nothing(
    given_: dict[str, bool | int | float | str], environment: dict[str, str], random: Any
) -> None:
    def shuffled(mapping: dict[str, Any]) -> dict[str, Any]:
        items = list(mapping.items())
        random.shuffle(items)
        return dict(items)

    one = plan(with_profile(SPEC, arguments=given_, environment=environment))
    other = plan(with_profile(SPEC, arguments=shuffled(given_), environment=shuffled(environment)))
    assert one == other
    assert list(one.environment) == list(other.environment) == sorted(one.environment)


def test_the_order_of_sentinels_decides_nothing() -> None:
    assert plan(with_profile(SPEC, sentinels=("drain", "zeroer"))) == PLAN


# A draft model

DRAFT = locks.GOOD.models["hub"]
DRAFTING = with_profile(SPEC, draft="hub", arguments={"speculative-config": '{"num_speculative_tokens": 3}'})


def drafted(spec: ImageSpec = DRAFTING) -> LaunchPlan:
    files = [("config.json", Path("/host/hub/blobs/1")), ("sub/weights", Path("/host/hub/blobs/2"))]
    return plan(spec, draft=LocalModel(DRAFT, files))


def test_a_draft_model_is_mounted_at_a_place_of_its_own() -> None:
    found = drafted()
    assert found.draft is not None
    assert (found.draft.name, found.draft.path) == ("hub", "/drafts/hub")
    assert (found.draft.tree, found.draft.revision) == (DRAFT.tree, DRAFT.revision)
    assert found.models == (found.model, found.draft)
    assert found.model == PLAN.model
    assert [(one.source, one.target) for one in found.mounts[3:]] == [
        ("/host/hub/blobs/1", "/drafts/hub/config.json"),
        ("/host/hub/blobs/2", "/drafts/hub/sub/weights"),
    ]
    assert all(mount["ReadOnly"] for mount in options(found)["mounts"])


def test_a_model_may_draft_for_itself() -> None:
    spec = with_profile(DRAFTING, draft="tiny")
    found = plan(spec, draft=plansamples.LOCAL)
    assert [one.path for one in found.models] == ["/models/tiny", "/drafts/tiny"]
    assert len({one.target for one in found.mounts}) == len(found.mounts) == 5


@pytest.mark.parametrize(
    ("given_", "last"),
    [
        (
            {"speculative-config": '{"num_speculative_tokens": 3, "method": "draft_model"}'},
            ["--speculative-config", '{"method": "draft_model", "model": "/drafts/hub", "num_speculative_tokens": 3}'],
        ),
        (
            {"speculative-config.num_speculative_tokens": 3},
            ["--speculative-config.model", "/drafts/hub", "--speculative-config.num_speculative_tokens", "3"],
        ),
        ({"spec-tokens": 3}, ["--spec-tokens", "3", "--speculative-config.model", "/drafts/hub"]),
        ({}, ["--speculative-config.model", "/drafts/hub"]),
    ],
)
def test_the_engine_is_told_the_draft_model_with_the_other_settings(given_: dict[str, Any], last: list[str]) -> None:
    assert engine_arguments(with_profile(DRAFTING, arguments=given_).profiles["eager"]) == last


def test_settings_without_a_model_are_left_as_they_are() -> None:
    text = '{"method": "ngram",  "num_speculative_tokens": 3}'
    assert arguments(**{"speculative-config": text}) == ["--speculative-config", text]
    assert PLAN.draft is None


def test_the_gate_is_told_of_both_models() -> None:
    told = json.loads(planner.expectations(drafted(), [MODEL, DRAFT]))["models"]
    assert [one["path"] for one in told] == ["/models/tiny", "/drafts/hub"]
    assert [one["sha256"] for one in told[1]["files"]] == [one.sha256 for one in DRAFT.files]
    with pytest.raises(ValueError):
        planner.expectations(drafted(), [MODEL])


# What the gate is told


def expected(of: LaunchPlan = PLAN) -> Any:
    return json.loads(planner.expectations(of, [MODEL]))


def test_expectations_are_canonical() -> None:
    data = planner.expectations(PLAN, [MODEL])
    assert canonical.encode(json.loads(data)) == data


def test_expectations_hold_what_the_gate_reads_and_no_more() -> None:
    """What the gate does not compare is the schema, and the serve hash, which the image cannot know."""
    told = expected()
    read = set(re.findall(r'expected\["(\w+)"\]', inspect.getsource(gate.main)))
    assert told.keys() - read == {"schema", "serve_hash"}
    assert read <= told.keys()
    assert told["build_hash"] == PLAN.build_hash
    assert told["serve_hash"] == PLAN.serve_hash


def test_the_gate_finds_its_own_environment_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in {**PLAN.environment, "HOSTNAME": "4f5e"}.items():
        monkeypatch.setenv(name, value)
    assert gate.environment(expected()["environment"]) == []
    monkeypatch.setenv("VLLM_EXTRA", "1")
    (found,) = gate.environment(expected()["environment"])
    assert "VLLM_EXTRA" in found["found"]


def test_the_gate_finds_the_run_directory_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "RUN", str(tmp_path))
    for name in ("launch.json", *PLAN.sentinels):
        (tmp_path / name).touch()
    found = gate.run_directory(expected()["sentinels"])
    assert [one["expected"] for one in found] == ["a read-only mount"]  # which a directory of a test is not


def test_the_gate_finds_the_model_in_them(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "sub/weights").write_text("weights")
    (told,) = expected()["models"]
    files = told["files"]
    assert {one["expected"] for one in gate.model(str(tmp_path), files)} == {"a read-only mount"}
    (tmp_path / "sub/weights").write_text("other bytes")
    assert "a file of 7 bytes" in {one["expected"] for one in gate.model(str(tmp_path), files)}
    assert told["path"] == "/models/tiny"


def test_the_gate_finds_the_cache_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, tree = blessings_world.stored(tmp_path, {cachetree.LOCKS})
    told = json.loads(planner.expectations(planner.loading(PLAN, tree), [MODEL], tree))["cache"]
    assert told["path"] == CACHE
    monkeypatch.setattr(gate, "read_only", lambda _: True)
    assert {one["expected"] for one in gate.cache({**told, "path": str(store.path(tree.hash))})} == {
        "a read-only mount"  # which a directory of a test is not
    }
    assert expected()["cache"] is None
    assert gate.cache(None) == []


def test_a_plan_that_loads_a_cache_is_the_same_in_all_else() -> None:
    before = plan(with_profile(SPEC, blessed=True))
    after = planner.mounting(planner.loading(before, blessings_world.TREE), Path("/host/copy"))
    assert after.serve_hash == before.serve_hash == servehash.serve_hash(after)
    assert set(after.environment.items()) - set(before.environment.items()) == {(FORCE_LOAD, "1")}
    assert after.mounts[len(before.mounts) :] == (Mount("/host/copy", CACHE),)
    assert [one.target for one in after.scratch[len(before.scratch) :]] == [f"{CACHE}/locks"]
    cleared = dataclasses.replace(
        after, environment=before.environment, mounts=before.mounts, scratch=before.scratch, cache=None
    )
    assert cleared == before


INDUCTOR = f"{blessings_world.AOT}/inductor_cache"


def on_a_gpu(tmp_path: Path) -> tuple[LaunchPlan, Tree, Path]:
    """A plan on a GPU that loads a blessed cache, the tree of that cache, and where it lies."""
    store = TreeStore(tmp_path / "trees")
    tree = store.adopt(blessings_world.cache(tmp_path / "fresh"), blessings_world.CURE)
    spec = replace(with_profile(SPEC, blessed=True, gpu=GpuNeed(("12.1",), "580.1")), targets=("sm_121a",))
    before = plan(spec, gpus=GPUS)
    return planner.mounting(planner.loading(before, tree, "refuse"), store.path(tree.hash)), tree, store.path(tree.hash)


def test_on_a_gpu_the_engine_writes_into_a_copy_of_inductors_directory(tmp_path: Path) -> None:
    after, tree, stored = on_a_gpu(tmp_path)
    assert tree.seeds == (INDUCTOR,)
    copies = [one for one in after.scratch if one.target.startswith(f"{CACHE}/")]
    assert [one.target for one in copies] == [f"{CACHE}/{INDUCTOR}"]
    assert copies[0].size > sum(one.size for one in tree.below(INDUCTOR))
    assert after.mounts[-1] == Mount(str(stored), "/blessed")
    assert after.command.engine[:3] == (after.command.interpreter, "-I", "/opt/nvllm/seed.py")
    assert servehash.serve_hash(after) == after.serve_hash


def test_a_blessed_engine_is_started_by_the_program_that_copies() -> None:
    command = plan(with_profile(SPEC, blessed=True)).command
    assert command.engine[:3] == (command.interpreter, "-I", "/opt/nvllm/seed.py")


def test_no_profile_that_is_not_blessed_has_a_program_before_the_engine() -> None:
    for need in (None, GpuNeed(("12.1",), "580.1")):
        other = plan(replace(with_profile(SPEC, gpu=need), targets=("sm_121a",)), gpus=GPUS)
        assert "/opt/nvllm/seed.py" not in other.command.words
        assert "-c" not in other.command.words


def test_the_gate_finds_each_file_of_a_gpus_cache_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mounts are made of directories; then only their being writable is found."""
    after, tree, stored = on_a_gpu(tmp_path)
    told = json.loads(planner.expectations(after, [MODEL], tree))
    seeds = {f"{INDUCTOR}/{one['path']}" for one in told["models"][-1]["files"]}
    assert seeds | {one["path"] for one in told["cache"]["files"]} == {one.path for one in tree.files}
    assert not seeds & {one["path"] for one in told["cache"]["files"]}
    assert told["models"][-1]["path"] == f"/blessed/{INDUCTOR}"
    assert told["cache"]["missing"] == "refuse"
    monkeypatch.setattr(gate, "read_only", lambda _: True)
    assert {one["expected"] for one in gate.model(str(stored / INDUCTOR), told["models"][-1]["files"])} == {
        "a read-only mount"
    }
    mounted = tmp_path / "mounted"
    shutil.copytree(stored, mounted)
    shutil.rmtree(mounted / INDUCTOR)
    (mounted / INDUCTOR).mkdir()
    expected = {**told["cache"], "path": str(mounted)}
    assert {one["expected"] for one in gate.cache(expected)} == {"a read-only mount"}
    (mounted / INDUCTOR / "left").touch()
    assert "an empty directory" in {one["expected"] for one in gate.cache(expected)}


def test_a_blessed_profile_is_another_one() -> None:
    """It has ahead-of-time code, and a directory of its own for the other caches beside the one that is mounted."""
    one = plan(with_profile(SPEC, blessed=True))
    assert one.serve_hash != PLAN.serve_hash
    assert set(one.environment.items()) - set(PLAN.environment.items()) == {("VLLM_USE_AOT_COMPILE", "1")}
    assert [scratch.target for scratch in one.scratch[len(PLAN.scratch) :]] == [str(Path(CACHE).parent)]


def test_only_a_workbench_can_write(tmp_path: Path) -> None:
    """The engine is out of reach here; what it would be told is a function of the plan, and of nothing else."""
    told: list[Any] = []

    class Silent:
        def create(self, **options: Any) -> Any:
            told.append(options)
            return self

        def start(self) -> None:
            pass

        id = "4f"

    class Client:
        containers = Silent()

        class Api:
            def containers(self, **_: Any) -> list[Any]:
                return []

            def inspect_image(self, reference: str) -> dict[str, str]:
                return {"Id": reference}

        api = Api()

        def version(self) -> dict[str, str]:
            return {"Version": "20.10.24"}

    asked = engine.Engine(Client())  # type: ignore[arg-type]  # all that starting asks of a client
    asked.start(PLAN, {})
    asked.start_workbench(Workbench(PLAN, str(tmp_path)), {})
    served, compiled = told
    assert all(mount["ReadOnly"] for mount in served["mounts"])
    assert compiled["mounts"][:-1] == served["mounts"]
    bench = compiled["mounts"][-1]
    assert (bench["Target"], bench["Source"], bench.get("ReadOnly", False)) == (CACHE, str(tmp_path), False)
    assert {name: value for name, value in compiled.items() if name != "mounts"} == {
        name: value for name, value in served.items() if name != "mounts"
    }


def test_the_gate_becomes_the_command_in_them() -> None:
    assert expected()["command"] == list(PLAN.command.words[3:]) == list(PLAN.command.engine)
    assert expected()["command"][0] == "vllm"


# What the engine is told. The engine itself is out of reach here; its options are a pure function of the plan.

HARDENED = {
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    "ipc_mode": "private",
    "shm_size": PLAN.limits.shared_memory,
    "mem_limit": PLAN.limits.memory,
    "memswap_limit": PLAN.limits.memory,
    "pids_limit": PLAN.limits.pids,
    "ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}, {"Name": "nofile", "Soft": 16384, "Hard": 16384}],
    "ports": {"8000/tcp": [("127.0.0.1", PLAN.port)]},
    "user": "1234:1235",
    "restart_policy": {"Name": "no"},
}


def options(of: LaunchPlan, product: Product = "Docker") -> dict[str, Any]:
    return containers.options(container.of_plan(of, {INSTANCE_LABEL: of.instance}), product)


def test_podman_is_told_in_its_own_words() -> None:
    """It takes no owner of a tmpfs, and would start without the GPUs that it is asked for as Docker is."""
    docker, podman = options(PLAN), options(PLAN, "Podman")
    assert {name for name in docker if docker[name] != podman[name]} == {"tmpfs"}
    for target, text in docker["tmpfs"].items():
        assert text.endswith(",mode=0700,uid=1234,gid=1235")
        assert podman["tmpfs"][target] == text.removesuffix(",uid=1234,gid=1235") + ",U,notmpcopyup"


def test_the_port_is_published_on_the_loopback_and_where_the_profile_says() -> None:
    published = {}
    for address in ("127.0.0.1", "192.0.2.7", "0.0.0.0"):
        ports = options(plan(with_profile(SPEC, access=Access(publish=address))))["ports"]["8000/tcp"]
        published[address] = [host for host, port in ports if port == PLAN.port]
    assert published == {
        "127.0.0.1": ["127.0.0.1"],
        "192.0.2.7": ["127.0.0.1", "192.0.2.7"],
        "0.0.0.0": ["0.0.0.0"],
    }


def test_gpus_are_asked_for_by_uuid_in_the_words_of_each_engine() -> None:
    gpus = (PlannedGpu("GPU-6f1c", "a GPU", "12.1", "580.95.05"), PlannedGpu("GPU-77", "a GPU", "12.1", "580.95.05"))
    plan = replace(PLAN, gpu=GpuNeed(("12.1",), "575.51.03", 2), gpus=gpus)
    (docker,) = options(plan)["device_requests"]
    assert (docker["Driver"], docker["DeviceIDs"], docker["Capabilities"]) == ("", ["GPU-6f1c", "GPU-77"], [["gpu"]])
    (podman,) = options(plan, "Podman")["device_requests"]
    assert (podman["Driver"], podman["DeviceIDs"]) == ("cdi", ["nvidia.com/gpu=GPU-6f1c", "nvidia.com/gpu=GPU-77"])


def test_hardening_is_there_in_full() -> None:
    found = options(PLAN)
    assert {name: found[name] for name in HARDENED} == HARDENED
    weakening = {"privileged", "cap_add", "devices", "volumes", "network_mode", "pid_mode", "userns_mode", "group_add"}
    assert not weakening & found.keys()


@settings(max_examples=15)
@given(
    st.lists(st.tuples(words, words), max_size=4),
    st.sets(st.sampled_from(sorted(WAIVERS))),
    st.booleans(),
    st.none() | st.just(GpuNeed(("12.1",), "580.1", 2)),
)
def test_every_mount_is_read_only_whatever_is_waived(
    files: list[tuple[str, str]], waived: set[str], dev: bool, gpu: GpuNeed | None
) -> None:
    waivers = tuple(Waiver(name, "the test wants it") for name in sorted(waived))
    spec = with_profile(SPEC, waivers=waivers, dev=dev, gpu=gpu)
    model = LocalModel(MODEL, [(inside, Path("/host", outside)) for inside, outside in files])
    found = options(plan(spec, model=model, gpus=GPUS))
    assert len(found["mounts"]) == len(files) + 1
    for mount in found["mounts"]:
        assert mount["ReadOnly"] is True
        assert mount["Type"] == "bind"
    assert {target for target, said in found["tmpfs"].items() if "nosuid,nodev" in said} == {"/tmp", "/home/nvllm"}


@pytest.mark.parametrize(
    ("waiver", "changed", "gone"),
    [
        ("host-ipc", {"ipc_mode": "host"}, {"shm_size"}),
        ("host-network", {"network_mode": "host", "command": ...}, {"ports"}),
        ("no-seccomp", {"security_opt": ["no-new-privileges", "seccomp=unconfined"]}, set()),
        ("writable-root", {"read_only": False}, set()),
        ("trust-remote-code", {}, set()),
    ],
)
def test_a_waiver_changes_its_own_option_and_nothing_else(waiver: str, changed: dict[str, Any], gone: set[str]) -> None:
    before = options(PLAN)
    after = options(plan(with_profile(SPEC, waivers=(Waiver(waiver, "the test wants it"),))))
    differing = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert differing == changed.keys() | gone
    assert gone & after.keys() == set()
    assert {name: after[name] for name, value in changed.items() if value is not ...} == {
        name: value for name, value in changed.items() if value is not ...
    }


def test_the_table_of_waivers_is_the_one_that_is_tried() -> None:
    assert set(WAIVERS) == {
        *("host-ipc", "host-network", "no-seccomp", "published-without-key", "trust-remote-code", "writable-root")
    }


def test_on_the_host_network_the_engine_listens_on_the_profiles_port_of_loopback() -> None:
    """Nothing publishes a port there: where the engine listens is where it is asked, and who else can ask."""
    found = plan(with_profile(SPEC, waivers=(Waiver("host-network", "the test wants it"),), port=8123))
    assert found.command.words[8:12] == ("--host", "127.0.0.1", "--port", "8123")


def test_a_drain_is_vllms_own_and_not_hashed() -> None:
    assert "--shutdown-timeout" not in PLAN.command.words
    found = plan(with_profile(SPEC, limits=replace(PLAN.limits, drain_timeout=30)))
    at = found.command.words.index("--shutdown-timeout")
    assert (found.command.words[at + 1], found.serve_hash) == ("30", PLAN.serve_hash)


def test_a_production_profile_is_no_weaker_than_a_development_one() -> None:
    before, after = options(PLAN), options(plan(with_profile(SPEC, dev=True)))
    assert before == after


def test_a_plan_never_holds_a_limit_of_nothing() -> None:
    limits = ResourceLimits(1, 2, 3, 4, 5)
    found = options(plan(with_profile(SPEC, limits=limits)))
    assert (found["mem_limit"], found["memswap_limit"], found["shm_size"], found["pids_limit"]) == (1, 1, 2, 4)
    assert "size=3," in found["tmpfs"]["/tmp"]


def test_secrets_cannot_reach_a_plan() -> None:
    """The schema refuses their names wherever a variable may be written, and nvllm adds none of its own."""
    for name in ("HF_TOKEN", "VLLM_API_KEY", "SOME_SECRET", "PASSWORD"):
        assert name not in PLAN.environment
        for variable in ("OMP_NUM_THREADS", "VLLM_TARGET_DEVICE"):
            with pytest.raises(Refused) as caught:
                specfile.parse(plansamples.TEXT.replace(variable, name), SHOWN)
            assert [refusal.code for refusal in caught.value.refusals] == ["NV101"]
    forbidden = ("TOKEN", "SECRET", "PASSWORD", "API_KEY")
    assert [name for name in PLAN.environment if name.endswith(forbidden)] == []


def test_the_model_of_the_lock_is_the_model_of_the_plan() -> None:
    hub = locks.GOOD.models["hub"]
    assert plan(model=LocalModel(hub, ())).model.revision == "a" * 40
