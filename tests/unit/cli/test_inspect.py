"""`nvllm doctor`, `explain` and `gc` on a project on disk, through the command line.

The engine is out of reach of unit tests: DOCKER_HOST names a socket that is not there, and the two commands that
cannot go on without an engine get one that is made up. What a real engine answers is the end-to-end suite's.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nvllm.bisect import journal
from nvllm.bisect.records import End
from nvllm.cli import inspect as cli_inspect
from nvllm.cli.main import main
from nvllm.core import canonical, catalogue
from nvllm.core.paths import Places, Project
from nvllm.core.plan import encode
from nvllm.core.refusal import Refusal, Refused
from nvllm.engine import engine
from nvllm.gc.projects import Projects
from nvllm.host import facts as host
from nvllm.host import gate_records
from nvllm.host.facts import INSTANCE_LABEL, ContainerFact, ImageFacts, StoredImage
from nvllm.image import identity
from nvllm.image.buildrecord import Record, RecordedLayer
from nvllm.image.buildrecord import write as write_record
from nvllm.serve.rundir import RunDirectory
from nvllm.sources.store import Store
from nvllm.trials.trial import Built
from support import gate_samples
from support.bisect_world import free
from support.bisect_world import start as begun
from support.plansamples import edit, plan, project, write_lock
from support.plansamples import places as sample_places

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Stand in a project with the image `demo`, with a home of its own and no engine."""
    found = project(tmp_path)
    monkeypatch.chdir(found.root)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")
    monkeypatch.delenv("NVLLM_MODELS", raising=False)
    return found


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return sample_places(tmp_path)


def document(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


# doctor


def test_doctor_without_an_engine_says_so_and_goes_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--json"]) == 3
    found = document(capsys)
    assert [(one["code"], one["where"]) for one in found["refusals"] if one["code"] == "NV510"] == [
        ("NV510", f"unix://{tmp_path}/no-engine")
    ]


def test_doctor_as_text_shows_every_check_and_then_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 3
    captured = capsys.readouterr()
    host, images = captured.out.split("\n\n")
    header, *rows, others = host.splitlines()
    assert header.split() == ["code", "check", "seen"]
    assert [row.split()[0] for row in rows] == sorted(row.split()[0] for row in rows)
    assert others.endswith("more checks are of a profile: nvllm doctor IMAGE --profile NAME")
    assert len(rows) + int(others.split()[0]) > 10
    assert [line.split()[0] for line in images.splitlines()] == ["image", "demo", "next:", "demo:"]
    assert "engine unreachable, model missing" in images
    assert captured.err.startswith("NV510 engine unreachable\n")


def test_doctor_of_a_profile_refuses_what_serve_would(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "demo", "--profile", "eager", "--json"]) == 3
    looked = document(capsys)
    doctor = looked["refusals"]
    failed = {one["code"] for one in looked["result"]["checks"] if one["state"] == "refused"}
    assert "NV510" in failed
    assert failed <= {one["code"] for one in doctor}
    assert main(["serve", "demo", "--profile", "eager", "--dry-run", "--json"]) == 3
    serve = document(capsys)["refusals"]

    def told(refusals: list[dict[str, str]]) -> list[tuple[str, str]]:
        return [(one["code"], one["where"]) for one in refusals]

    assert told(doctor) == told(serve)
    assert {"NV401", "NV510", "NV602"} <= {code for code, _ in told(doctor)}


@pytest.mark.parametrize(("bless", "noted"), [("", True), ("    bless: {signers: manifests/signers}\n", False)])
def test_doctor_notes_a_blessed_profile_without_signers(
    capsys: pytest.CaptureFixture[str], world: Project, bless: str, noted: bool
) -> None:
    edit(world.spec("demo"), "    port: 8000\n", f"    port: 8000\n    blessed: true\n{bless}")
    edit(world.spec("demo"), "enforce-eager: true", "enforce-eager: false")
    assert main(["doctor", "demo", "--profile", "eager", "--offline"]) == 3  # no mirror is asked what is newer
    assert ("UNSIGNED profile eager names no signers" in capsys.readouterr().err) == noted


def test_a_dry_run_shows_the_plan_and_every_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "demo", "--profile", "eager", "--dry-run"]) == 3
    captured = capsys.readouterr()
    assert "vllm serve /models/tiny --served-model-name tiny" in captured.out
    assert "NV401 model missing" in captured.err


def test_without_a_lock_a_dry_run_still_shows_a_plan(capsys: pytest.CaptureFixture[str], world: Project) -> None:
    world.lock("demo").unlink()
    assert main(["serve", "demo", "--profile", "eager", "--dry-run"]) == 3
    captured = capsys.readouterr()
    assert "vllm serve /models/tiny --served-model-name tiny" in captured.out
    assert "not locked, so not built" in captured.out
    assert "not known without a lock" in captured.out
    dry = {line.split()[0] for line in captured.err.splitlines() if line.startswith("NV")}
    assert {"NV201", "NV401", "NV510", "NV602"} <= dry
    assert main(["serve", "demo", "--profile", "eager", "--json"]) == 3
    assert {one["code"] for one in document(capsys)["refusals"]} >= {"NV201", "NV401", "NV510", "NV602"}


def test_doctor_says_what_each_image_needs(capsys: pytest.CaptureFixture[str], world: Project) -> None:
    world.lock("demo").unlink()
    assert main(["doctor", "--json"]) == 3
    (one,) = document(capsys)["result"]["images"]
    assert (one["image"], one["built"], one["next"]) == ("demo", False, "nvllm lock demo")
    assert [lack["code"] for lack in one["lacks"]["serve"]] == ["NV201", "NV510", "NV401"]
    assert one["lacks"]["bless"] is None


# explain

HERE = plan(cpu=host.cpu(Path("/proc")))
"""The sample plan, as this host would make it."""


def test_a_code_that_is_none_is_told_its_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "NV999", "--json"]) == 2
    (one,) = json.loads(capsys.readouterr().out)["refusals"]
    assert one["code"] == "NV107"
    assert one["cure"].removeprefix("nvllm explain ") in catalogue.CODES


def explained(capsys: pytest.CaptureFixture[str], *names: str) -> Any:
    assert main(["explain", *names, "--json"]) == 0
    return document(capsys)["result"]


def test_an_image_is_the_same_as_itself(capsys: pytest.CaptureFixture[str], world: Project) -> None:
    found = explained(capsys, "demo", "demo")
    made, _ = identity.load_build(world, "demo", None)
    assert (found["kind"], found["factors"]) == ("build", [])
    assert found["a"] == found["b"] == {"name": "demo", "hash": made.build_hash}
    assert main(["explain", "demo", "demo"]) == 0
    assert capsys.readouterr().out == f"the same build hash: {made.build_hash}\n"


def test_two_images(capsys: pytest.CaptureFixture[str], world: Project) -> None:
    text = world.spec("demo").read_text()
    world.spec("other").write_text(text.replace("name: demo", "name: other").replace("[first]", "[first, second]"))
    lock = json.loads(world.lock("demo").read_text())
    world.lock("other").write_text(canonical.pretty({**lock, "image": "other"}))
    found = explained(capsys, "demo", "other")
    assert [(one["path"], one["a"]) for one in found["factors"]] == [(".image", "demo"), (".patches.second", None)]


def test_a_profile_and_the_instance_that_was_started_from_it(
    capsys: pytest.CaptureFixture[str], world: Project, places: Places
) -> None:
    instance = RunDirectory(places.runs / "nvllm-demo-eager")
    instance.prepare(encode(HERE), b"{}", ())
    found = explained(capsys, "nvllm-demo-eager", "demo/eager")
    assert found["kind"] == "serve"
    assert found["a"] == {"name": "nvllm-demo-eager", "hash": HERE.serve_hash}
    assert [one["path"] for one in found["factors"]] == [".build_hash"]


def test_a_change_of_the_profile_is_named_as_text(
    capsys: pytest.CaptureFixture[str], world: Project, places: Places
) -> None:
    RunDirectory(places.runs / "before").prepare(encode(HERE), b"{}", ())
    edit(world.spec("demo"), 'OMP_NUM_THREADS: "2"', 'OMP_NUM_THREADS: "4"')
    assert main(["explain", "before", "demo/eager"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["serve", "factor", "before", HERE.serve_hash[:12], "demo/eager", lines[0].split()[-1]]
    assert ".environment.OMP_NUM_THREADS  2" in lines[2]


@pytest.mark.parametrize(("name", "shown"), [("nothing", "nothing"), ("", "''")])
def test_a_name_of_nothing(name: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "demo", name, "--json"]) == 2
    (refusal,) = document(capsys)["refusals"]
    assert (refusal["code"], refusal["where"]) == ("NV107", shown)
    assert refusal["expected"] == "an image (demo), IMAGE/PROFILE, an instance, or a tag of the engine"


def test_a_profile_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "demo/eager", "demo/other", "--json"]) == 2
    (refusal,) = document(capsys)["refusals"]
    assert (refusal["code"], refusal["found"]) == ("NV107", "other")


def test_an_identity_file_says_what_the_image_is(world: Project) -> None:
    made, _ = identity.load_build(world, "demo", None)
    side = cli_inspect.read_identity("nvllm:demo", canonical.encode(identity.identity(made, ["sha256:1"])))
    assert (side.kind, side.hash, side.named) == ("build", made.build_hash, "nvllm:demo")
    assert canonical.encode(side.factors) == canonical.encode(made.factors)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"build_hash": "a"}', b'{"build_hash": 1, "factors": 2}'])
def test_an_identity_file_that_says_nothing_is_refused(data: bytes) -> None:
    with pytest.raises(Refused) as caught:
        cli_inspect.read_identity("nvllm:demo", data)
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV304", "docker engine: nvllm:demo: /opt/nvllm/identity.json")


def test_the_page_of_each_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    """In capitals or not; it is the catalogue's entry, how a refusal of that code ends a command, and what tests it."""
    wrong = []
    for code, entry in catalogue.CODES.items():
        ending = Refused([Refusal(code, "w", "e", "f", "c")]).exit_code
        page = explained(capsys, code.lower())
        assert main(["explain", code]) == 0
        shown = capsys.readouterr().out
        if (
            (page["code"], page["title"], page["meaning"]) != (code, entry.title, entry.meaning)
            or page["exit_status"] != ending
            or not list(ROOT.glob(page["test"]))
            or not shown.startswith(f"{code} {entry.title}\n")
            or entry.meaning not in shown
            or f"exit status  {ending}" not in shown
        ):
            wrong.append((page, shown))
    assert wrong == []


@pytest.mark.parametrize(("name", "near"), [("NV9077", "NV907"), ("NV099", "NV919"), ("demo", "NV101")])
def test_a_code_that_is_none_names_the_nearest(capsys: pytest.CaptureFixture[str], name: str, near: str) -> None:
    assert main(["explain", name, "--json"]) == 2
    (refusal,) = document(capsys)["refusals"]
    assert (refusal["code"], refusal["found"], refusal["cure"]) == ("NV107", name, f"nvllm explain {near}")


# gc


@dataclass
class FakeEngine:
    """An engine with images and containers that a test names."""

    held: list[StoredImage] = field(default_factory=list)
    running: list[ContainerFact] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    def stored(self) -> tuple[StoredImage, ...]:
        return tuple(self.held)

    def containers(self) -> tuple[ContainerFact, ...]:
        return tuple(self.running)

    def remove_image(self, reference: str) -> None:
        self.removed.append(reference)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, world: Project, places: Places) -> FakeEngine:
    made = FakeEngine()
    monkeypatch.setattr(engine, "require", lambda: made)
    Projects(places.projects).remember(world)  # as each build does
    return made


def age(path: Path) -> Path:
    os.utime(path, (1000, 1000))
    return path


def put(path: Path, data: bytes = b"12345") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return age(path)


def generation(places: Places, build_hash: str, *tags: str) -> StoredImage:
    """Put a build on record, and return its image."""
    layer = RecordedLayer("base", f"sha256:layer-{build_hash[:4]}", 5)
    write_record(places.builds, Record("demo", build_hash, f"sha256:{build_hash}", (layer,)))
    age(places.builds / f"{build_hash}.json")
    put(places.layers / f"{build_hash[:4]}.json", json.dumps({"diff_id": layer.diff_id}).encode())
    put(places.layers / f"{build_hash[:4]}.tar")
    facts = ImageFacts(f"sha256:{build_hash}", (), tags, 1000)
    return StoredImage(facts, (("sha256:base", 900), (f"sha256:top-{build_hash}", 100)))


def test_nothing_is_removed_without_an_engine(capsys: pytest.CaptureFixture[str]) -> None:
    """Without it nobody can say what is in use."""
    assert main(["gc", "--json"]) == 3
    assert [one["code"] for one in document(capsys)["refusals"]] == ["NV510"]


@pytest.mark.parametrize("dry", [True, False])
def test_what_the_lock_and_the_present_build_need_stays(
    capsys: pytest.CaptureFixture[str], world: Project, places: Places, fake: FakeEngine, dry: bool
) -> None:
    made, _ = identity.load_build(world, "demo", None)
    locked = made.lock.files[0].sha256
    fake.held = [
        generation(places, made.build_hash, "nvllm:demo", "nvllm:demo-now"),
        generation(places, "0" * 64, "nvllm:demo-old", "nvllm:demo-older"),
    ]
    store = Store(places.store)
    kept, gone = put(store.path(locked)), put(store.path("0" * 64))
    old_run = RunDirectory(places.runs / "nvllm-demo-old")
    old_run.prepare({}, b"{}", ())
    age(old_run.path)
    assert main(["gc", "--json", *(["--dry-run"] if dry else [])]) == 0
    result = document(capsys)["result"]
    assert result["removed"] is not dry
    assert [(one["kind"], one["name"]) for one in result["pieces"]] == [
        ("image", "nvllm:demo-old nvllm:demo-older"),
        ("locked file", "0" * 64),
        ("layer", "0000.tar"),
        ("record", f"{'0' * 64}.json"),
        ("run directory", "nvllm-demo-old"),
    ]
    assert {one["note"] for one in result["pieces"]} == {""}
    assert result["bytes"] == sum(one["bytes"] for one in result["pieces"])
    assert fake.removed == ([] if dry else ["nvllm:demo-old", "nvllm:demo-older"])
    assert kept.exists()
    assert gone.exists() is dry
    assert old_run.path.exists() is dry
    assert (places.layers / f"{made.build_hash[:4]}.tar").exists()


@pytest.mark.parametrize("dry", [True, False])
def test_old_records_of_gates_go_and_a_dry_run_shows_them(
    capsys: pytest.CaptureFixture[str], world: Project, places: Places, fake: FakeEngine, dry: bool
) -> None:
    times = ("2025-01-01T00:00:00Z", "2025-01-02T00:00:00Z")
    old, newest = [age(gate_records.write(places.gates, gate_samples.record(measured=one))) for one in times]
    assert main(["gc", "--json", *(["--dry-run"] if dry else [])]) == 0
    result = document(capsys)["result"]
    assert [(one["kind"], one["name"]) for one in result["pieces"]] == [("gate record", old.name)]
    assert (old.exists(), newest.exists()) == (dry, True)


def test_what_a_damaged_journal_needs_is_not_known(
    capsys: pytest.CaptureFixture[str], places: Places, fake: FakeEngine
) -> None:
    fake.held = [generation(places, "0" * 64, "nvllm:demo-trial")]
    put(places.state / "bisect" / "other" / "journal.jsonl", b"damaged\n")
    assert main(["gc", "--json"]) == 3
    shown = document(capsys)
    (refusal,) = shown["refusals"]
    assert refusal["where"] == f"{places.state}/bisect/other/journal.jsonl:1"
    assert shown["result"]["pieces"] == []
    assert fake.removed == []


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("over", [False, True])
def test_what_a_bisect_has_built_stays_until_it_is_over(
    capsys: pytest.CaptureFixture[str], world: Project, places: Places, fake: FakeEngine, over: bool, older: bool
) -> None:
    """Also what a bisect of another project has built, and one of an older nvllm."""
    another = project(world.root.parent / "another")
    Projects(places.projects).remember(another)
    directory = places.state / "bisect" if older else places.work(another) / "bisect"
    fake.held = [generation(places, "0" * 64, "nvllm:demo-trial")]
    log = journal.create(directory / "demo" / "journal.jsonl", begun(free(3)))
    log.append(Built(("p01",), "", "0" * 64, "sha256:" + "0" * 64, 1.0))
    if over:
        log.append(End(("p01",), True, True))
    assert main(["gc", "--json"]) == 0
    kinds = [one["kind"] for one in document(capsys)["result"]["pieces"]]
    assert kinds == (["image", "layer", "record"] if over else [])
    assert fake.removed == (["nvllm:demo-trial"] if over else [])


def test_what_is_young_stays_unless_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], places: Places, fake: FakeEngine
) -> None:
    path = Store(places.store).path("0" * 64)
    put(path)
    os.utime(path)
    assert main(["gc"]) == 0
    assert capsys.readouterr().out == "nothing to remove\n"
    assert main(["gc", "--keep-younger", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 removed, 4.1 kB"
    assert not path.exists()


def test_a_run_directory_that_cannot_be_read_is_cleared(
    capsys: pytest.CaptureFixture[str], places: Places, fake: FakeEngine
) -> None:
    for name, text in [("nvllm-demo-damaged", "{"), ("nvllm-demo-running", "{}")]:
        run = RunDirectory(places.runs / name)
        run.prepare({}, b"{}", ())
        (run.path / "state.json").write_text(text)
        age(run.path)
    name = "nvllm-demo-running"
    fake.running = [ContainerFact(name, {INSTANCE_LABEL: name}, True, "4f" * 32)]
    assert main(["gc"]) == 0
    assert "nvllm-demo-damaged" in capsys.readouterr().out
    assert [path.name for path in places.runs.iterdir()] == [name]


def test_an_image_without_a_lock_refers_to_nothing(
    capsys: pytest.CaptureFixture[str], world: Project, places: Places, fake: FakeEngine
) -> None:
    locked = write_lock(world).files[0].sha256
    path = put(Store(places.store).path(locked))
    world.lock("demo").unlink()
    assert main(["gc"]) == 0
    assert not path.exists()


# status


def test_status_survives_a_state_that_is_damaged(
    capsys: pytest.CaptureFixture[str], places: Places, fake: FakeEngine
) -> None:
    run = RunDirectory(places.runs / "nvllm-demo-eager")
    run.prepare({}, b"{}", ())
    (run.path / "state.json").write_text('{"instance": "nvl')
    assert main(["status", "--json"]) == 0
    assert document(capsys)["result"] == {"instances": []}
    fake.running = [ContainerFact("nvllm-demo-eager", {INSTANCE_LABEL: "nvllm-demo-eager"}, True, "4f" * 32)]
    assert main(["status", "--json"]) == 0
    (only,) = document(capsys)["result"]["instances"]
    assert (only["instance"], only["stage"], only["supervised"]) == ("nvllm-demo-eager", "running", False)
    assert main(["status"]) == 0
    # Nothing is known of when it started: no made-up time stands there.
    assert capsys.readouterr().out.splitlines()[-1].split() == ["nvllm-demo-eager", "running", *"-----"[:4], "no"]
