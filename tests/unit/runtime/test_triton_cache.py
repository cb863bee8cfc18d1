"""The cache manager that runs inside an image: what it finds, what it keeps, what it refuses.

Triton is 180 MB and not here; the stand-in keeps what the manager uses of it: a file cache manager with a directory
for each key, the function whose result is part of every key, and ptxas's version. tests/series/test_kernels.py runs
the manager under the real one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

NAME = "nvllm.runtime.triton_cache"


class FileCacheManager:
    """As Triton 3.6 has it, as far as the manager inherits it."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self.key, self.lock_path = key, None
        self.cache_dir = f"/debug/{override}/{dump}"

    def put(self, data: bytes | str, filename: str, binary: bool = True) -> str:
        path = Path(self.cache_dir, filename)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return str(path)


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The stand-in, as modules."""
    modules = {name: ModuleType(name) for name in ("triton", "triton.knobs", "triton.runtime", "triton.runtime.cache")}
    modules["triton.backends.nvidia.compiler"] = ModuleType("triton.backends.nvidia.compiler")
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    top: Any = modules["triton"]
    top.__file__ = str(tmp_path / "triton/__init__.py")
    top.knobs = modules["triton.knobs"]
    top.knobs.compilation = SimpleNamespace(listener=None)
    top.runtime, top.runtime.cache = modules["triton.runtime"], modules["triton.runtime.cache"]
    top.runtime.cache.FileCacheManager = FileCacheManager
    top.runtime.cache.triton_key = lambda: "hashed anew"
    top.compiler = modules["triton.backends.nvidia.compiler"]
    top.compiler.get_ptxas_version = lambda arch=80: "asked"
    return top


@pytest.fixture
def manager(triton: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The module, with an image's cache and one of the engine's own below TMP_PATH."""
    sys.modules.pop(NAME, None)
    __import__(NAME)
    module: Any = sys.modules[NAME]
    monkeypatch.setattr(module, "BASE", str(tmp_path / "image"))
    monkeypatch.setattr(module, "EXPECTATIONS", str(tmp_path / "launch.json"))
    monkeypatch.setattr(module, "SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "own"))
    yield module
    del sys.modules[NAME]


def entry(directory: Path, key: str = "KEY", recorded: str = "/elsewhere") -> Path:
    """A kernel in a cache, as Triton writes it, with RECORDED for the place where it was compiled."""
    place = directory / key
    place.mkdir(parents=True)
    children = {name: f"{recorded}/{key}/{name}" for name in ("zero.json", "zero.cubin")}
    for name in children:
        (place / name).write_text(f"{directory.name} {name}")
    (place / "__grp__zero.json").write_text(json.dumps({"child_paths": children}))
    return place


def test_a_kernel_of_the_image_is_found_and_nothing_is_written(manager: Any, tmp_path: Path) -> None:
    place = entry(tmp_path / "image")
    cache = manager.LayeredCache("KEY")
    assert cache.get_group("zero.json") == {name: str(place / name) for name in ("zero.json", "zero.cubin")}
    assert cache.get_file("zero.cubin") == str(place / "zero.cubin")
    assert cache.has_file("zero.json")
    assert not (tmp_path / "own").exists()


def test_recorded_paths_are_not_followed(manager: Any, tmp_path: Path) -> None:
    other = entry(tmp_path / "other")
    place = entry(tmp_path / "image", recorded=str(other.parent))
    assert set(manager.LayeredCache("KEY").get_group("zero.json").values()) == {
        str(place / "zero.json"),
        str(place / "zero.cubin"),
    }


def test_what_the_image_lacks_is_found_where_the_engine_keeps_it(manager: Any, tmp_path: Path) -> None:
    place = entry(tmp_path / "own")
    assert set(map(os.path.dirname, manager.LayeredCache("KEY").get_group("zero.json").values())) == {str(place)}


@pytest.mark.parametrize("child", ["../KEY/zero.json", "/etc/passwd", "..", ".", "", "a/b", "zero\0.json", "not-there"])
def test_a_group_that_names_more_than_its_neighbours_is_a_miss(
    manager: Any, tmp_path: Path, child: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = entry(tmp_path / "image")
    (place / "__grp__zero.json").write_text(
        json.dumps({"child_paths": {"zero.json": "", child: str(place / "zero.json")}})
    )
    assert manager.LayeredCache("KEY").get_group("zero.json") is None
    assert capsys.readouterr().err == "nvllm.kernels miss key=KEY name=zero.json\n"


def test_an_empty_group_is_a_miss(manager: Any, tmp_path: Path) -> None:
    place = entry(tmp_path / "image")
    (place / "__grp__zero.json").write_text("{}")
    assert manager.LayeredCache("KEY").get_group("zero.json") is None


def test_a_miss_is_said_and_what_is_compiled_is_kept_in_the_engines_own(
    manager: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry(tmp_path / "image", "OTHER")
    cache = manager.LayeredCache("KEY")
    assert cache.get_file("stub.so") is None
    assert cache.get_group("zero.json") is None
    assert capsys.readouterr().err.splitlines() == [
        "nvllm.kernels miss key=KEY name=stub.so",
        "nvllm.kernels miss key=KEY name=zero.json",
    ]
    assert not (tmp_path / "own").exists()
    path = cache.put(b"code", "stub.so")
    assert path == str(tmp_path / "own/KEY/stub.so")
    assert manager.LayeredCache("KEY").get_file("stub.so") == path
    assert capsys.readouterr().err == ""


def test_what_is_compiled_never_goes_to_the_image(manager: Any, tmp_path: Path) -> None:
    place = entry(tmp_path / "image")
    before = {path: path.read_bytes() for path in place.iterdir()}
    assert manager.LayeredCache("KEY").put("text", "zero.json") == str(tmp_path / "own/KEY/zero.json")
    assert {path: path.read_bytes() for path in place.iterdir()} == before
    # And the image's own stays in force.
    assert manager.LayeredCache("KEY").get_file("zero.json") == str(place / "zero.json")


def test_a_blessed_serve_that_refuses_compiles_nothing(
    manager: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "launch.json").write_text('{"cache": {"missing": "refuse"}}')
    entry(tmp_path / "image")
    entry(tmp_path / "own", "BLESSED")
    assert manager.LayeredCache("KEY").get_group("zero.json")
    assert manager.LayeredCache("BLESSED").get_group("zero.json")
    attempts: tuple[Callable[[], object], ...] = (
        lambda: manager.LayeredCache("NEW").get_group("zero.json"),
        lambda: manager.LayeredCache("NEW").get_file("stub.so"),
        lambda: manager.LayeredCache("NEW").put(b"", "stub.so"),
        lambda: manager.LayeredCache("KEY").put(b"", "zero.json"),
    )
    for attempt in attempts:
        with pytest.raises(manager.CompileRefusedError, match="a blessed serve compiles nothing"):
            attempt()
    assert capsys.readouterr().err.count("nvllm.kernels miss key=NEW") == 2
    assert sorted(path.name for path in (tmp_path / "own").iterdir()) == ["BLESSED"]


def test_what_a_blessed_serve_lacks_is_compiled_beside_the_cache_and_found_again(
    manager: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "launch.json").write_text('{"cache": {"missing": "report"}}')
    entry(tmp_path / "image")
    entry(tmp_path / "own", "BLESSED")
    before = everything(tmp_path / "own") | everything(tmp_path / "image")
    cache = manager.LayeredCache("NEW")
    assert cache.get_group("zero.json") is None
    assert cache.put(b"code", "zero.cubin") == str(tmp_path / "scratch/NEW/zero.cubin")
    cache.put('{"child_paths": {"zero.cubin": "/elsewhere"}}', "__grp__zero.json")
    assert capsys.readouterr().err == "nvllm.kernels miss key=NEW name=zero.json\n"
    assert manager.LayeredCache("NEW").get_group("zero.json") == {
        "zero.cubin": str(tmp_path / "scratch/NEW/zero.cubin")
    }
    # A part of a blessed or an image's entry that is missing is made beside it, too.
    manager.LayeredCache("BLESSED").put(b"", "new.json")
    manager.LayeredCache("KEY").put(b"", "new.json")
    assert manager.LayeredCache("BLESSED").get_group("zero.json")
    assert everything(tmp_path / "own") | everything(tmp_path / "image") == before
    assert capsys.readouterr().err == ""


def everything(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("text", "blessed", "refusing"),
    [
        (None, False, False),
        ('{"cache": null}', False, False),
        ('{"cache": {}}', True, True),
        ('{"cache": {"missing": "refuse"}}', True, True),
        ('{"cache": {"missing": "report"}}', True, False),
    ],
)
def test_the_launcher_says_whether_a_serve_is_blessed_and_whether_it_refuses(
    manager: Any, tmp_path: Path, text: str | None, blessed: bool, refusing: bool
) -> None:
    if text is not None:
        (tmp_path / "launch.json").write_text(text)
    assert (manager.blessed(), manager.refusing()) == (blessed, refusing)


def source() -> Any:
    return SimpleNamespace(
        name="zero",
        signature={"x": "*fp32", "n": "constexpr", "m": "i32"},
        constants={(1,): 16},
        attrs={(0,): [["tt.divisibility", 16]], (2,): []},
    )


def test_what_is_compiled_is_said_with_its_arguments(manager: Any, capsys: pytest.CaptureFixture[str]) -> None:
    told = {"src": source(), "metadata": {"hash": "00" * 32}, "metadata_group": {}, "times": None}
    manager.tell(**told, cache_hit=True)
    assert capsys.readouterr().err == ""
    manager.tell(**told, cache_hit=False)
    word, _, about = capsys.readouterr().err.partition(" {")
    assert word == "nvllm.kernels compiled"
    assert json.loads("{" + about) == {
        "key": "A" * 52,
        "name": "zero",
        "arguments": "x: *fp32 tt.divisibility=16, n: 16, m: i32",
        "requests": [],
    }


@pytest.mark.parametrize(
    ("scheduler_output", "requests"),
    [
        (SimpleNamespace(num_scheduled_tokens={"cmpl-b-0": 9, "cmpl-a-0": 1}), ["cmpl-b-0", "cmpl-a-0"]),
        (SimpleNamespace(num_scheduled_tokens={f"r{n}": 1 for n in range(1000)}), [f"r{n}" for n in range(16)]),
        (SimpleNamespace(num_scheduled_tokens={}), []),
        (SimpleNamespace(), []),
        (None, []),
        (SimpleNamespace(num_scheduled_tokens=None), []),
    ],
)
def test_the_requests_of_the_step_are_told_that_a_compile_kept_waiting(
    manager: Any, capsys: pytest.CaptureFixture[str], scheduler_output: Any, requests: list[str]
) -> None:
    # The parameter is what the manager looks for, further up on the stack.
    def compile_and_tell() -> None:
        manager.tell(src=source(), metadata={"hash": "00" * 32}, cache_hit=False)

    compile_and_tell()
    assert json.loads(capsys.readouterr().err.partition("compiled ")[2])["requests"] == requests


def test_the_manager_listens_to_triton_unless_somebody_does(manager: Any, triton: Any) -> None:
    assert triton.knobs.compilation.listener is manager.tell
    triton.knobs.compilation.listener = print
    del sys.modules[NAME]
    __import__(NAME)
    assert triton.knobs.compilation.listener is print


@pytest.mark.parametrize("text", ["", "{}", "[]"])
def test_a_launcher_that_cannot_be_understood_is_not_taken_for_none(manager: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / "launch.json").write_text(text)
    with pytest.raises((ValueError, KeyError, TypeError)):
        manager.blessed()


def test_without_a_place_of_its_own_there_is_no_cache(manager: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR")
    with pytest.raises(RuntimeError, match="TRITON_CACHE_DIR"):
        manager.LayeredCache("KEY")


def test_what_is_dumped_for_debugging_is_no_cache(manager: Any, tmp_path: Path) -> None:
    entry(tmp_path / "image")
    dump = manager.LayeredCache("KEY", dump=True)
    assert dump.cache_dir == "/debug/False/True"
    assert dump.get_file("zero.json") is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(st.sampled_from("./\0a"), max_size=4) | st.text())
def test_only_a_plain_name_is_joined_to_a_directory(manager: Any, name: str) -> None:
    beside = os.path.dirname(os.path.normpath(f"/base/{name}")) == "/base" and os.path.basename(name) == name
    assert manager.plain(name) == (beside and "\0" not in name and name not in {"", "."})


def known(tmp_path: Path, size: int) -> None:
    library = tmp_path / "triton/_C/libtriton.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"library")
    (tmp_path / "image").mkdir()
    said = {"ptxas": "12.8", "ptxas-blackwell": "12.9"}
    (tmp_path / "image/triton.json").write_text(json.dumps({"key": "known", "library_size": size, "ptxas": said}))


def test_what_the_image_knows_of_triton_is_not_hashed_again(manager: Any, triton: Any, tmp_path: Path) -> None:
    known(tmp_path, len(b"library"))
    manager.know_key()
    assert triton.runtime.cache.triton_key() == "known"
    assert [triton.compiler.get_ptxas_version(arch) for arch in (90, 100, 121)] == ["12.8", "12.9", "12.9"]


def test_another_triton_than_the_images_is_hashed(manager: Any, triton: Any, tmp_path: Path) -> None:
    manager.know_key()  # an image without a kernels layer
    known(tmp_path, 1)
    manager.know_key()
    assert triton.runtime.cache.triton_key() == "hashed anew"
    assert triton.compiler.get_ptxas_version(90) == "asked"


def test_another_ptxas_than_the_images_is_asked(
    manager: Any, triton: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(tmp_path, len(b"library"))
    monkeypatch.setenv("TRITON_PTXAS_BLACKWELL_PATH", "/usr/local/bin/ptxas")
    manager.know_key()
    assert triton.runtime.cache.triton_key() == "known"
    assert triton.compiler.get_ptxas_version(121) == "asked"
