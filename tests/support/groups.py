"""Which files of tests with the engine stay together on one worker, where `--dist loadfile` shares files out.

Any other files may run at the same time: each test has a world, ports and names of containers of its own.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # it has no types

IMAGES = (
    "e2e/test_ablate.py",
    "e2e/test_aot_load.py",
    "e2e/test_bench.py",
    "e2e/test_bisect.py",
    "e2e/test_bisect_artifacts.py",
    "e2e/test_bisect_artifacts_served.py",
    "e2e/test_bisect_edges.py",
    "e2e/test_bisect_landscapes.py",
    "e2e/test_build.py",
    "e2e/test_clones.py",
    "e2e/test_dev.py",
    "e2e/test_foreign_image.py",
    "e2e/test_gc.py",
    "e2e/test_image_diff.py",
    "e2e/test_loading.py",
    "e2e/test_mission.py",
    "e2e/test_native_patch.py",
    "e2e/test_planted_faults.py",
    "e2e/test_prove.py",
    "e2e/test_registry_base.py",
    "e2e/test_sm120.py",
    "e2e/test_two_homes.py",
    "refusals/test_nv302.py",
    "refusals/test_nv303.py",
    "refusals/test_nv304.py",
    "refusals/test_nv307.py",
)
"""They name or remove images, or compare what the engine holds before and after."""

SERVED = (
    "e2e/test_clones.py",
    "e2e/test_hardening.py",
    "e2e/test_sentinels.py",
    "e2e/test_serve.py",
    "e2e/test_status_metrics.py",
    "refusals/test_nv508_served.py",
)
"""They look at one instance, which takes 20 seconds to start. One of them is of `IMAGES` too."""

PROBED = (
    "series/test_both_series.py",
    "series/test_leaving_out.py",
    "series/test_newer_series.py",
    "series/test_v0210_series.py",
)
"""They judge what the probes find on the same trees, half a minute for each tree."""

GROUPS = {"images": (*IMAGES, *SERVED), "probed": PROBED}


class Groups(LoadFileScheduling):  # type: ignore[misc]  # as above
    """Sends the files of a group to one worker. The marks that xdist has for that are lost on pytest 9.2."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        name = file.removeprefix("tests/")
        return next((group for group, files in GROUPS.items() if name in files), file)
