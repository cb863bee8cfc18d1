"""Source trees of both series, and containers in which vLLM's own classes run on them.

The pinned sources come into the content store like every other locked file. A tree is laid out with nvllm's
own patching; a probe script runs on it once in a container of the built image, which has torch and what vLLM
needs, and the tests judge the one line of JSON that it prints. Triton is not in the image (it has no CPU
backend); its interpreter is enough here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import pytest

from nvllm.core.lock import LockedFile
from nvllm.core.paths import places
from nvllm.core.progress import Silent
from nvllm.patches import patching, patchset, seriesfile
from nvllm.patches.source import DirectoryTree
from nvllm.runtime import tiny_models
from nvllm.sources import fetch
from nvllm.sources.indexes import Sources
from nvllm.sources.store import Store
from support.engine_world import BuiltImage
from support.series_trees import CONVOLUTIONS, ENGINE, ROOT, SWITCHED, Printed, Tree, carried
from support.untar import filtered

if TYPE_CHECKING:
    from docker import DockerClient

collect_ignore = ["upstream"]  # tests that need vLLM: test_sent_tests.py runs them in a container

HERE = Path(__file__).parent
_IN_IMAGE = "/opt/venv/lib/python3.11/site-packages"
_INSIDE = "/nvllm-test"
_OF_THE_HOST = re.compile(r"MemoryError|OSError|PermissionError|TimeoutError|ModuleNotFoundError: .*named '(?!vllm\b)")
"""The last line of a traceback that says nothing of vLLM's code."""


@pytest.fixture(scope="session")
def sources() -> Callable[[str], Path]:
    """The pinned file of a name in sources.json, fetched if the store lacks it."""
    pins = json.loads((HERE / "sources.json").read_text(encoding="utf-8"))
    store = Store(places(dict(os.environ)).store)

    @cache
    def source(name: str) -> Path:
        file = LockedFile(**pins[name])
        fetch.fetch([file], store, Sources(None, dict(os.environ)), Silent(), offline=False)
        return store.path(file.sha256)

    return source


@pytest.fixture(scope="session")
def trees(sources: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Tree]:
    """A tree of a version with a patch set of its series, laid out once."""

    @cache
    def stock(version: str) -> Path:
        place = tmp_path_factory.mktemp(version)
        with tarfile.open(sources(f"vllm-{version}")) as archive:
            for member in archive:
                _, _, path = member.name.partition("/")
                if member.isreg() and path.startswith(("vllm/", "vllm.egg-info/")):
                    archive.extract(member, place, **filtered("data"))
        (top,) = place.iterdir()
        return top

    @cache
    def tree(version: str, *enable: str) -> Tree:
        root = stock(version)
        if not enable:
            return Tree(root, ())
        directory, shown = ROOT / "patches" / f"v{version}", f"patches/v{version}"
        chosen = patchset.choose(seriesfile.load(directory, shown), enable)
        diffs = seriesfile.diffs(directory, chosen, shown)
        changes = patching.apply_all(DirectoryTree(root), list(diffs.values()))
        place = tmp_path_factory.mktemp(f"{version}-patched") / "tree"
        shutil.copytree(root, place, copy_function=os.link)
        for path, content in changes.items():
            assert content is not None, path
            (place / path).unlink(missing_ok=True)  # a link: the stock file would change with it
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_bytes(content)
        return Tree(place, tuple(sorted(changes)))

    return tree


@pytest.fixture(scope="session")
def interpreter(sources: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what the image lacks: Triton without its GPU tools, and gguf."""
    place = tmp_path_factory.mktemp("interpreter")
    for name in ("triton", "gguf"):
        with zipfile.ZipFile(sources(name)) as wheel:
            for member in wheel.namelist():
                if member.endswith((".py", "_C/libtriton.so")) or ".dist-info/" in member:
                    wheel.extract(member, place)
    return place


@pytest.fixture(scope="session")
def container(docker_client: DockerClient, built_image: BuiltImage) -> Callable[..., Printed]:
    """Runs a script of this directory in a container without network, and returns what it printed.

    It is one of the built image, or of that which `nvllm patch prove` asks about: files that no tree here lays over it
    are then those of the set without the patch, too.
    """
    image = os.environ.get("NVLLM_IMAGE", built_image.id)

    def run(script: str, mounts: Mapping[Path, str], env: Mapping[str, str], arguments: Sequence[str] = ()) -> Printed:
        runtime = Path(tiny_models.__file__).parent
        binds = {HERE / "probes": f"{_INSIDE}/probes", runtime: f"{_INSIDE}/runtime", **mounts}
        printed = docker_client.containers.run(
            image,
            [f"{_INSIDE}/probes/{script}", *arguments],
            entrypoint="/opt/venv/bin/python",
            environment={"HOME": "/tmp", "USER": "nvllm", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", **env},
            user=f"{os.getuid()}:{os.getgid()}",  # who may read what the test laid out
            volumes=[f"{source}:{target}:ro" for source, target in binds.items()],
            tmpfs={"/tmp": "exec"},
            read_only=True,
            network_mode="none",
            remove=True,
        )
        *log, last = printed.decode().strip().splitlines()
        return Printed(json.loads(last), tuple(log))

    return run


@pytest.fixture(scope="session")
def sentinel_directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A directory with the sentinel files of the given names."""

    def make(*names: str) -> Path:
        place = tmp_path_factory.mktemp("sentinels")
        for name in names:
            (place / name).touch()
        return place

    return make


@pytest.fixture(scope="session")
def behaviour(
    trees: Callable[..., Tree],
    container: Callable[..., Printed],
    interpreter: Path,
    sentinel_directory: Callable[..., Path],
    request: pytest.FixtureRequest,
) -> Callable[[str, str], dict[str, Any]]:
    """What the probes find on a version's tree, ``stock`` or ``patched`` with all that the series carries.

    While `nvllm patch prove` runs, only the probes that the tests of this run name: it runs few tests, many times.
    """
    proving = "NVLLM_PATCHES" in os.environ
    arguments = [json.dumps(sorted(_texts(request.session.items)))] if proving else []

    @cache
    def probe(version: str, arm: str) -> dict[str, Any]:
        tree = trees(version, *(carried(version) if arm == "patched" else ()))
        printed = container(
            "run.py",
            {
                tree.root: f"{_INSIDE}/tree",
                interpreter: f"{_INSIDE}/interpreter",
                sentinel_directory(*SWITCHED): "/run/nvllm",
            },
            {
                "PYTHONPATH": f"{_INSIDE}/tree:{_INSIDE}/interpreter",
                "TRITON_INTERPRET": "1",
                "CUDA_VISIBLE_DEVICES": "",
            },
            arguments,
        )
        assert printed.result["file"] == f"{_INSIDE}/tree/vllm/__init__.py"
        assert printed.result["version"] == version
        return printed.result

    def found(version: str, arm: str) -> dict[str, Any]:
        return _NoFailures(probe(version, arm))

    return found


def _texts(items: Sequence[pytest.Item]) -> set[str]:
    """The texts in the code of the tests ITEMS, their comprehensions too: each names its probes."""
    waiting = [item.function.__code__ for item in items if isinstance(item, pytest.Function)]
    texts: set[str] = set()
    while waiting:
        for value in waiting.pop().co_consts:
            if isinstance(value, CodeType):
                waiting.append(value)
            elif isinstance(value, str):
                texts.add(value)
    return texts


@pytest.fixture(scope="session")
def arms(
    container: Callable[..., Printed], interpreter: Path, sentinel_directory: Callable[..., Path]
) -> Callable[[Mapping[str, Tree], Mapping[str, Sequence[str]]], Mapping[str, Any]]:
    """What chosen probes find on several trees: name to tree, and name to probes."""

    def found(trees: Mapping[str, Tree], probes: Mapping[str, Sequence[str]]) -> Mapping[str, Any]:
        printed = container(
            "arms.py",
            {
                **{tree.root: f"{_INSIDE}/trees/{name}" for name, tree in trees.items()},
                interpreter: f"{_INSIDE}/interpreter",
                sentinel_directory(*SWITCHED): "/run/nvllm",
            },
            {"PYTHONPATH": f"{_INSIDE}/interpreter", "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
            [json.dumps(probes)],
        )
        for name in trees:
            assert printed.result[name]["file"] == f"{_INSIDE}/trees/{name}/vllm/__init__.py"
        return printed.result

    return found


@pytest.fixture(scope="module")
def stock(behaviour: Callable[[str, str], dict[str, Any]], version: str) -> dict[str, Any]:
    """What the probes find on the stock tree of the VERSION that a module is about."""
    return behaviour(version, "stock")


@pytest.fixture(scope="module")
def patched(behaviour: Callable[[str, str], dict[str, Any]], version: str) -> dict[str, Any]:
    """The same with all that the series carries."""
    return behaviour(version, "patched")


class _NoFailures(dict[str, Any]):
    """Results by probe. One that failed shows its traceback when a test asks for it.

    That is a failure of the test: what the probe calls is not there, or does something else. What its surroundings lack
    is an error, by which no patch is proved.
    """

    def __getitem__(self, name: str) -> Any:
        result = super().__getitem__(name)
        if isinstance(result, dict) and "failed" in result:
            text = f"{name} in the container:\n{result['failed']}"
            if _OF_THE_HOST.match(result["failed"].strip().splitlines()[-1]):
                raise RuntimeError(text)
            pytest.fail(text)
        return result


@pytest.fixture(scope="session")
def engine(
    trees: Callable[..., Tree],
    container: Callable[..., Printed],
    tiny_model: Path,
    sentinel_directory: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Printed]:
    """What `probes/engine.py` finds in the real engine of the image, ``stock`` or ``patched``, its files replaced."""
    model = shutil.copytree(tiny_model, tmp_path_factory.mktemp("model") / "model")

    @cache
    def run(arm: str) -> Printed:
        return container(
            "engine.py",
            {
                **_replaced(trees, arm),
                model: f"{_INSIDE}/model",
                sentinel_directory(*SWITCHED, "poison"): "/run/nvllm",
            },
            {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            [f"{_INSIDE}/model"],
        )

    return run


def _replaced(trees: Callable[..., Tree], arm: str) -> dict[Path, str]:
    """What is mounted over the image's vLLM: every file that the image's series changes, ``stock`` or ``patched``.

    The image has most of the series already, so both arms put every file in place, with `poison` or as upstream has
    it, but for the patch without which no hybrid model runs on a processor with AMX.
    """
    return _laid(trees, trees(ENGINE, *(carried(ENGINE) if arm == "patched" else [CONVOLUTIONS])))


def _laid(trees: Callable[..., Tree], tree: Tree) -> dict[Path, str]:
    """Every file that the image's series changes, as TREE has it, to where it lies in the image."""
    whole = trees(ENGINE, *carried(ENGINE))
    files = {tree.root / path: f"{_IN_IMAGE}/{path}" for path in whole.changed if "/nvllm/" not in path}
    if any("/nvllm/" in path for path in tree.changed):
        files[tree.root / "vllm" / "nvllm"] = f"{_IN_IMAGE}/vllm/nvllm"
    return files


@pytest.fixture(scope="session")
def gdn(
    trees: Callable[..., Tree], container: Callable[..., Printed], sentinel_directory: Callable[..., Path]
) -> Callable[..., Printed]:
    """What `probes/gdn.py` finds in the real engine, ``stock`` or ``patched``, with the given sentinels."""

    @cache
    def run(arm: str, *sentinels: str) -> Printed:
        mounts = {**_replaced(trees, arm), sentinel_directory(*sentinels): "/run/nvllm"}
        return container("gdn.py", mounts, {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})

    return run


@pytest.fixture(scope="session")
def convs(trees: Callable[..., Tree], container: Callable[..., Printed]) -> Callable[..., dict[str, Any]]:
    """What `probes/convs.py` finds for its cases: ``patched`` with the whole series, ``without`` the one patch."""

    @cache
    def run(arm: str, *cases: tuple[str, bool]) -> dict[str, Any]:
        kept = [name for name in carried(ENGINE) if arm == "patched" or name != CONVOLUTIONS]
        printed = container(
            "convs.py",
            _laid(trees, trees(ENGINE, *kept)),
            # The sampler would be compiled for half a minute; what is asked here is the same without.
            {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1"},
            [json.dumps([{"model": model, "amx": amx} for model, amx in cases])],
        )
        return printed.result

    return run
