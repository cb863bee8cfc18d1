"""Owners: which project an instance belongs to, so that no project acts on another one's by accident.

::

    <state>/instances/<name>    a link to the project, made before its first serve or bless of that name

An instance is called nvllm-IMAGE-PROFILE. If another project of this host already has that name, the first digits of
this project's id are added: the first one keeps the name that the documentation shows. A name is free again when its
project is gone. Instances of an older nvllm have no owner, and any project of their home may stop them. Nobody here
may stop those of another home: their containers have its label (`ContainerFact.of_another`).
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from nvllm.core import durable, paths, reading
from nvllm.core.paths import Places, Project
from nvllm.core.refusal import refuse
from nvllm.serve import planner

_PACKAGED = "packaged"
"""The identity of the project that nvllm came with; see `Project.identity`."""


def instance_name(project: Project, places: Places, image: str, profile: str) -> str:
    """Return what the instance of PROFILE of IMAGE of PROJECT is called on this host."""
    plain = planner.instance_name(image, profile)
    return plain if is_free(project, places, plain) else f"{plain}-{project.id[:7]}"


def owner(places: Places, instance: str) -> str | None:
    """Return the identity of the project that INSTANCE belongs to; None if there is none, or it is gone.

    Raises Refused NV108 if INSTANCE is no name of one, and NV109 for an entry that is no link.
    """
    link = places.owner(instance)
    try:
        identity = os.readlink(link)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise reading.refused(str(link), error) from error
    return identity if identity == _PACKAGED or (Path(identity) / "images").is_dir() else None


def is_free(project: Project, places: Places, instance: str) -> bool:
    """Return whether INSTANCE belongs to PROJECT or to no project that is there. Raises Refused as `owner` does."""
    return owner(places, instance) in {None, project.identity}


def claim(project: Project, places: Places, instance: str) -> None:
    """Make INSTANCE that of PROJECT.

    Raises Refused NV921 if another project was quicker, and NV920 if that cannot be written.
    """
    link = places.owner(instance)
    with durable.writing(link, "NV920"), durable.locked(paths.ensure(places.instances)):
        if owner(places, instance) is None:
            link.unlink(missing_ok=True)  # of a project that is gone
            os.symlink(project.identity, link)  # made, and read, in one step: nobody sees a part of a path
    check(project, places, instance)


def release(project: Project, places: Places, instance: str) -> None:
    """Make the name INSTANCE free again if it is that of PROJECT: a trial's, which nobody starts a second time.

    Raises Refused NV920 if that cannot be written.
    """
    link = places.owner(instance)
    with durable.writing(link, "NV920"), durable.locked(paths.ensure(places.instances)):
        if owner(places, instance) == project.identity:
            link.unlink(missing_ok=True)


def stop_command(places: Places, instance: str, asking: str) -> str:
    """Return the command by which the project of the instance ASKING can stop INSTANCE, which may be another's."""
    identity = owner(places, instance)
    if identity in {None, owner(places, asking)}:
        return shlex.join(["nvllm", "stop", instance])
    return shlex.join(["nvllm", "--project", _root(str(identity)), "stop", instance])


def check(project: Project, places: Places, instance: str) -> None:
    """Raise Refused NV921 if INSTANCE belongs to another project than PROJECT."""
    if is_free(project, places, instance):
        return
    root = _root(str(owner(places, instance)))
    cure = shlex.join(["nvllm", "--project", root, "status"])
    raise refuse("NV921", instance, f"an instance of {project.root}", f"one of {root}", cure)


def _root(identity: str) -> str:
    return str(paths.packaged().root) if identity == _PACKAGED else identity
