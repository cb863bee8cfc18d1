"""Manifests of the fork: both schemas, their hash, their files, and what they lack."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from nvllm.cache import forkmanifest
from nvllm.core.refusal import Refused
from nvllm.core.spec import DirectoryModel
from nvllm.spec import file as specfile
from support.fork_samples import CONFIG, CONTENT, GOLDEN, HOST, IMAGE, document, entry, fork_cache


def read(made: dict[str, Any]) -> forkmanifest.ForkManifest:
    return forkmanifest.decode(json.dumps(made).encode(), "fork.json")


def refused(made: dict[str, Any]) -> set[str]:
    with pytest.raises(Refused) as caught:
        read(made)
    assert {one.code for one in caught.value.refusals} == {"NV908"}
    return {one.where.removeprefix("fork.json: ") for one in caught.value.refusals}


def test_the_known_hash() -> None:
    assert forkmanifest.config_hash(IMAGE, CONFIG) == GOLDEN
    assert len(CONFIG) == 17


def test_the_hash_does_not_depend_on_the_order_of_keys() -> None:
    assert forkmanifest.config_hash(IMAGE, dict(reversed(CONFIG.items()))) == GOLDEN


@pytest.mark.parametrize("key", CONFIG)
def test_every_key_of_the_config_changes_the_hash(key: str) -> None:
    made = document(2)
    made["config"][key] = "another"
    assert refused(made) == {".config_hash"}


@pytest.mark.parametrize("schema", [1, 2])
def test_both_schemas_and_their_files(tmp_path: Path, schema: int) -> None:
    fork = read(document(schema))
    assert (fork.schema, fork.hash, fork.label) == (schema, GOLDEN, "lower8")
    places = forkmanifest.roots(fork, fork_cache(tmp_path / "moved"))
    assert places[fork.mounts[0].id] == tmp_path / "moved"
    assert forkmanifest.examine_files(fork, places) == ([], [])


def test_without_another_place_it_is_looked_for_where_it_says() -> None:
    fork = read(document(2))
    assert forkmanifest.roots(fork, None) == {"cache": Path(HOST), "kernels": Path(HOST, "kernels")}


@pytest.mark.parametrize("schema", [1, 2])
@pytest.mark.parametrize("path", CONTENT)
def test_changed_and_missing_files_are_refused(tmp_path: Path, schema: int, path: str) -> None:
    fork = read(document(schema))
    places = forkmanifest.roots(fork, fork_cache(tmp_path / "c"))
    place = tmp_path / "c" / path
    place.write_bytes(b"X" * len(CONTENT[path]))
    for found in (hashlib.sha256(place.read_bytes()).hexdigest(), "no such file"):
        refusals, _ = forkmanifest.examine_files(fork, places)
        assert [(one.code, one.where) for one in refusals] == [("NV907", str(place))]
        assert found in refusals[0].found
        place.unlink(missing_ok=True)


def test_a_manifest_that_names_a_directory_of_the_host_reads_nothing_there(tmp_path: Path) -> None:
    made = document(1)
    made["mount"]["host_path"] = str(tmp_path)
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 2**40)
    for number in range(forkmanifest.MOST_FILES):
        (tmp_path / str(number)).touch()
    fork = read(made)
    with pytest.raises(Refused) as caught:
        forkmanifest.examine_files(fork, forkmanifest.roots(fork, None))
    assert [(one.code, one.where, one.found) for one in caught.value.refusals] == [
        ("NV907", str(tmp_path), "more files")
    ]


def test_a_large_file_that_is_not_listed_is_not_read(tmp_path: Path) -> None:
    fork = read(document(1))
    place = fork_cache(tmp_path / "c")
    (place / "large").touch()
    os.truncate(place / "large", 2**40)
    _, missing = forkmanifest.examine_files(fork, forkmanifest.roots(fork, place))
    assert [one.found for one in missing] == [f"not listed: {place}/large"]


def test_an_unlisted_artefact_is_what_our_rules_find(tmp_path: Path) -> None:
    fork = read(document(2))
    root = fork_cache(tmp_path / "c")
    (root / "extra").write_bytes(b"payload")
    (root / "extra").chmod(0o644)
    (root / "link").symlink_to("model")
    os.mkfifo(root / "kernels/fifo")
    refusals, missing = forkmanifest.examine_files(fork, forkmanifest.roots(fork, root))
    assert refusals == []
    assert [one.found for one in missing] == [
        f"not listed: {root}/extra",
        f"{root}/kernels/fifo: a FIFO",
        f"{root}/link: a symbolic link",
    ]


def test_a_listed_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    root = fork_cache(tmp_path / "c")
    (root / "model").rename(tmp_path / "elsewhere")
    (root / "model").symlink_to(tmp_path / "elsewhere")
    fork = read(document(1))
    refusals, _ = forkmanifest.examine_files(fork, forkmanifest.roots(fork, root))
    assert [(one.where, one.found) for one in refusals] == [(f"{root}/model", "a symbolic link")]


def test_a_cache_that_is_not_here_is_one_refusal(tmp_path: Path) -> None:
    fork = read(document(2))
    refusals, _ = forkmanifest.examine_files(fork, forkmanifest.roots(fork, tmp_path / "none"))
    assert [(one.where, one.cure) for one in refusals] == [
        (str(tmp_path / "none"), "name the directory that holds the cache: --cache DIR")
    ]


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "a/..", ".", ""])
def test_a_path_that_leaves_its_mount_is_refused(path: str) -> None:
    made = document(2)
    made["files"][0]["relative_path"] = path
    assert refused(made) == {".files[0].relative_path"}


@pytest.mark.parametrize(
    ("schema", "change", "where"),
    [
        (1, {"schema_version": 3}, ".schema_version"),
        (1, {"schema_version": 2}, ".mounts"),
        (2, {"schema_version": 1}, ".mount"),
        (2, {"config_hash": "0" * 64}, ".config_hash"),
        (2, {"blessed_image_id": "sha256:" + "0" * 64}, ".config_hash"),
        (2, {"blessed_image_id": "nvllm:gb10"}, ".blessed_image_id"),
        (2, {"files": []}, ".files"),
        (1, {"files": [entry("a", b""), entry("a", b"")]}, ".files"),
        (2, {"files": [entry("a", b"", mount_id="other")]}, ".files[0].mount_id"),
        (2, {"files": [entry("a", b"")]}, ".files[0].mount_id"),
    ],
)
def test_what_breaks_its_own_rules(schema: int, change: dict[str, Any], where: str) -> None:
    assert where in refused(document(schema) | change)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff"])
def test_what_is_no_manifest(data: bytes) -> None:
    with pytest.raises(Refused, match="NV908"):
        forkmanifest.decode(data, "fork.json")


def test_factors_mounts_host_paths_and_trials_that_are_missing_are_said() -> None:
    said = {one.rule: one.found for one in forkmanifest.missing(read(document(2)))}
    assert f"{HOST}, {HOST}/kernels" in said.values()  # a path of one host
    assert "cache ro, kernels ro" in said.values()  # the mode of a mount
    assert any("every factor" in rule and "17 keys" in found for rule, found in said.items())
    assert "5 of 5 trials: 54 % at 95 %; 8 replays in each count once" in said.values()
    assert "none of them" in said["a version, an expiry, a signature"]


def test_an_unsafe_one_is_said_to_be() -> None:
    made = document(1)
    made["validation"] |= {"unsafe_dev_trials": True, "trials": 2, "trials_passed": 1}
    said = [one.found for one in forkmanifest.missing(read(made))]
    assert "marked unsafe_dev_trials" in said
    assert any("trials: 0 % at 95 %" in one for one in said)


def test_it_is_a_starting_point() -> None:
    fork = read(document(2))
    assert fork.arguments["compilation-config.cudagraph_capture_sizes"] == "[1]"
    assert fork.arguments["max-model-len"] == 16384
    assert fork.environment["CUTE_PHASE_E_LAYERS"] == "0,1,2,3,4,5,6,7"
    assert fork.environment["CUTE_FULL_GRAPH_PROBE"] == "0"
    assert len(fork.arguments) + len(fork.environment) == len(CONFIG) - 2


# Beside a profile

GB10 = specfile.load(Path(__file__).parents[3] / "images/gb10.yaml", "images/gb10.yaml")


def test_lower8_is_the_fork_s_config_in_all_17_keys() -> None:
    found = forkmanifest.compared(read(document(2)), GB10, GB10.profiles["lower8"])
    assert [one.key for one in found] == list(CONFIG)
    assert [one.key for one in found if not one.agrees] == []


@pytest.mark.parametrize(
    ("profile", "keys"),
    [
        ("phaseE-off", {"cute_phase_e_fusion": ("1", "0")}),
        ("all-beta", {"cute_phase_e_layers": ("0,1,2,3,4,5,6,7", "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15")}),
        (
            "piecewise",
            {
                "cudagraph_mode": ("FULL_AND_PIECEWISE", "PIECEWISE"),
                "cudagraph_capture_sizes": ("[1]", None),
                "max_num_seqs": ("1", "4"),
                "max_model_len": ("16384", "65536"),
                "cute_phase_e_fusion": ("1", "0"),
                "cute_phase_e_layers": ("0,1,2,3,4,5,6,7", None),
                "cute_phase_e_fallback_raise": ("1", "0"),
                "cute_full_graph_probe": ("0", None),
                "cute_wo_reset_log": ("0", None),
                "cute_dispatch_audit": ("0", None),
            },
        ),
    ],
)
def test_the_other_profiles_differ_in_what_they_are_for(profile: str, keys: dict[str, tuple[str, str | None]]) -> None:
    found = forkmanifest.compared(read(document(2)), GB10, GB10.profiles[profile])
    assert {one.key: (one.fork, one.profile) for one in found if not one.agrees} == keys


def test_what_the_fork_s_hash_does_not_cover_is_said() -> None:
    found = forkmanifest.beyond(read(document(2)), GB10, GB10.profiles["lower8"])
    assert found["--kv-cache-memory-bytes"] == "38654705664"
    assert found["VLLM_NVFP4_GEMM_BACKEND"] == "cutlass"
    assert not {"--max-num-seqs", "CUTE_PHASE_E_LAYERS"} & found.keys()


def test_a_model_of_another_kind_and_a_key_that_nobody_knows_differ() -> None:
    made = document(2)
    made["config"]["novel"] = 1
    made["config_hash"] = forkmanifest.config_hash(IMAGE, made["config"])
    tiny = {"qwen35-27b-nvfp4": DirectoryModel("directory", "sha256:" + "a" * 64)}
    other = dataclasses.replace(GB10, models=tiny)
    found = {one.key: one for one in forkmanifest.compared(read(made), other, GB10.profiles["lower8"])}
    assert {key for key, one in found.items() if not one.agrees} == {"model_id", "model_revision_resolved", "novel"}
