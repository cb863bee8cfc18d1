"""Chat templates of profiles: files of the project that the lock pins by sha256, as it pins patches."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from nvllm.core import reading
from nvllm.core.lock import Lock, ModelFile, command
from nvllm.core.paths import Project
from nvllm.core.refusal import Refusal, Refused, refuse, refusing
from nvllm.core.spec import ImageSpec, Profile


@dataclass(frozen=True, slots=True)
class LocalTemplate:
    """A chat template: its LOCKED form, and the FILE of the project."""

    locked: ModelFile
    file: Path


def of(project: Project, spec: ImageSpec) -> tuple[ModelFile, ...]:
    """Return the chat templates that profiles of SPEC name, as they are now, by path. Raises Refused NV405."""
    return tuple(_read(project, spec.name, file) for file in names(spec))


def names(spec: ImageSpec) -> list[str]:
    """Return the paths of the chat templates that profiles of SPEC name, each once, in order."""
    return sorted({profile.chat_template for profile in spec.profiles.values() if profile.chat_template is not None})


def of_profile(project: Project, lock: Lock | None, profile: Profile) -> tuple[LocalTemplate | None, list[Refusal]]:
    """Return the chat template of PROFILE, None if it has none, and why it cannot be served: nothing without a LOCK."""
    if profile.chat_template is None:
        return None, []
    absent = ModelFile(profile.chat_template, 0, "")  # no file has this sha256, so a stale lock is refused
    pinned = next((file for file in lock.templates if file.path == absent.path), absent) if lock is not None else absent
    problems = _changed(project, lock, pinned) if lock is not None else []
    return LocalTemplate(pinned, project.root / pinned.path), problems


def _changed(project: Project, lock: Lock, pinned: ModelFile) -> list[Refusal]:
    """Return NV405 if the chat template PINNED by LOCK is not there, or another one is."""
    try:
        now = _read(project, lock.image, pinned.path)
    except Refused as refused:
        return list(refused.refusals)
    if now == pinned:
        return []
    expected = f"sha256 {pinned.sha256[:12]}" if pinned.sha256 else "a file that the lock pins"
    cure = command(lock.image, lock.platform)
    return [Refusal("NV405", pinned.path, expected, f"sha256 {now.sha256[:12]}", cure)]


def _read(project: Project, image: str, file: str) -> ModelFile:
    cure = f"write the template, or correct `chat-template:` in images/{image}.yaml"
    with refusing("NV405", file, "a chat template", cure):
        data = reading.content(project.root / file, reading.CONFIGURATION)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise refuse("NV405", file, "text in UTF-8", "other bytes", "save the file as UTF-8") from error
    return ModelFile(file, len(data), hashlib.sha256(data).hexdigest())
