"""Sensors of a host, in directories that are laid out as the kernel's are."""

from __future__ import annotations

from pathlib import Path

from nvllm.host import sensors


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / "class" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_both_kinds_with_their_names(tmp_path: Path) -> None:
    root = put(
        tmp_path,
        {
            "thermal/thermal_zone0/type": "acpitz",
            "thermal/thermal_zone0/temp": "48500",
            "thermal/cooling_device0/type": "Processor",
            "hwmon/hwmon1/name": "k10temp",
            "hwmon/hwmon1/temp1_input": "61125",
            "hwmon/hwmon1/temp1_label": "Tctl",
            "hwmon/hwmon1/temp2_input": "39000",
            "hwmon/hwmon2/fan1_input": "1200",
        },
    )
    assert sensors.temperatures(root) == {
        "acpitz (thermal_zone0)": 48.5,
        "k10temp Tctl (hwmon1)": 61.125,
        "k10temp temp2 (hwmon1)": 39.0,
    }


def test_a_sensor_that_says_nothing_or_nonsense_is_none(tmp_path: Path) -> None:
    root = put(
        tmp_path,
        {
            "thermal/thermal_zone0/temp": "",
            "thermal/thermal_zone1/temp": "-274000",
            "thermal/thermal_zone2/temp": "65535000",
            "hwmon/hwmon0/temp1_input": "hot",
        },
    )
    (root / "class/hwmon/hwmon0/temp2_input").mkdir()
    assert sensors.temperatures(root) == {}
    assert sensors.temperatures(tmp_path / "none") == {}
