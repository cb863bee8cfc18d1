"""Secrets of the operator, planted where people keep them, and looked for in all that nvllm prints and writes.

Every address leads nowhere, so that each command fails where it would use one: errors like to quote what they got.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvllm.cli import main as cli
from nvllm.cli.main import main

ROOT = Path(__file__).parents[2]
USER, PASSWORD, TOKEN, REGISTRY = "planted-user", "planted-password", "hf_plantedtoken123", "planted-registry"
NOWHERE = f"{USER}:{PASSWORD}@127.0.0.1:9"

COMMANDS = [
    "lock cpu --update wheels",
    "lock cpu --update debs",
    "lock cpu --update source",
    "lock cpu --update models",
    "build cpu",
    "build cpu --dry-run",
    "init mine --vllm 0.27.0",
    "patch check cpu",
    "patch check cpu --against 0.29.0",
    "patch apply cpu out",
    "model fetch cpu tiny-lfm2",
    "model make cpu tiny-lfm2",
    "doctor",
    "doctor cpu --profile tiny-eager",
    "serve cpu --profile tiny-eager --dry-run",
    "serve cpu --profile tiny-eager",
    "bless cpu --profile tiny-blessed",
    "bisect start cpu --bad spec --good none --test ./probe.sh",
    "explain cpu nvllm:cpu",
    "sbom cpu",
    "provenance cpu",
    "manifest list",
    "status",
    "gc --dry-run",
    "pull 127.0.0.1:9/nvllm cpu",
    "ablate cpu --profile tiny-eager --sentinels page-zeroer --probe ./probe.sh",
    "eval --image cpu --profile tiny-eager --probe ./probe.sh",
    "bench cpu --profile tiny-eager",
    "sample crash",
]


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project, and a home in which every place that may hold a secret holds one."""
    place = tmp_path_factory.mktemp("planted")
    for name in ("images", "patches", "manifests"):
        shutil.copytree(ROOT / name, place / "project" / name)
    (place / "project/probe.sh").write_text("#!/bin/sh\nexit 0\n")
    (place / "project/probe.sh").chmod(0o755)
    (place / "docker").mkdir()
    auth = base64.b64encode(f"{USER}:{REGISTRY}".encode()).decode()
    auths = {"r.example": {"auth": auth}, "127.0.0.1:9": {"auth": auth}}
    proxies = {"default": {"httpProxy": f"http://{NOWHERE}", "httpsProxy": f"http://{NOWHERE}"}}
    (place / "docker/config.json").write_text(json.dumps({"auths": auths, "proxies": proxies}))
    settings = f"[global]\nindex-url = https://{NOWHERE}/simple\nextra-index-url = https://{NOWHERE}/more\n"
    (place / "pip.conf").write_text(f"{settings}retries = 0\ntimeout = 2\nproxy = http://{NOWHERE}\n")
    (place / "home").mkdir()
    (place / "home/.netrc").write_text(f"machine 127.0.0.1 login {USER} password {PASSWORD}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place / "project")
        for name, value in {
            "HOME": str(place / "home"),
            "NVLLM_HOME": str(place / "nvllm"),
            "DOCKER_HOST": f"unix://{place}/no-engine",
            "DOCKER_CONFIG": str(place / "docker"),
            "PIP_CONFIG_FILE": str(place / "pip.conf"),
            "HF_TOKEN": TOKEN,
            "HF_ENDPOINT": f"http://{NOWHERE}",
            "HTTPS_PROXY": f"http://{NOWHERE}",
            "HTTP_PROXY": f"http://{NOWHERE}",
            "NVLLM_GITHUB_MIRROR": f"https://{NOWHERE}/github",
            "NVLLM_DEBIAN_MIRROR": f"http://{NOWHERE}/debian",
            "NVLLM_DEBIAN_SNAPSHOT": f"http://{NOWHERE}/snapshot",
            "COLUMNS": "100",
        }.items():
            patch.setenv(name, value)
        for name in ("http_proxy", "https_proxy", "no_proxy", "NO_PROXY", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
            patch.delenv(name, raising=False)
        entry = cli.Entry("Housekeeping", "sample", "support.frame_sample", "sample", "End in some way.")
        patch.setitem(cli.BY_NAME, "sample", entry)
        yield place


def shown(text: str) -> list[str]:
    """Return the secrets in TEXT, plain or as an HTTP header has them."""
    encoded = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    return [one for one in (PASSWORD, TOKEN, REGISTRY, encoded) if one in text]


@pytest.mark.parametrize("line", COMMANDS)
def test_no_command_shows_a_secret(surroundings: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    """Stdout has the document of the result or of the refusals, stderr what each program was started with."""
    place = surroundings
    main([*line.split(), "--json", "--verbose"])
    captured = capsys.readouterr()
    if "wheels" in line:
        assert "127.0.0.1" in captured.out  # the index was asked, and named, or nothing would be shown here
    assert shown(captured.out + captured.err) == []
    written = [path for path in (place / "nvllm", place / "project") for path in path.rglob("*") if path.is_file()]
    assert [path for path in written if shown(path.read_bytes().decode(errors="replace"))] == []


def test_what_is_planted_would_be_found() -> None:
    assert shown(f"https://{NOWHERE}/simple") == [PASSWORD]
    assert shown(f"Bearer {TOKEN}") == [TOKEN]
