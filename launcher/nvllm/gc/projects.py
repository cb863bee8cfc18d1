"""The projects that have used a state directory: what any of them refers to must be kept.

::

    <state>/projects/<id>    a link to the root of a project; an older nvllm hashed a path that may have links in it

Two checkouts may share one cache. Each knows only its own locks and manifests, so `nvllm gc` in one of them would
remove what the other one needs. A link is created in one step, so it is never there in part.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from nvllm.core import reading
from nvllm.core.durable import writing
from nvllm.core.paths import Project, ensure
from nvllm.core.refusal import Refusal, refuse, refuse_any


@dataclass(frozen=True, slots=True)
class Projects:
    """The projects that DIRECTORY, ``projects`` in the state directory, records."""

    directory: Path

    def remember(self, project: Project) -> None:
        """Record PROJECT. Raises Refused NV911 if that cannot be written."""
        place = self.directory / project.id
        with writing(place):
            ensure(self.directory)
            with contextlib.suppress(FileExistsError):
                os.symlink(project.root.resolve(), place)

    def roots(self) -> list[Path]:
        """Return the root of every recorded project, whether it still exists or not.

        Raises Refused NV109 for an entry that is no link.
        """
        return sorted(_root(place) for place in reading.listed(self.directory, "*"))

    def forget(self, root: Path) -> None:
        """Remove the record of the project at ROOT, if there is one."""
        with writing(self.directory):
            for place in reading.listed(self.directory, "*"):
                if _root(place) == root:
                    place.unlink(missing_ok=True)

    def gone(self) -> dict[str, Path]:
        """Return the root of every recorded project that is not there any more, by its id. Raises as `roots` does."""
        roots = {place.name: _root(place) for place in reading.listed(self.directory, "*")}
        return {name: root for name, root in roots.items() if not (root / "images").is_dir()}

    def present(self, forgotten: Collection[Path] = ()) -> list[Project]:
        """Return the recorded projects, without those at the roots FORGOTTEN.

        Raises Refused with NV914 for every one that is not where it was: it may have been moved, or its disk may not be
        mounted, so what it refers to is not known. Raises NV107 for a FORGOTTEN root that is not recorded.
        """
        roots = self.roots()
        known = ", ".join(map(str, roots)) or "a project that nvllm knows; it knows none"
        refusals = [
            Refusal("NV107", "--forget", known, str(root), "name one of these")
            for root in forgotten
            if root not in roots
        ]
        refusals += [
            Refusal(
                "NV914",
                str(root),
                "the project that was there",
                "no images/ in it",
                f"nvllm gc --forget {shlex.quote(str(root))}",
            )
            for root in roots
            if root not in forgotten and not (root / "images").is_dir()
        ]
        refuse_any(refusals)
        return [Project(root) for root in roots if root not in forgotten]


def _root(place: Path) -> Path:
    try:
        return Path(os.readlink(place))
    except OSError as error:
        found = error.strerror or str(error)
        raise refuse("NV109", str(place), "a link to a project", found, f"rm {shlex.quote(str(place))}") from error
