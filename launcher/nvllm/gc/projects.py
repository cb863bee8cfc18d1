"""The projects that a state directory has been used for: what any of them refers to must stay.

::

    <state>/projects/<sha256 16>    a link to the root of a project

Two checkouts may share one cache. Each knows only its own locks and manifests, so `nvllm gc` in one would take
away what the other needs. A link is made whole or not at all, and cannot be damaged by half.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from nvllm.core.durable import writing
from nvllm.core.paths import Project, ensure
from nvllm.core.refusal import Refusal, refuse_any


@dataclass(frozen=True, slots=True)
class Projects:
    """The projects that DIRECTORY, ``projects`` in the state directory, remembers."""

    directory: Path

    def remember(self, project: Project) -> None:
        """Remember PROJECT, once. Raises Refused NV911 if that cannot be written."""
        place = self._place(project.root)
        with writing(place):
            ensure(self.directory)
            with contextlib.suppress(FileExistsError):
                os.symlink(project.root, place)

    def roots(self) -> list[Path]:
        """Return the root of every project that is remembered, whether it is still there or not."""
        if not self.directory.is_dir():
            return []
        return sorted(Path(os.readlink(place)) for place in self.directory.iterdir())

    def forget(self, root: Path) -> None:
        """Remember the project at ROOT no more. It may be forgotten already."""
        with writing(self.directory):
            self._place(root).unlink(missing_ok=True)

    def present(self, forgotten: Collection[Path] = ()) -> list[Project]:
        """Return the projects that are remembered, without those at the roots FORGOTTEN.

        Raises Refused with NV914 for every one that is not where it was: it may have been moved, or lie on a disk
        that is not mounted now, and nobody can say what it refers to. NV107 for a FORGOTTEN that nobody knew.
        """
        roots = self.roots()
        known = ", ".join(map(str, roots)) or "a project that is remembered; there is none"
        refusals = [
            Refusal("NV107", "--forget", known, str(root), "write it as it stands there")
            for root in forgotten
            if root not in roots
        ]
        refusals += [
            Refusal("NV914", str(root), "the project that was there", "no images/ in it", f"nvllm gc --forget {root}")
            for root in roots
            if root not in forgotten and not (root / "images").is_dir()
        ]
        refuse_any(refusals)
        return [Project(root) for root in roots if root not in forgotten]

    def _place(self, root: Path) -> Path:
        return self.directory / hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
