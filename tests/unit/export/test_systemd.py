"""The unit that runs `nvllm serve`; `tests/fleet` gives it to systemd-analyze."""

from __future__ import annotations

from nvllm.export import systemd
from nvllm.export.systemd import Service
from support.export_world import BLESSED

SERVICE = Service(("/opt/my tools/nvllm", "--project", "/srv/50%"), {"NVLLM_HOME": "/srv/$x"}, "operator")


def test_the_unit_serves_the_profile_as_its_user() -> None:
    (file,) = systemd.exported(BLESSED, SERVICE).files
    lines = file.data.decode().splitlines()
    assert file.path == "nvllm-demo-eager.service"
    assert 'ExecStart="/opt/my tools/nvllm" --project /srv/50%% serve demo --profile eager' in lines
    assert "User=operator" in lines
    assert "Environment=NVLLM_HOME=/srv/$x" in lines
    assert "Restart=no" in lines
    assert "KillMode=mixed" in lines  # the supervisor alone is told, and ends the engine itself
    assert "SuccessExitStatus=143" in lines


def test_nvllm_itself_holds_all_but_what_systemd_is_told() -> None:
    assert [name for name, one in systemd.guarantees().items() if not one.held] == ["ready"]
