"""`nvllm serve`, and what looks after the instances that it started: `status`, `logs`, `stop`."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

import click

from nvllm.cli import complete
from nvllm.cli.frame import PATH, App, Command, with_app
from nvllm.cli.image_argument import IMAGE, with_image
from nvllm.core import durable, plan, reading
from nvllm.core.canonical import Json
from nvllm.core.plan import LaunchPlan, PlannedCpu, ServedModel
from nvllm.core.refusal import Refusal, collected, refuse
from nvllm.core.spec import LOOPBACK
from nvllm.engine import engine
from nvllm.engine.engine import Engine
from nvllm.host import facts, gate_records, gates
from nvllm.image import identity
from nvllm.serve import detach, exposition, health, instances, owners, service, stopping
from nvllm.serve.examination import Depth, examine
from nvllm.serve.instances import SeenInstance
from nvllm.serve.rundir import CoveredKernels, InstanceState, RunDirectory, all_below
from nvllm.serve.supervisor import Supervisor

SERVE_EXAMPLES = """
Examples:
  nvllm serve cpu --profile tiny-eager             until Ctrl-C
  nvllm serve cpu --profile tiny-eager --detach    in the background; returns when it is ready
  nvllm serve cpu --profile tiny-eager --dry-run   print the launch plan and every refusal
  nvllm serve --profile lower8                     of the only image that has the profile
"""
STATUS_EXAMPLES = """
Examples:
  nvllm status
  nvllm status --json
  nvllm status --metrics                           for Prometheus
  nvllm status --metrics-file /var/lib/node_exporter/textfile/nvllm.prom
"""
LOGS_EXAMPLES = """
Examples:
  nvllm logs nvllm-cpu-tiny-eager -f
  nvllm logs                                       if there is only one instance
"""
STOP_EXAMPLES = """
Examples:
  nvllm stop nvllm-cpu-tiny-eager
  nvllm stop                                       if there is only one instance
  nvllm stop --all
"""


@click.command("serve", cls=Command, epilog=SERVE_EXAMPLES)
@IMAGE
@click.option("--profile", required=True, shell_complete=complete.profiles, help="A profile of the image.")
@click.option("--dry-run", is_flag=True, help="Print the launch plan and every refusal; start nothing.")
@click.option("--detach", is_flag=True, help="Run in the background; return when the engine is ready.")
@click.option("--paranoid", is_flag=True, help="Hash every file of the model, also those whose hash is on record.")
@with_image()
def serve_command(app: App, image: str, profile: str, dry_run: bool, detach: bool, paranoid: bool) -> None:
    """A refusal lists every problem at once."""
    if detach and not dry_run:
        _detach(app, image, profile, paranoid=paranoid)
        return
    if dry_run:
        seen = examine(app.project, app.places, image, profile, Depth.SHOW, paranoid=paranoid, progress=app.progress)
        app.show("serve --dry-run", plan.encode(seen.plan), lambda: _plan_text(app, seen.plan), seen.refusals)
        return
    command = shlex.join(["nvllm", "serve", image, "--profile", profile])
    served = service.ServiceRequest(app.project, app.places, image, profile, command, paranoid, app.progress)
    examination = service.examined(served)
    app.remember_project()
    for waiver in examination.plan.waivers:
        app.progress.note(f"WAIVER {waiver.name}: {waiver.reason}")
    if examination.plan.dev:
        app.progress.note(f"DEVELOPMENT profile {profile}: not for production")
    service.run(served, examination, functools.partial(_announce, app))


def _announce(app: App, running: Supervisor, generation: health.Generation) -> None:
    app.out.result("serve", _ready_data(running), _ready_text(running.plan, generation))


def _ready_data(running: Supervisor) -> Json:
    plan, cache = running.plan, running.mounted
    return {
        "instance": plan.instance,
        "image": plan.image,
        "profile": plan.profile,
        "address": f"http://127.0.0.1:{plan.port}",
        "model": plan.request_name,
        "draft": plan.draft.name if plan.draft is not None else None,
        "adapters": [adapter.name for adapter in plan.adapters],
        "dev": plan.dev,
        "tree": plan.cache.tree if plan.cache is not None else None,
        "guard": cache.staged.level if cache is not None else None,
        "slow": [asdict(phase) for phase in running.slow],
        "container": running.container,
        "build_hash": plan.build_hash,
        "serve_hash": plan.serve_hash,
        "waivers": [waiver.name for waiver in plan.waivers],
    }


def _ready_text(plan: LaunchPlan, generation: health.Generation) -> str:
    dev = "  (development)" if plan.dev else ""
    published = f", published on {plan.access.publish}" if plan.access.publish != LOOPBACK else ""
    return (
        f"ready: {plan.instance}{dev} at http://127.0.0.1:{plan.port}{published}, model {plan.request_name}; "
        f"{generation.tokens} tokens in {generation.seconds:.2f} s; serve hash {plan.serve_hash[:12]}"
    )


def _plan_text(app: App, plan: LaunchPlan) -> None:
    rows = [
        ("instance", plan.instance + ("  (development)" if plan.dev else "")),
        ("image", _image_text(plan)),
        ("serve hash", plan.serve_hash or "not known without a lock"),
        *(
            (role, f"{model.name}  {model.revision or model.tree or 'not known without a lock'}")
            for role, model in _roles(plan)
        ),
        ("command", shlex.join(plan.command.engine)),
        ("cache", plan.cache.tree if plan.cache is not None else "none that is blessed"),
        ("CPU", _cpu_text(plan.cpu)),
        ("user", plan.user),
        *_access_rows(plan),
        ("memory", f"{plan.limits.memory / 2**30:.1f} GiB, {plan.limits.shared_memory / 2**20:.0f} MiB shared"),
        ("processes", str(plan.limits.pids)),
        ("start timeout", f"{plan.limits.start_timeout} s"),
        ("sentinels", ", ".join(plan.sentinels) or "none"),
        ("waivers", ", ".join(waiver.name for waiver in plan.waivers) or "none"),
        ("hardening", "read-only root, no capabilities, no new privileges, private IPC"),
        *(("read-only", f"{mount.target}  <-  {mount.source}") for mount in plan.mounts),
        *(("scratch", f"{scratch.target}  {scratch.size / 2**20:.0f} MiB") for scratch in plan.scratch),
        *(("environment", f"{name}={value}") for name, value in plan.environment.items()),
    ]
    app.out.table(["launch plan", ""], rows)


def _roles(plan: LaunchPlan) -> list[tuple[str, ServedModel]]:
    """Return the models of PLAN, each with what it is for."""
    drafting = [("draft", plan.draft)] if plan.draft is not None else []
    return [("model", plan.model), *drafting, *(("adapter", adapter) for adapter in plan.adapters)]


def _access_rows(plan: LaunchPlan) -> list[tuple[str, str]]:
    """Return what `nvllm serve --dry-run` shows of who may ask, where, and by which name."""
    rows = [("published", ", ".join(f"{address}:{plan.port}" for address in plan.addresses))]
    if plan.access.key_file is not None:
        rows.append(("API key", f"from {plan.access.key_file}"))
    if plan.served_name:
        rows.append(("served name", plan.served_name))
    if plan.template is not None:
        rows.append(("chat template", f"{plan.template.file}  {plan.template.sha256}"))
    return rows


def _cpu_text(cpu: PlannedCpu) -> str:
    """Return CPU in one line; its flags are in the document of ``--json``."""
    layout = f"; {cpu.layout.count} CPUs, {cpu.layout.cores} cores" if cpu.layout is not None else ""
    return f"{cpu.machine}  {cpu.kind}; {len(cpu.flags)} flags{layout}"


def _image_text(plan: LaunchPlan) -> str:
    if not plan.build_hash:
        return f"nvllm:{plan.image}  not locked, so not built"
    return f"{identity.tag(plan.image, plan.build_hash)}  {plan.image_id or 'not built'}"


def _detach(app: App, image: str, profile: str, *, paranoid: bool) -> None:
    """Serve PROFILE of IMAGE in the background, and return when it is ready."""
    data = detach.detached(app.project, app.places, image, profile, paranoid=paranoid, progress=app.progress)
    log = app.places.run(str(data["instance"])) / "engine.log"
    app.out.result("serve", data, f"ready: {data['instance']} at {data['address']}, log {log}")


@click.command("status", cls=Command, epilog=STATUS_EXAMPLES)
@click.option("--metrics", is_flag=True, help="Print it in the text format of Prometheus.")
@click.option("--metrics-file", type=PATH, metavar="FILE", help="Write that into FILE, whole or not at all.")
@with_app
def status(app: App, metrics: bool, metrics_file: Path | None) -> None:
    """Each is shown with its stage, its address, how long its start took, and whether a supervisor looks after it."""
    if metrics and app.out.json:
        raise refuse("NV108", "--metrics", "--json or --metrics", "both", "leave one of them out")
    seen = instances.seen(engine.require(), app.places)
    page = _metrics(app, seen) if metrics or metrics_file is not None else ""
    if metrics_file is not None:
        durable.replace(metrics_file.absolute(), page.encode(), 0o644, code="NV920")  # node_exporter is another user
    if metrics:
        app.out.line(page)
        return
    projects = {instance.name: owners.owner(app.places, instance.name) for instance in seen}
    data: list[Json] = []
    for instance in seen:
        named: dict[str, Json] = {"instance": instance.name, "container": instance.container}
        known = named if instance.state is None else asdict(instance.state)
        here: dict[str, Json] = {"supervised": instance.supervised, "project": projects[instance.name]}
        data.append({**known, "stage": instance.stage, **here})
    app.out.result("status", {"instances": data}, lambda: _status_text(app, seen, projects))


def _metrics(app: App, seen: Sequence[SeenInstance]) -> str:
    """Return the instances SEEN, the figures of engines that answer, and the gates of this host, for Prometheus."""
    usage = {
        instance.name: {
            number: figures.kv_usage for number, figures in health.read_metrics(instance.state.port).items()
        }
        for instance in seen
        if instance.running and instance.state is not None
    }
    here = gates.machine(facts.probe([]))
    return exposition.text(exposition.Exposed(seen, usage, gate_records.filed(app.places.gates), here))


def _status_text(app: App, seen: Sequence[SeenInstance], projects: Mapping[str, str | None]) -> None:
    if not seen:
        app.out.line("nothing is being served")
        return
    columns = ["instance", "stage", "address", "started", "start took", "KV tokens", "supervised"]
    app.out.table(columns, [_status_cells(app, instance, projects[instance.name]) for instance in seen])
    for state in (instance.state for instance in seen if instance.state is not None):
        for death in state.deaths:
            app.out.line(f"{state.instance}: an engine died at {_local(death.when)}: {death.reason}")
        if state.coverage is not None:
            app.out.line(_coverage_text(state.instance, state.coverage))
        if state.kernels:
            app.out.line(_kernels_text(state))


def _status_cells(app: App, seen: SeenInstance, project: str | None) -> tuple[str, ...]:
    """Return the row of SEEN, an instance of PROJECT. One of another home has no state here."""
    other = f"  (of {project})" if project not in {None, app.project.identity} else ""
    state, supervised = seen.state, "yes" if seen.supervised else "no"
    if state is None:
        return (f"{seen.name}{other}", seen.stage, "-", "-", "-", "-", supervised)
    blessed = f"  (blessed {state.blessed})" if state.blessed else ""
    name = f"{seen.name}{'  (development)' if state.dev else ''}{blessed}{other}"
    took = f"{sum(seconds for _, seconds in state.phases):.1f} s" if state.phases else "-"
    tokens = f"{state.kv_tokens:,}" if state.kv_tokens else "-"
    return (name, seen.stage, f"127.0.0.1:{state.port}", _local(state.started), took, tokens, supervised)


def _local(seconds: float) -> str:
    """Return SECONDS since 1970 as the time of this host's zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _coverage_text(instance: str, coverage: CoveredKernels) -> str:
    """Return how many kernels the cache of INSTANCE has, and what the rounds of its bless never reached."""
    never = f"; never computed in one step: {', '.join(coverage.unmet)}" if coverage.unmet else ""
    return f"{instance}: its cache has {coverage.variants} variants of {coverage.kernels} kernels{never}"


def _kernels_text(state: InstanceState) -> str:
    """Return which kernels the blessed cache of the instance in STATE lacks, and how to add them."""
    names = ", ".join(dict.fromkeys(kernel.name for kernel in state.kernels))
    return (
        f"{state.instance}: {len(state.kernels)} kernels were not in the blessed cache, so requests waited for a "
        f"compile: {names}. Add them: nvllm bless {state.image} --profile {state.profile} --extend"
    )


def _only(app: App, docker: Engine) -> str:
    """Return the only instance of this project that has not ended. Raises Refused NV107 if there are several, or none.

    What was started from another state directory is nothing of this project.
    """
    unended = stopping.unended(docker, app.places)
    names = [name for name in unended if owners.is_free(app.project, app.places, name)]
    if len(names) == 1:
        return names[0]
    others = f"nothing of this project; of others: {', '.join(unended)}" if unended else "nothing is being served"
    raise refuse("NV107", "INSTANCE", "the name of an instance", ", ".join(names) or others, "nvllm status")


@click.command("logs", cls=Command, epilog=LOGS_EXAMPLES)
@click.argument(
    "instance", required=False, shell_complete=complete.instances, help="An instance that `nvllm status` lists."
)
@click.option("--follow", "-f", is_flag=True, help="Show new lines until the instance ends, or Ctrl-C.")
@click.option("--tail", type=click.IntRange(min=1), metavar="N", help="Show only the last N lines.")
@with_app
def logs(app: App, instance: str | None, follow: bool, tail: int | None) -> None:
    """The log stays after the instance has ended, until the next start or `nvllm gc`."""
    if follow and app.out.json:
        cure = "leave one of them out"
        raise refuse("NV108", "--follow", "--json, which is one document, or --follow", "both", cure)
    if instance is None:
        instance = _only(app, engine.require())
    owners.check(app.project, app.places, instance)
    path = app.places.run(instance) / "engine.log"
    if not path.is_file():
        known = ", ".join(run.path.name for run in all_below(app.places.runs)) or "none"
        raise refuse("NV107", str(path), f"an instance: {known}", instance, "nvllm status")
    lines = reading.required(path, reading.LOG, str(path)).decode("utf-8", "replace").splitlines()
    chosen = lines if tail is None else lines[-tail:]
    app.out.result("logs", {"instance": instance, "lines": chosen}, "\n".join(chosen))
    if follow:
        _follow(app, path, RunDirectory(path.parent))


def _follow(app: App, path: Path, run: RunDirectory) -> None:
    seen = path.stat().st_size
    while True:
        # It is gone between two starts, and after `nvllm gc`.
        with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
            seen = 0 if seen > os.fstat(stream.fileno()).st_size else seen  # another log was begun
            stream.seek(seen)
            for line in stream:
                app.out.line(line.decode("utf-8", "replace"))
            seen = stream.tell()
        state = run.read_state()
        ended = state is None or state.stage in {"stopped", "failed"}
        if ended and stopping.holder_of(app.places, run.path.name) is None:  # else the engine may be started again
            return
        time.sleep(0.3)  # a file that grows sends no event


@click.command("stop", cls=Command, epilog=STOP_EXAMPLES)
@click.argument(
    "instance", required=False, shell_complete=complete.instances, help="An instance that `nvllm status` lists."
)
@click.option("--all", "every", is_flag=True, help="Stop every instance of this project.")
@with_app
def stop(app: App, instance: str | None, every: bool) -> None:
    """nvllm never stops a container that it did not create.

    Requests under way may finish for as long as the profile's `limits.drain-timeout` says, and no new ones are taken
    meanwhile. An instance whose container is gone is recorded as stopped.
    """
    docker = engine.require()
    if every:
        if instance is not None:
            raise refuse("NV108", "--all", "INSTANCE or --all", "both", "leave one of them out")
        _stop_all(app, docker)
        return
    name = instance if instance is not None else _only(app, docker)
    owners.check(app.project, app.places, name)
    with app.progress.task(f"stop {name}", None, "files"):
        container = stopping.stop(docker, app.places, name)
    app.out.result("stop", {"instance": name, "container": container}, f"stopped {name}")


def _stop_all(app: App, docker: Engine) -> None:
    """Stop every instance of the project that has not ended. Raises Refused at the end for those that it could not."""
    stopped: list[Json] = []
    refusals: list[Refusal] = []
    own = [name for name in stopping.unended(docker, app.places) if owners.is_free(app.project, app.places, name)]
    for name in own:
        with collected(refusals), app.progress.task(f"stop {name}", None, "files"):
            stopped.append({"instance": name, "container": stopping.stop(docker, app.places, name)})
    names = [str(cast("Mapping[str, Json]", entry)["instance"]) for entry in stopped]
    text = "\n".join(f"stopped {name}" for name in names) or "nothing is being served"
    app.show("stop", {"instances": stopped}, lambda: app.out.line(text), refusals)
