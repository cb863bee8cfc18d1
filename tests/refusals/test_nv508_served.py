"""NV508, lock held, on a real instance: a profile that is being served is not served a second time."""

from __future__ import annotations

import pytest

from support.engine_world import IMAGE, Served

pytestmark = pytest.mark.engine


def test_a_second_serve_says_who_holds_the_locks(served: Served) -> None:
    world, said = served.world, served.done.result
    again = world.serve()
    assert again.code == 3
    assert set(again.codes) == {"NV508"}
    port, serve = again.refusals
    assert port["where"] == str(world.places.locks / f"port-{world.port}.lock")
    assert serve["where"] == str(world.places.locks / f"serve-{said['serve_hash']}.lock")
    holder = f"pid {world.state()['supervisor']} (nvllm serve {IMAGE} --profile {world.profile()}) since "
    assert port["found"].startswith(holder)
    assert port["found"].endswith(f", container {said['container'][:12]}")
    assert port["cure"] == serve["cure"] == f"nvllm stop {world.instance()}"
    served.container.reload()
    assert served.container.status == "running"


def test_a_dry_run_and_doctor_see_the_container_and_the_port(served: Served) -> None:
    world = served.world
    for done in (
        world.serve("--dry-run"),
        world.nvllm("doctor", IMAGE, "--profile", world.profile(), "--json"),
    ):
        assert done.code == 3
        assert done.codes == ["NV507", "NV508"]
        running = done.refusals[1]
        assert running["where"] == f"docker engine: container {world.instance()}"
        assert running["found"] == f"container {str(served.container.id)[:12]} running"
        assert running["cure"] == f"nvllm stop {world.instance()}"
