"""The kernels of a series, compiled for real and proved for real: the locked Triton and C compiler, no GPU.

For each release of Triton that nvllm knows: 3.6 with the series v0.21.0, and 3.8 with v0.33.0, in the long run.

The image's Triton is the host's with another libtriton.so, as the wheel for another Python has it; that a layer for
Python 3.12 made by Python 3.11 is hit by the real driver is what benchmarks/gpu/first_fire.py proves.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from nvllm import runtime
from nvllm.core.lock import LockedFile, LockedRegistryBase, LockedWheel
from nvllm.core.refusal import Refused
from nvllm.kernels import check as kernelcheck
from nvllm.kernels import kernellayer, stubs
from nvllm.kernels.kernellayer import KernelCompiler, KernelSources
from nvllm.layers.tarlayer import TarEntry
from support import kernel_samples
from support.series_trees import Tree, carried

pytestmark = pytest.mark.series

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SITE = f"opt/venv/lib/python{PYTHON}/site-packages"
TARGETS = ("sm_90a", "sm_120a", "sm_121a")
LIBRARY = "triton/_C/libtriton.so"
OTHER = b"the library of a wheel for another Python, which nothing loads here"

LOADING = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("cuda_utils", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
"""
TENSOR_MAPS = """
for _ in range(1000):
    tensor_map = module.PyCUtensorMap()
assert type(tensor_map) is module.PyCUtensorMap
for shape in ([64, 64], (64, 64)):
    module.fill_tma_descriptor(1, 0, 4, 1, [8, 8], shape, [64, 1], 0)
try:
    module.fill_tma_descriptor(1, 0, 4, 1, [8, "x"], [64, 64], [64, 1], 0)
except TypeError as error:
    print(error)
print(len(module.load_binary("name", b"bytes", 0, 0)))
"""
ARGUMENTS = """
class Pointer:
    data_ptr = lambda self: 4096

def given(kind, nested=None):
    return module.PyKernelArg(nested_tuple=nested, type=kind)

signature = module.build_signature_metadata(["*fp32", "u32", "fp16", "i64"])
one, constant = given(module.ARG_KERNEL), given(module.ARG_CONSTEXPR)
arguments = [one, constant, given(module.ARG_TUPLE, [one, one]), one]
hooks = []
def launch(*values, hook=None):
    module.launch(1, 1, 1, 0, 0, False, False, (4, 1, 0), "launched", hook, hook, None, 0, arguments, signature, values)

launch(Pointer(), 128, (3, 2.5), 1 << 40, hook=hooks.append)
for _ in range(1000):
    launch(Pointer(), 128, [3, 2.5], 7)
for wrong in ((object(), 128, (3, 2.5), 7), (Pointer(), 128, ("x", 2.5), 7)):
    try:
        launch(*wrong)
    except TypeError as error:
        print(error)
print(hooks, signature)
print(len(module.load_binary("name", b"bytes", 0, 0)))
"""
"""What goes through each part of our headers of CPython that has a structure in it, or more than a function's name."""

FINDING = """
import sys
import nvllm_triton_cache as manager
manager.BASE, manager.refusing, manager.blessed = sys.argv[1], lambda: True, lambda: False
from triton.backends.nvidia import driver
print(driver.CudaUtils().load_binary.__self__.__file__)
"""
"""What each process of an engine does before its first launch, with compiling forbidden."""

KERNEL = """
import triton, triton.language as tl

@triton.jit
def add(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1.0, mask=at < n)
"""
LAUNCHING = """
import sys, types, triton
from triton.backends.compiler import GPUTarget
import nvllm_triton_cache as manager
from kernel import add

class Utils:
    load_binary = staticmethod(lambda *_: (object(), object(), 32, 0, 1024))
    unload_module = staticmethod(lambda _: None)
    get_device_properties = staticmethod(lambda _: {"max_shared_mem": 101376, "multiprocessor_count": 48,
        "warpSize": 32, "max_num_regs": 65536, "mem_bus_width": 256})

class Launcher:
    def __init__(self, *_): pass
    def __call__(self, *_): pass

class Driver(triton.backends.driver.DriverBase):
    def __init__(self): self.utils, self.launcher_cls = Utils(), Launcher
    is_active = staticmethod(lambda: True)
    map_python_to_cpp_type = get_benchmarker = lambda self, *_: None
    get_current_target = lambda self: GPUTarget("cuda", 120, 32)
    get_active_torch_device = set_current_device = lambda self, *_: None
    get_current_device = get_current_stream = lambda self, *_: 0
    get_device_capability = lambda self, *_: (12, 0)

class Tensor:
    dtype = "float32"
    data_ptr = lambda self: 4096

triton.runtime.driver.set_active(Driver())
places = (f"{sys.argv[1]}/{name}" for name in ("image", "scratch", "launch"))
manager.BASE, manager.SCRATCH, manager.EXPECTATIONS = places

def execute_model(scheduler_output):
    add[(1,)](Tensor(), scheduler_output.n, BLOCK=128)

for n in map(int, sys.argv[2:]):
    execute_model(types.SimpleNamespace(n=n, num_scheduled_tokens={f"cmpl-{n}": 1}))
"""
"""A step with each of the numbers that are named: it launches a kernel through the manager, on a made-up GPU."""


@dataclass(frozen=True)
class Case:
    """What is compiled by a release of Triton, the wheel TRITON in sources.json, and what comes of it."""

    triton: str
    series: str
    zeroer: str
    """The module of the kernel that zeroes pages."""
    kernels: Mapping[str, int]
    """Each kernel, and how many variants of it there are for a target, whatever is launched."""
    launches: int
    """For a target."""
    modules: int
    """Modules in C, each under two keys."""
    loading: str
    prints: str
    driver: frozenset[str]
    """Of the driver's library, what a module looks up by itself."""


CASES = {
    "3.6": Case(
        "triton",
        "0.21.0",
        "vllm/nvllm/page_zeroer.py",
        {"zero_pages_kernel": 1, "_poison_kernel": 1},
        # Of 200 calls of each kernel, two for 32769 and two for 70000 blocks take one and two launches more, of two
        # models. And each of the 100 zeroers that are made for two calls launches once by itself.
        200 + 200 + 12 + 100,
        2,
        LOADING + TENSOR_MAPS,
        "block size must be an int\n5\n",
        frozenset({"cuTensorMapEncodeTiled"}),
    ),
    "3.8": Case(
        "triton-3.8",
        "0.33.0",
        "vllm/v1/worker/utils.py",
        {"_zero_kv_blocks_kernel": 11, "_poison_kernel": 1},  # the first has one for each width of a launch
        200 + 200,
        1,
        LOADING + ARGUMENTS,
        "Pointer argument must be either uint64 or have data_ptr method\n"
        "an integer is required\n"
        "['launched', 'launched'] b'\\x01\\x08\\n\\x05'\n5\n",
        frozenset({"cuLaunchKernelEx"}),
    ),
}


@pytest.fixture(scope="module", params=["3.6", pytest.param("3.8", marks=pytest.mark.long)])
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def files(trees: Callable[..., Tree], case: Case) -> dict[str, bytes]:
    """What the whole series makes of the modules that decide kernels."""
    tree = trees(case.series, *carried(case.series))
    return kernellayer.sources({path: (tree.root / path).read_bytes() for path in tree.changed})


@pytest.fixture(scope="module")
def of_image(sources: Callable[[str], Path], case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's wheel of Triton: what is compared with the host's and read from it, and another library."""
    path = tmp_path_factory.mktemp("image") / "triton-0-cp311-cp311-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(sources(case.triton)) as host, zipfile.ZipFile(path, "w") as image:
        for name in host.namelist():
            if name.endswith((".py", ".c", ".h", ".bc", "/ptxas", "/ptxas-blackwell")):
                image.writestr(name, host.read(name))
        image.writestr(LIBRARY, OTHER)
    return path


Benches = Callable[[Path], KernelCompiler]


@pytest.fixture(scope="module")
def benches(sources: Callable[[str], Path], case: Case) -> Benches:
    """Makes the workbench, still to be entered, of an image with the wheel of Triton at a path."""
    tools = {name: _wheel(name, sources) for name in (case.triton, "ziglang")}
    base = LockedRegistryBase("registry", PYTHON, f"cuda@sha256:{64 * '0'}", f"/usr/bin/python{PYTHON}")

    def make(image: Path) -> KernelCompiler:
        wheel = replace(kernel_samples.locked(image), version=tools[case.triton].version)
        lock = replace(kernel_samples.lock(wheel, *tools.values()), base=base)
        files = {wheel.file.sha256: image, **{tool.file.sha256: sources(name) for name, tool in tools.items()}}

        class Stored:
            """The store, by sha256: the files are where the fixtures put them."""

            def path(self, sha256: str) -> Path:
                return files[sha256]

        return KernelCompiler(lock, SITE, Stored())  # type: ignore[arg-type]  # all that a compiler asks of a store

    return make


@pytest.fixture(scope="module")
def workbench(benches: Benches, of_image: Path) -> Callable[[], KernelCompiler]:
    """A workbench, still to be entered."""
    return lambda: benches(of_image)


@pytest.fixture(scope="module")
def bench(workbench: Callable[[], KernelCompiler]) -> Iterator[KernelCompiler]:
    """The tools, unpacked."""
    with workbench() as unpacked:
        yield unpacked


def _wheel(name: str, sources: Callable[[str], Path]) -> LockedWheel:
    pin = json.loads(Path(__file__).with_name("sources.json").read_text(encoding="utf-8"))[name]
    sources(name)
    distribution, version, *_ = pin["path"].split("-")
    return LockedWheel(distribution, version, LockedFile(**pin))


def _read(entries: Iterator[TarEntry]) -> dict[str, bytes]:
    return {entry.path: entry.content().read() for entry in entries}


def _cache(layer: dict[str, bytes]) -> dict[str, bytes]:
    root = f"{kernellayer.ROOT}/"
    return {path.removeprefix(root): data for path, data in layer.items() if path.startswith(root)}


@pytest.fixture(scope="module")
def wanted(files: dict[str, bytes]) -> KernelSources:
    return KernelSources(TARGETS, files)


@pytest.fixture(scope="module")
def layer(bench: KernelCompiler, wanted: KernelSources) -> dict[str, bytes]:
    """The files of the layer."""
    return _read(bench.entries(wanted))


def test_a_layer_is_the_same_wherever_it_is_made(
    workbench: Callable[[], KernelCompiler],
    wanted: KernelSources,
    layer: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = tmp_path / "a/longer/path"
    elsewhere.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    with workbench() as again:
        assert again.directory.is_relative_to(elsewhere)
        assert _read(again.entries(wanted)) == layer


def test_no_launch_compiles_and_the_code_is_for_its_target(
    bench: KernelCompiler, case: Case, wanted: KernelSources, layer: dict[str, bytes]
) -> None:
    proof = kernelcheck.check(_cache(layer), wanted, bench)
    assert Counter((one.name, one.target) for one in proof.kernels) == {
        (name, target): variants for name, variants in case.kernels.items() for target in TARGETS
    }
    assert proof.launches == case.launches * len(TARGETS)
    assert len(proof.stubs) == 2 * case.modules


def test_the_keys_are_those_of_the_images_triton(
    benches: Benches,
    bench: KernelCompiler,
    sources: Callable[[str], Path],
    case: Case,
    wanted: KernelSources,
    layer: dict[str, bytes],
    tmp_path: Path,
) -> None:
    """What compiles has another library than the image, and with it other keys for the same code."""
    with zipfile.ZipFile(sources(case.triton)) as wheel:
        own, theirs = hashlib.sha256(wheel.read(LIBRARY)).hexdigest(), hashlib.sha256(OTHER).hexdigest()
    known = json.loads(_cache(layer)[kernellayer.KEY])
    assert known["library_size"] == len(OTHER)
    assert known["key"].count(theirs) == 1
    assert own not in known["key"]
    with benches(sources(case.triton)) as hosts:
        (tmp_path / "hosts").mkdir()
        made = hosts.run("build", wanted, tmp_path / "hosts")
        assert made["key"] == known["key"].replace(theirs, own)
        listed = kernelcheck.listed(_cache(layer))
        code = {path.read_bytes() for path in (tmp_path / "hosts").rglob("*.cubin")}
        assert {data for path, data in _cache(layer).items() if path.endswith(".cubin")} == code
        assert len(code) == len(listed) == len(made["kernels"])
        assert not {stubs.base32(one["hash"]) for one in made["kernels"]} & {one.key for one in listed}
        with pytest.raises(Refused) as caught:
            kernelcheck.check(_cache(layer), wanted, hosts)
    assert {one.code for one in caught.value.refusals} == {"NV313"}
    assert kernelcheck.check(_cache(layer), wanted, bench).kernels == listed


def test_no_place_of_the_host_is_in_a_layer(bench: KernelCompiler, layer: dict[str, bytes]) -> None:
    for said in (str(bench.directory).encode(), b"/vllm/nvllm/", str(Path.home()).encode() + b"/"):
        assert not [path for path, data in layer.items() if said in data]
    assert not [path for path in layer if path.endswith((".source", ".ptx", ".ttir"))]


def test_code_for_one_target_is_not_taken_for_another(
    bench: KernelCompiler, wanted: KernelSources, layer: dict[str, bytes]
) -> None:
    cache = _cache(layer)
    other = {path.partition("/")[0] for path, data in cache.items() if kernelcheck.cubin_target(data) == "sm_121a"}
    without = {path: data for path, data in cache.items() if path.partition("/")[0] not in other}
    assert len(without) < len(cache)
    with pytest.raises(Refused) as caught:
        kernelcheck.check(without, wanted, bench)
    assert {(one.code, one.where) for one in caught.value.refusals} == {("NV313", "sm_121a")}
    assert "a blessed serve compiles nothing" in caught.value.refusals[0].found


def test_a_kernel_that_moves_by_a_line_is_another_kernel(
    bench: KernelCompiler, case: Case, files: dict[str, bytes], layer: dict[str, bytes]
) -> None:
    moved = KernelSources(("sm_120a",), {**files, case.zeroer: b"\n" + files[case.zeroer]})
    with pytest.raises(Refused) as caught:
        kernelcheck.check(_cache(layer), moved, bench)
    (found,) = caught.value.refusals
    assert (found.code, found.expected) == ("NV313", f"every launch of {case.zeroer} from the cache")


def test_a_kernel_that_nobody_knows_how_to_launch_is_refused(bench: KernelCompiler, files: dict[str, bytes]) -> None:
    kernel = b"import triton\n\n\n@triton.jit\ndef new(pointer):\n    pass\n"
    with pytest.raises(Refused) as caught:
        list(bench.entries(KernelSources(("sm_120a",), {**files, "vllm/nvllm/new.py": kernel})))
    (found,) = caught.value.refusals
    assert (found.code, found.found) == ("NV313", "none")
    assert "vllm/nvllm/new.py" in found.expected


@pytest.mark.parametrize(("target", "instead"), [("sm_120", "sm_120a"), ("sm_80a", "sm_80"), ("blackwell", "nothing")])
def test_a_target_is_named_as_triton_names_it(
    bench: KernelCompiler, files: dict[str, bytes], target: str, instead: str
) -> None:
    with pytest.raises(Refused) as caught:
        list(bench.entries(KernelSources((target,), files)))
    (found,) = caught.value.refusals
    assert (found.code, found.where, found.found) == ("NV313", target, f"Triton compiles {instead} in its place")


def test_the_modules_in_c_are_loaded_by_this_python(
    bench: KernelCompiler, case: Case, layer: dict[str, bytes], tmp_path: Path
) -> None:
    """There is no driver here: a library of its names, which do nothing, is in its place."""
    (source, *_) = [data for path, data in layer.items() if "/cuda_utils." in path]
    (tmp_path / "cuda_utils.so").write_bytes(source)
    _driver(bench, case, source, tmp_path)
    argv = [sys.executable, "-S", "-c", case.loading, str(tmp_path / "cuda_utils.so")]
    done = subprocess.run(argv, env={"LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, case.prints), done.stderr


def test_triton_finds_its_module_in_c_in_the_layer(
    benches: Benches, case: Case, sources: Callable[[str], Path], files: dict[str, bytes], tmp_path: Path
) -> None:
    """Triton itself makes the key, from where it lies and from the image's variables; there is no compiler."""
    with benches(sources(case.triton)) as bench:
        bench.site = str(bench.directory / "triton").removeprefix("/")
        for path, data in _cache(_read(bench.entries(KernelSources(("sm_120a",), files)))).items():
            target = tmp_path / "image" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        (module, *_) = (tmp_path / "image").rglob("cuda_utils.*")
        _driver(bench, case, module.read_bytes(), tmp_path)
        (tmp_path / "nvllm_triton_cache.py").write_bytes(
            Path(runtime.__file__).with_name("triton_cache.py").read_bytes()
        )
        # What an image has if its release of Triton asks for no variable: this host has no driver that ldconfig knows.
        environment = {"TRITON_LIBCUDA_PATH": str(tmp_path), **kernellayer.environment(bench.lock)}
        environment |= {"PATH": "/", "LD_LIBRARY_PATH": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "own")}
        environment["PYTHONPATH"] = f"{bench.directory / 'triton'}:{tmp_path}"
        argv = [sys.executable, "-S", "-B", "-c", FINDING, str(tmp_path / "image")]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parent.parent == tmp_path / "image"
    assert not (tmp_path / "own").exists()


def _driver(bench: KernelCompiler, case: Case, source: bytes, directory: Path) -> None:
    """Write into DIRECTORY the driver's library for the module SOURCE, with functions that do nothing."""
    names = {text.decode() for text in source.split(b"\0") if text.startswith(b"cu") and text.isalnum()}
    names = {name for name in names if name[2:3].isupper()} | case.driver
    work = bench.scratch()
    (work / "driver.c").write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in sorted(names)))
    argv = [str(bench.directory / "zig/ziglang/zig"), "cc", "-target", f"{platform.machine()}-linux-gnu.2.31"]
    argv += ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(directory / "libcuda.so.1"), "driver.c"]
    cache = {"ZIG_GLOBAL_CACHE_DIR": str(work), "ZIG_LOCAL_CACHE_DIR": str(work), "HOME": str(work), "PATH": "/"}
    subprocess.run(argv, cwd=work, env=cache, check=True)


def test_a_module_for_arm_is_made_on_any_machine(bench: KernelCompiler) -> None:
    zig, cuda = bench.directory / "zig/ziglang/zig", bench.directory / "triton/triton/backends/nvidia/include"
    driver = (cuda.parent / "driver.c").read_text(encoding="utf-8")
    include, arm = (bench.release.headers[0].parent, cuda), stubs.Platform("aarch64", "3.12")
    one, two = (stubs.CCompiler(zig, include, arm, bench.scratch()).module("cuda_utils", driver) for _ in range(2))
    assert one == two
    assert one[18] == 183  # EM_AARCH64


@dataclass(frozen=True)
class Engine:
    """Processes that launch kernels with the Triton at PATH, below ROOT, as those of an engine do."""

    path: Path
    root: Path

    def launch(self, *numbers: int) -> subprocess.CompletedProcess[str]:
        """Launch the kernel with each of NUMBERS in a process of its own."""
        environment = {
            "PATH": "/",
            "PYTHONPATH": f"{self.path}:{self.root}",
            "TRITON_CACHE_DIR": str(self.root / "own"),
            "TRITON_CACHE_MANAGER": "nvllm_triton_cache:LayeredCache",
        }
        argv = [sys.executable, "-S", "-B", "-c", LAUNCHING, str(self.root), *map(str, numbers)]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)

    def serve(self, missing: str) -> None:
        (self.root / "launch").write_text(json.dumps({"cache": {"missing": missing}}))

    def below(self, name: str) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (self.root / name).rglob("*") if path.is_file()}


@pytest.fixture
def engine(bench: KernelCompiler, tmp_path: Path) -> Engine:
    """An engine that has compiled the kernel for numbers that 16 divides, as a bootstrap with one prompt does."""
    manager = Path(runtime.__file__).with_name("triton_cache.py")
    (tmp_path / "nvllm_triton_cache.py").write_bytes(manager.read_bytes())
    (tmp_path / "kernel.py").write_text(KERNEL)
    made = Engine(bench.directory / "triton", tmp_path)
    done = made.launch(32)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("nvllm.kernels miss") == 1
    return made


def test_a_kernel_that_a_blessed_cache_lacks_is_compiled_beside_it(engine: Engine) -> None:
    engine.serve("report")
    blessed = engine.below("own")
    done = engine.launch(16, 1, 7, 48, 9)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("nvllm.kernels miss") == 2
    told = [json.loads(line.partition("compiled ")[2]) for line in done.stderr.splitlines() if " compiled " in line]
    assert [one["arguments"] for one in told] == [
        "x: *fp32 tt.divisibility=16, n: 1, BLOCK: 128",
        "x: *fp32 tt.divisibility=16, n: i32, BLOCK: 128",
    ]
    assert [one["requests"] for one in told] == [["cmpl-1"], ["cmpl-7"]]
    assert engine.below("own") == blessed
    assert {path.parent.name for path in engine.below("scratch")} == {one["key"] for one in told}
    again = engine.launch(1, 7)
    assert (again.returncode, again.stderr) == (0, "")


def test_an_engine_that_refuses_ends_at_a_kernel_that_its_cache_lacks(engine: Engine) -> None:
    engine.serve("refuse")
    assert engine.launch(16, 48).stderr == ""
    done = engine.launch(1)
    assert done.returncode != 0
    assert "CompileRefusedError: nvllm.kernels: add.json" in done.stderr
    assert engine.below("scratch") == {}
