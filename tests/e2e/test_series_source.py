"""What the series of the newer vLLM do to the real source: behaviour, with the stock source beside it.

vLLM itself is not installed here. What a test needs of its source is cut out by its syntax tree and run with
stand-ins for what lies around it. The whole engine is run by other tests; these run without torch.
"""

from __future__ import annotations

import ast
import contextlib
import enum
import functools
import hashlib
import importlib.util
import inspect
import json
import os
import pathlib
import sys
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from nvllm.patches import patchcheck, patching, patchset, seriesfile, source
from nvllm.patches.source import DirectoryTree, Overlay, SourceTree

pytestmark = [
    pytest.mark.series,
    pytest.mark.nvllm_host,
    pytest.mark.nvllm_error("LookupError", "TypeError", "FileNotFoundError"),
]

_ROOT = Path(__file__).parents[2]
_DEBUGGING = "poison"
"""The one carried patch that no image enables."""
_SECRET = "sk-a-secret-that-must-not-leave-this-process"


class _Set:
    """The series of a VERSION, its diffs, and the patches that an image of it enables."""

    def __init__(self, version: str) -> None:
        directory, shown = _ROOT / "patches" / f"v{version}", f"patches/v{version}"
        self.series = seriesfile.load(directory, shown)
        self.diffs = seriesfile.diffs(directory, self.series.patches, shown)
        carried = [patch.id for patch in self.series.patches if patch.status == "carried"]
        self.enabled = [name for name in carried if name != _DEBUGGING]

    def applied(self, stock: SourceTree, names: Sequence[str]) -> SourceTree:
        chosen = patchset.choose(self.series, names)
        return Overlay(stock, patching.apply_all(stock, [self.diffs[patch.id] for patch in chosen]))


@pytest.fixture(params=["0.28.0", "0.32.0", "0.33.0"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


carried_up_to_0_28 = pytest.mark.parametrize("version", ["0.28.0"], indirect=True)
"""For a test of a patch that 0.32.0 has."""


@pytest.fixture
def stock(version: str, vllm_sources: Callable[[str], Path]) -> SourceTree:
    return DirectoryTree(vllm_sources(version))


@pytest.fixture
def patched(version: str, stock: SourceTree) -> SourceTree:
    """The source with all that an image enables, or with that which `nvllm patch prove` asks for."""
    asked, here = os.environ.get("NVLLM_PATCHES"), _Set(version)
    return here.applied(stock, here.enabled if asked is None else [name for name in asked.split(",") if name])


def _text(tree: SourceTree, path: str) -> str:
    content = tree.read(path)
    assert content is not None, path
    return content.decode()


def _cut(tree: SourceTree, path: str, *names: str, within: str | None = None, **around: object) -> dict[str, Any]:
    """Run the definitions NAMES of PATH (of class WITHIN it) with AROUND as their globals, which are returned."""
    body: list[ast.stmt] = ast.parse(_text(tree, path)).body
    if within is not None:
        (body,) = [node.body for node in body if isinstance(node, ast.ClassDef) and node.name == within]
    found = [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names]
    assert sorted(node.name for node in found) == sorted(names)
    # Annotations name types that are not here; as strings they are never looked up.
    future: ast.stmt = ast.parse("from __future__ import annotations").body[0]
    module = ast.Module([future, *found], [])
    namespace: dict[str, Any] = {**around}
    exec(compile(module, path, "exec"), namespace)
    return namespace


# aot-load-guard


class _Loading:
    """`_try_load_aot_compiled_fn` of TREE, with everything around it standing in."""

    def __init__(self, tree: SourceTree, monkeypatch: pytest.MonkeyPatch, *, force: bool) -> None:
        class VllmSerializableFunction:
            """What vLLM's own backend saves: its loading is finalized by a second call."""

            def __init__(self) -> None:
                self.finalized: list[object] = []

            def finalize_loading(self, vllm_config: object) -> None:
                self.finalized.append(vllm_config)

        caching = ModuleType("vllm.compilation.caching")
        caching.__dict__["VllmSerializableFunction"] = VllmSerializableFunction
        for name in ("vllm", "vllm.compilation"):
            package = ModuleType(name)
            package.__path__ = []
            monkeypatch.setitem(sys.modules, name, package)
        monkeypatch.setitem(sys.modules, caching.__name__, caching)
        self.own_artifact = VllmSerializableFunction()
        self.counter = SimpleNamespace(num_aot_artifacts_loaded=0)
        self.log: list[str] = []
        self._loaded: object = None
        namespace = _cut(
            tree,
            "vllm/compilation/decorators.py",
            "_try_load_aot_compiled_fn",
            __package__="vllm.compilation",
            __name__="vllm.compilation.decorators",
            os=os,
            torch=SimpleNamespace(compiler=SimpleNamespace(load_compiled_function=lambda *_, **__: self._loaded)),
            envs=SimpleNamespace(VLLM_FORCE_AOT_LOAD=force),
            monitor_torch_compile=lambda *_, **__: contextlib.nullcontext(),
            set_current_vllm_config=lambda *_: contextlib.nullcontext(),
            maybe_use_cudagraph_partition_wrapper=lambda *_: contextlib.nullcontext(),
            _verify_source_unchanged=lambda *_: None,
            compilation_counter=self.counter,
            logger=SimpleNamespace(info=self._say, warning=self._say),
        )
        self._function: Callable[[object, str], object] = namespace["_try_load_aot_compiled_fn"]

    def _say(self, text: str, *values: object) -> None:
        self.log.append(text % values)

    def load(self, artifact: object, path: Path) -> object:
        """Return what comes of loading PATH when torch gives back a function that holds ARTIFACT."""
        path.write_bytes(b"saved")
        self._loaded = SimpleNamespace(
            _artifacts=SimpleNamespace(compiled_fn=artifact), source_info=lambda: None, disable_guard_check=lambda: None
        )
        model = SimpleNamespace(
            vllm_config="the config",
            _is_encoder=False,
            forward=_forward,
            compilation_config=SimpleNamespace(dynamic_shapes_config=SimpleNamespace(evaluate_guards=False)),
        )
        return self._function(model, str(path))

    @property
    def loaded(self) -> object:
        return self._loaded


def _forward() -> None:
    """A model's forward, of which only the globals are asked."""


def _plain(*_: object) -> None:
    """What a stock backend of torch.compile gives back when its artifact is loaded."""


@pytest.mark.nvllm_error("AttributeError")
def test_an_artifact_that_is_a_plain_function_is_loaded(
    stock: SourceTree, patched: SourceTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = _Loading(stock, monkeypatch, force=False)
    assert without.load(_plain, tmp_path / "model") is None
    assert "'function' object has no attribute 'finalize_loading'" in without.log[0]

    loading = _Loading(patched, monkeypatch, force=True)
    assert loading.load(_plain, tmp_path / "model") is loading.loaded
    assert loading.log == [f"Directly load AOT compilation from path {tmp_path / 'model'}"]
    assert loading.counter.num_aot_artifacts_loaded == 1


def test_an_artifact_of_vllms_own_backend_is_still_finalized_once(
    stock: SourceTree, patched: SourceTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tree in (stock, patched):
        loading = _Loading(tree, monkeypatch, force=True)
        assert loading.load(loading.own_artifact, tmp_path / "model") is loading.loaded
        assert loading.own_artifact.finalized == ["the config"]


# api-key-out-of-compile-key


@pytest.fixture
def compile_factors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[SourceTree], dict[str, object]]:
    """`vllm.envs.compile_factors` of a tree, run with the tree's own `normalize_value`."""

    def factors(tree: SourceTree) -> dict[str, object]:
        utils = ModuleType("vllm.config.utils")
        utils.__dict__.update(_config_utils(tree))
        for name in ("vllm", "vllm.config"):
            package = ModuleType(name)
            package.__path__ = []
            monkeypatch.setitem(sys.modules, name, package)
        monkeypatch.setitem(sys.modules, utils.__name__, utils)
        file = tmp_path / "envs_under_test.py"
        file.write_text(_text(tree, "vllm/envs.py"), encoding="utf-8")
        spec = importlib.util.spec_from_file_location("envs_under_test", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        result: dict[str, object] = module.compile_factors()
        return result

    return factors


def _config_utils(tree: SourceTree) -> dict[str, Any]:
    class NoDtype:
        """Stands in for torch.dtype: no environment variable is one."""

    return _cut(
        tree,
        "vllm/config/utils.py",
        "normalize_value",
        "hash_factors",
        enum=enum,
        hashlib=hashlib,
        json=json,
        pathlib=pathlib,
        torch=SimpleNamespace(dtype=NoDtype),
        is_dataclass=is_dataclass,
        Mapping=Mapping,
        Sequence=Sequence,
        Set=Set,
    )


@carried_up_to_0_28
def test_the_api_key_is_no_compile_factor(
    stock: SourceTree,
    patched: SourceTree,
    compile_factors: Callable[[SourceTree], dict[str, object]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", _SECRET)
    before, after = compile_factors(stock), compile_factors(patched)
    assert before["VLLM_API_KEY"] == _SECRET  # this is what cache_key_factors.json would hold
    assert _SECRET not in json.dumps(after)
    assert after == {name: value for name, value in before.items() if name != "VLLM_API_KEY"}


@carried_up_to_0_28
def test_another_api_key_gives_the_same_compile_key(
    stock: SourceTree,
    patched: SourceTree,
    compile_factors: Callable[[SourceTree], dict[str, object]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def keys(tree: SourceTree) -> Iterator[str]:
        for secret in (None, _SECRET, "another"):
            if secret is None:
                monkeypatch.delenv("VLLM_API_KEY", raising=False)
            else:
                monkeypatch.setenv("VLLM_API_KEY", secret)
            yield _config_utils(tree)["hash_factors"](compile_factors(tree))

    assert len(set(keys(stock))) == 3
    assert len(set(keys(patched))) == 1


# scheduler-drain: upstream already, so the stock source must behave


def test_the_scheduler_drains_new_block_ids_that_nobody_zeroes(version: str, stock: SourceTree) -> None:
    path = "vllm/v1/core/sched/scheduler.py"
    drain = _cut(stock, path, "_get_new_block_ids_to_zero", within="Scheduler")["_get_new_block_ids_to_zero"]
    held = [1, 2, 3]

    def take() -> list[int]:
        taken, held[:] = held[:], []
        return taken

    manager = SimpleNamespace(take_new_block_ids=take)
    scheduler = SimpleNamespace(kv_cache_manager=manager, needs_kv_cache_zeroing=False, _skip_zero_block_ids=set())
    assert drain(scheduler) is None
    assert held == []

    held[:] = [1, 2, 3]
    scheduler.needs_kv_cache_zeroing = True
    scheduler._skip_zero_block_ids = {2}
    # 0.32.0 does not record what a transfer fills, where 0.28.0 left it out at the end.
    assert drain(scheduler) == ([1, 3] if version == "0.28.0" else [1, 2, 3])
    assert held == []
    # A drain that no step calls would help nobody: it must be a field of every step's output.
    calls = [
        node.value.func.attr
        for node in ast.walk(ast.parse(_text(stock, path)))
        if isinstance(node, ast.keyword) and node.arg == "new_block_ids_to_zero"
        if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute)
    ]
    assert calls == ["_get_new_block_ids_to_zero"]


def test_a_manager_without_zeroing_records_no_block_ids(stock: SourceTree) -> None:
    class AttentionSpec:
        block_size = 16
        dcp_sharded = False

    class CircularBufferSpec:
        """Another spec, which is none of these."""

    class Pool:
        null_block = None
        given = 0

        def get_new_blocks(self, count: int) -> list[SimpleNamespace]:
            self.given += count
            return [SimpleNamespace(block_id=self.given - index) for index in range(count)]

    base = _cut(
        stock,
        "vllm/v1/core/single_type_kv_cache_manager.py",
        "SingleTypeKVCacheManager",
        __name__="single_type_kv_cache_manager",
        ABC=ABC,
        abstractmethod=abstractmethod,
        ClassVar=ClassVar,
        defaultdict=defaultdict,
        AttentionSpec=AttentionSpec,
        CircularBufferSpec=CircularBufferSpec,
        cdiv=lambda a, b: -(-a // b),
    )["SingleTypeKVCacheManager"]
    concrete = type("Manager", (base,), dict.fromkeys(base.__abstractmethods__))
    for zeroing, recorded in ((False, 0), (True, 80)):
        manager = concrete(
            AttentionSpec(),
            Pool(),
            enable_caching=False,
            kv_cache_group_id=0,
            scheduler_block_size=16,
            needs_kv_cache_zeroing=zeroing,
        )
        for request in range(20):
            manager.allocate_new_blocks(str(request), 64, 64)
        assert len(manager.new_block_ids) == recorded
        assert len(manager.take_new_block_ids()) == recorded
        assert manager.new_block_ids == []


# eager-sampler


class _Noise:
    """Stands in for the tensor that the eager way draws from."""

    def exponential_(self) -> _Noise:
        return self


@carried_up_to_0_28
def test_an_eager_engine_does_not_compile_its_sampler(stock: SourceTree, patched: SourceTree) -> None:
    assert [_sampled(tree, "NONE") for tree in (stock, patched)] == ["compiled", "eager"]


@carried_up_to_0_28
@pytest.mark.parametrize("mode", ["DYNAMO_TRACE_ONCE", None])
def test_any_other_sampler_is_compiled_as_before(stock: SourceTree, patched: SourceTree, mode: str | None) -> None:
    assert [_sampled(tree, mode) for tree in (stock, patched)] == ["compiled", "compiled"]


def _sampled(tree: SourceTree, mode: str | None) -> str:
    """Return which way TREE's sampler for the CPU takes in an engine of the compilation MODE, or in none."""

    class Module:
        """Stands in for torch.nn.Module."""

    class CompilationMode(enum.Enum):
        NONE = 0
        DYNAMO_TRACE_ONCE = 2

    config = None
    if mode is not None:
        config = SimpleNamespace(compilation_config=SimpleNamespace(mode=CompilationMode[mode]))
    platform = SimpleNamespace(is_cuda=lambda: False, is_cpu=lambda: True, get_cpu_architecture=lambda: "X86")
    sampler = _cut(
        tree,
        "vllm/v1/sample/ops/topk_topp_sampler.py",
        "TopKTopPSampler",
        __name__="topk_topp_sampler",
        nn=SimpleNamespace(Module=Module),
        torch=SimpleNamespace(float32=None),
        current_platform=platform,
        CpuArchEnum=SimpleNamespace(RISCV="RISCV", POWERPC="POWERPC"),
        CompilationMode=CompilationMode,
        get_current_vllm_config_or_none=lambda: config,
        apply_top_k_top_p=lambda logits, *_: logits,
        compiled_random_sample=lambda _: "compiled",
        empty_exponential_noise_like=lambda *_: _Noise(),
        sample_with_exponential_noise=lambda *_: "eager",
    )["TopKTopPSampler"]()
    logits = SimpleNamespace(shape=(1, 320), softmax=lambda **_: None)
    way, nothing = sampler.forward(logits, {}, None, None)
    assert nothing is None
    return str(way)


# eager-logprobs


def test_an_eager_engine_does_not_compile_the_ranks_of_logprobs(stock: SourceTree, patched: SourceTree) -> None:
    assert [_ranked(tree, compiles=False) for tree in (stock, patched)] == ["compiled", "eager"]
    assert [_ranked(tree, compiles=True) for tree in (stock, patched)] == ["compiled", "compiled"]


def _ranked(tree: SourceTree, *, compiles: bool) -> str:
    """Return which way TREE's sampler ranks the logprobs of a token where the engine COMPILES or not."""

    class Module:
        """Stands in for torch.nn.Module."""

    class Tensor:
        """Stands in for a tensor, whatever is done to it."""

        dtype = "int64"

        def gather(self, *_: object) -> Tensor:
            return self

        def unsqueeze(self, *_: object) -> Tensor:
            return self

        def to(self, *_: object) -> Tensor:
            return self

    class CompilationMode(enum.Enum):
        NONE = 0
        DYNAMO_TRACE_ONCE = 2

    mode = CompilationMode.DYNAMO_TRACE_ONCE if compiles else CompilationMode.NONE
    config = SimpleNamespace(compilation_config=SimpleNamespace(mode=mode))
    decorators = SimpleNamespace(mark_unbacked=lambda *_: None)
    sampler = _cut(
        tree,
        "vllm/v1/sample/sampler.py",
        "Sampler",
        __name__="sampler",
        nn=SimpleNamespace(Module=Module),
        torch=SimpleNamespace(
            int64="int64",
            int32="int32",
            topk=lambda *_, **__: (Tensor(), Tensor()),
            cat=lambda *_, **__: Tensor(),
            _dynamo=SimpleNamespace(decorators=decorators),
        ),
        PIN_MEMORY=False,
        TopKTopPSampler=lambda *_: SimpleNamespace(compile_random_sample=compiles),  # which 0.28.0 asks
        CompilationMode=CompilationMode,  # which 0.32.0 asks, as its sampler of tokens is compiled in no mode
        get_current_vllm_config_or_none=lambda: config,
        gpu_sync_allowed=lambda **_: contextlib.nullcontext(),
        LogprobsTensors=lambda _indices, _logprobs, ranks: ranks,
        batched_count_greater_than=lambda *_: "compiled",
        count_greater_than=lambda *_: "eager",
    )["Sampler"]()
    return str(sampler.gather_logprobs(Tensor(), 1, Tensor()))


# inspect-in-process


def test_on_the_cpu_a_model_is_inspected_in_the_process_that_asks(
    stock: SourceTree, patched: SourceTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {
        (name, cpu): _inspected(tree, tmp_path / f"{name}-{cpu}", monkeypatch, cpu=cpu)
        for name, tree in (("stock", stock), ("patched", patched))
        for cpu in (False, True)
    }
    processes = {key: started for key, (started, _) in found.items()}
    assert processes == {("stock", False): 1, ("stock", True): 1, ("patched", False): 1, ("patched", True): 0}
    # What is found, and what is kept of it for the next start, does not depend on the process.
    (saved,) = {text for _, text in found.values()}
    assert json.loads(saved)["modelinfo"] == {"architecture": "JSONDecoder"}


def _inspected(tree: SourceTree, root: Path, monkeypatch: pytest.MonkeyPatch, *, cpu: bool) -> tuple[int, str]:
    """Let the registry of TREE inspect a class twice; return how many processes it took, and what ROOT keeps of it."""

    @dataclass(frozen=True)
    class ModelInfo:
        """Stands in for what vLLM notes of a model's class."""

        architecture: str

        @classmethod
        def from_model_cls(cls, model: type) -> ModelInfo:
            return cls(model.__name__)

    started = []

    def run_in_subprocess(inspect_it: Callable[[], object]) -> object:
        started.append(inspect_it)
        return inspect_it()

    modules: dict[str, dict[str, object]] = {
        "vllm": {},
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: cpu)},
        "vllm.model_executor": {},
        "vllm.model_executor.model_loader": {},
        "vllm.model_executor.model_loader.weight_utils": {"atomic_writer": functools.partial(open, mode="w")},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    registered = _cut(
        tree,
        "vllm/model_executor/models/registry.py",
        "_LazyRegisteredModel",
        __name__=__name__,
        dataclass=dataclass,
        asdict=asdict,
        importlib=importlib,
        json=json,
        Path=Path,
        envs=SimpleNamespace(VLLM_CACHE_ROOT=str(root)),
        logger=SimpleNamespace(debug=lambda *_: None),
        logtime=lambda **_: lambda function: function,
        safe_hash=lambda data, **_: hashlib.sha256(data),
        _BaseRegisteredModel=object,
        _ModelInfo=ModelInfo,
        _run_in_subprocess=run_in_subprocess,
    )["_LazyRegisteredModel"]
    model = registered("json.decoder", "JSONDecoder")
    assert model.inspect_model_cls() == model.inspect_model_cls() == ModelInfo("JSONDecoder")
    (kept,) = (root / "modelinfos").iterdir()
    return len(started), kept.read_text(encoding="utf-8")


# engine-core-fork

_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


def test_the_cpu_platform_leaves_the_way_to_start_the_core_to_its_user(stock: SourceTree, patched: SourceTree) -> None:
    assert {asked: _method_of(stock, asked) for asked in ("fork", "spawn", None)} == {
        "fork": "spawn",
        "spawn": "spawn",
        None: "spawn",
    }
    assert {asked: _method_of(patched, asked) for asked in ("fork", "spawn", None)} == {
        "fork": "fork",
        "spawn": "spawn",
        None: "spawn",
    }


def _method_of(tree: SourceTree, asked: str | None) -> str:
    """Return how the CPU platform of TREE has processes started where its user has asked for ASKED."""
    path, function = "vllm/platforms/cpu.py", "check_and_update_config"
    found = [
        statement
        for node in ast.walk(ast.parse(_text(tree, path)))
        if isinstance(node, ast.FunctionDef) and node.name == function
        for statement in node.body
        if _METHOD in ast.unparse(statement)
    ]
    environment = {} if asked is None else {_METHOD: asked}
    exec(compile(ast.Module(found, []), path, "exec"), {"os": SimpleNamespace(environ=environment)})
    return environment[_METHOD]


def test_workers_of_the_cpu_are_spawned_whatever_starts_the_core(patched: SourceTree) -> None:
    # LD_PRELOAD and GOMP_CPU_AFFINITY bind a worker's threads, and are read when a program starts.
    executor = ast.parse(_text(patched, "vllm/v1/executor/multiproc_executor.py"))
    called = [
        node.func.id for node in ast.walk(executor) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert [name for name in called if name.endswith("_mp_context")] == ["get_worker_mp_context"] * 2
    for cpu, worker in ((True, "spawn"), (False, "fork")):
        functions = _cut(
            patched,
            "vllm/utils/system_utils.py",
            "get_mp_context",
            "get_worker_mp_context",
            current_platform=SimpleNamespace(is_cpu=lambda cpu=cpu: cpu),
            envs=SimpleNamespace(VLLM_WORKER_MULTIPROC_METHOD="fork"),
            multiprocessing=SimpleNamespace(get_context=lambda method: method),
            _maybe_force_spawn=lambda: None,
            _release_libgomp_threads=lambda: None,  # which 0.33.0 does before it forks
            _sync_visible_devices_env_vars=lambda: None,
        )
        assert (functions["get_mp_context"](), functions["get_worker_mp_context"]()) == ("fork", worker)


# the whole series

_HERE = "tests/e2e/test_series_source.py::"


@pytest.mark.parametrize(
    ("version", "patch", "proof"),
    [
        (version, patch.id, node.removeprefix(_HERE).partition("[")[0])
        for version in ("0.28.0", "0.32.0", "0.33.0")
        for patch in _Set(version).series.patches
        for node in patch.proved_by
        if patch.status == "carried" and node.startswith(_HERE)
    ],
    indirect=["version"],
)
def test_without_its_patch_a_proof_fails(
    version: str, stock: SourceTree, patch: str, proof: str, request: pytest.FixtureRequest
) -> None:
    """As in tests/series/test_leaving_out.py, where those of all other patches are."""
    here, gone = _Set(version), {patch}
    gone |= {each.id for each in here.series.patches if patch in each.requires}
    function = globals()[proof]
    values = {name: request.getfixturevalue(name) for name in inspect.signature(function).parameters}
    function(**values)  # with it, here as well
    values["patched"] = here.applied(stock, [name for name in here.enabled if name not in gone])
    with pytest.raises((AssertionError, AttributeError)):
        function(**values)


@carried_up_to_0_28
def test_every_patch_applies_and_every_claim_is_proved(version: str, stock: SourceTree) -> None:
    here = _Set(version)
    report = patchcheck.report(here.series, here.diffs, here.enabled, stock, version)
    assert {outcome.id: outcome.outcome for outcome in report.outcomes} == {
        "aot-load-guard": "applies",
        "api-key-out-of-compile-key": "applies",
        "scheduler-drain": "already-upstream",
        "switches": "applies",
        "page-zeroer": "applies",
        "mamba-block-ids": "applies",
        "gdn-first-chunk": "applies",
        "stale-block-table": "already-upstream",
        "null-block-padding": "rejected",
        "sentinels": "applies",
        "poison": "applies",
        "conv-weight-layout": "applies",
        "eager-sampler": "applies",
        "inspect-in-process": "applies",
        "engine-core-fork": "applies",
        "token-ids-in-vocabulary": "applies",
        "request-bounds": "applies",
        "grammar-backends": "applies",
        "grammar-end": "applies",
        "eager-logprobs": "applies",
        "blank-bad-words": "applies",
        "request-shapes": "applies",
        "grammar-refusal": "applies",
    }
    assert report.ok


def test_on_a_source_that_has_them_the_patches_are_already_upstream(version: str, patched: SourceTree) -> None:
    here = _Set(version)
    alone = {*here.enabled} - {"switches"}  # `sentinels` rewrites the file that it brings, so it cannot be taken back
    report = patchcheck.report(here.series, here.diffs, alone, patched, "a candidate")
    assert {outcome.outcome for outcome in report.outcomes if outcome.enabled} == {"already-upstream"}
    assert report.ok


def test_a_source_that_lost_the_drain_is_told(version: str, stock: SourceTree) -> None:
    here = _Set(version)
    path = "vllm/v1/core/sched/scheduler.py"
    leaking = _text(stock, path).replace("take_new_block_ids()", "take_new_block_ids() or None")
    tree = source.Overlay(stock, {path: leaking.encode()})
    report = patchcheck.report(here.series, here.diffs, here.enabled, tree, version)
    assert [outcome.outcome for outcome in report.outcomes if outcome.error] == ["missing"]
