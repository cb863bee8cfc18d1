"""Exports of a profile with an API key, an address, an adapter and a chat template: all is there, and no key is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from nvllm.core.lock import ModelFile
from nvllm.core.plan import ACCESS, ACCESS_PROGRAM, KEY_FILE
from nvllm.core.spec import Access
from nvllm.export import compose, kubernetes, mounted, quadlet
from nvllm.export.export import ExportFile, ExportSource
from nvllm.lock.templates import LocalTemplate
from support.export_world import UNBLESSED
from support.plansamples import LOCAL, MODEL, SPEC, plan, with_profile

KEY = "0123456789abcdef0123456789abcdef"
TEMPLATE = b"{{ messages }}"


@pytest.fixture
def source(tmp_path: Path) -> ExportSource:
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "mine.jinja").write_bytes(TEMPLATE)
    access = Access(str(tmp_path / "key"), "192.0.2.7")
    spec = with_profile(SPEC, access=access, adapters=("pirate",), chat_template="mine.jinja", served_name="default")
    template = LocalTemplate(ModelFile("mine.jinja", len(TEMPLATE), "a" * 64), tmp_path / "mine.jinja")
    made = plan(spec, adapters=[LOCAL], template=template)
    return dataclasses.replace(UNBLESSED, plan=made, models=(MODEL, MODEL))


def text_of(files: tuple[ExportFile, ...]) -> str:
    return "".join(one.path + one.data.decode() for one in files)


def test_no_export_has_the_key_and_each_has_the_program_that_asks(source: ExportSource) -> None:
    kept = [compose.exported(source), quadlet.exported(source), kubernetes.exported(source, (1, 36))]
    for made in kept:
        assert KEY not in text_of(made.files)
        assert "class ApiKey" in text_of(made.files)
        assert TEMPLATE.decode() in text_of(made.files)
        assert made.guarantees["key"].kept
        assert ACCESS_PROGRAM in made.guarantees["key"].by


def test_the_probe_of_an_export_reads_the_key_where_it_is_mounted(source: ExportSource) -> None:
    probe = json.loads(mounted.programs(source)["machine.json"])["probe"]
    assert (probe["key_file"], probe["model"]) == (KEY_FILE, "default")
    assert "key_file" not in json.loads(mounted.programs(UNBLESSED)["machine.json"])["probe"]


def test_the_gate_expects_the_program_and_the_template_and_not_the_key(source: ExportSource) -> None:
    expected = json.loads(mounted.programs(source)["launch.json"])
    places = {one["path"]: [file["path"] for file in one["files"]] for one in expected["models"]}
    assert places[ACCESS] == [ACCESS_PROGRAM]
    assert places["/templates"] == ["mine.jinja"]
    assert set(places) == {"/models/tiny", "/adapters/pirate", ACCESS, "/templates"}


def test_compose(source: ExportSource) -> None:
    document = yaml.safe_load(compose.exported(source).files[0].data)
    (engine,) = document["services"].values()
    assert document["secrets"] == {"nvllm-api-key": {"file": source.plan.access.key_file}}
    assert engine["secrets"] == [{"source": "nvllm-api-key", "target": PurePosixPath(KEY_FILE).name}]
    assert engine["ports"] == [f"{address}:{source.plan.port}:8000" for address in ("127.0.0.1", "192.0.2.7")]
    targets = {one["target"]: one["source"] for one in engine["volumes"]}
    assert targets[f"{ACCESS}/{ACCESS_PROGRAM}"] == f"./own{ACCESS}/{ACCESS_PROGRAM}"
    assert targets["/templates/mine.jinja"] == "./own/templates/mine.jinja"
    assert "/adapters/pirate/config.json" in targets
    assert KEY_FILE not in targets


def test_quadlet(source: ExportSource) -> None:
    lines = quadlet.exported(source).files[0].data.decode().splitlines()
    name = f"{source.plan.instance}-api-key"
    assert f"# Before the first start: podman secret create {name} {source.plan.access.key_file}" in lines
    assert f"Secret={name},type=mount,target={KEY_FILE},uid=1234,gid=1235,mode=0400" in lines
    assert f"PublishPort=192.0.2.7:{source.plan.port}:8000" in lines
    assert f"Volume=./own{ACCESS}/{ACCESS_PROGRAM}:{ACCESS}/{ACCESS_PROGRAM}:ro" in lines


def test_kubernetes(source: ExportSource) -> None:
    text = kubernetes.exported(source, (1, 36)).files[0].data.decode()
    objects: dict[str, Any] = {one["kind"]: one for one in yaml.safe_load_all(text)}
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    secret = f"{kubernetes.name(source.plan)}-api-key"
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert volumes["api-key"]["secret"] == {"secretName": secret, "defaultMode": 0o444}
    assert f"kubectl create secret generic {secret} --from-file=key={source.plan.access.key_file}" in text
    mounts = {one["mountPath"]: one for one in pod["containers"][0]["volumeMounts"]}
    assert mounts[KEY_FILE] == {"name": "api-key", "mountPath": KEY_FILE, "subPath": "key", "readOnly": True}
    program = mounts[f"{ACCESS}/{ACCESS_PROGRAM}"]
    assert program["subPath"] in objects["ConfigMap"]["data"]
    assert objects["ConfigMap"]["data"]["templates.mine.jinja"] == TEMPLATE.decode()
    assert mounts["/adapters/pirate"]["readOnly"]
