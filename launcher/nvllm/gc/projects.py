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
from nvllm.core.refusal import Refusal, refuse_any, refusing


@dataclass(frozen=True, slots=True)
class Projects:
    """The projects that DIRECTORY, ``projects`` in the state directory, records."""

    directory: Path

    def remember(self, project: Project) -> None:
        """Record PROJECT. Raises Refused NV911 if that cannot be written."""
        link, root = self.directory / project.id, str(project.root.resolve())
        with writing(link):
            ensure(self.directory)
            with contextlib.suppress(FileExistsError):  # recorded before
                os.symlink(root, link)
            if str(_root(link)) != root:  # the project that nvllm came with, which was installed elsewhere before
                fresh = self.directory.with_name(f".project-{os.getpid()}")
                os.symlink(root, fresh)
                os.replace(fresh, link)  # a rename: at no moment is the project unknown to a gc

    def roots(self) -> dict[str, Path]:
        """Return the root of every recorded project, whether it still exists or not, by its id.

        Raises Refused NV109 for an entry that is no link.
        """
        return {link.name: _root(link) for link in reading.listed(self.directory, "*")}

    def forget(self, root: Path) -> None:
        """Remove the record of the project at ROOT, if there is one."""
        with writing(self.directory):
            for name in self.ids([root]):
                (self.directory / name).unlink(missing_ok=True)

    def gone(self) -> dict[str, Path]:
        """Return the root of every recorded project that is not there any more, by its id. Raises as `roots` does."""
        return {name: root for name, root in self.roots().items() if not (root / "images").is_dir()}

    def present(self, forgotten: Collection[Path] = ()) -> list[Project]:
        """Return the recorded projects that are there, without those at the roots FORGOTTEN.

        Raises Refused NV107 for a FORGOTTEN root that is not recorded, and NV109 as `roots` does.
        """
        roots = sorted(self.roots().values())
        known = ", ".join(map(str, roots)) or "a project that nvllm knows; it knows none"
        refuse_any(
            Refusal("NV107", "--forget", known, str(root), "name one of these")
            for root in forgotten
            if root not in roots
        )
        return [Project(root) for root in roots if root not in forgotten and (root / "images").is_dir()]

    def vanished(self, forgotten: Collection[Path] = ()) -> list[Refusal]:
        """Return NV914 for every recorded project that is not where it was, without those at the roots FORGOTTEN.

        It may have been moved, or its disk may not be mounted, so what it refers to is not known.
        """
        return [
            Refusal(
                "NV914",
                str(root),
                "the project that was there",
                "no images/ in it",
                f"nvllm gc --forget {shlex.quote(str(root))}",
            )
            for root in sorted(self.gone().values())
            if root not in forgotten
        ]

    def ids(self, roots: Collection[Path]) -> frozenset[str]:
        """Return the ids under which the projects at ROOTS are recorded."""
        return frozenset(name for name, root in self.roots().items() if root in roots)

    def lost(self, builds: Path) -> list[Refusal]:
        """Return NV922 if BUILDS has build records, and the list of the projects is gone: each build adds to it first.

        Without the list, what other projects need would look like garbage.
        """
        if self.directory.is_dir() and not self.directory.is_symlink():
            return []
        if not self.directory.is_symlink() and not reading.listed(builds, "*.json"):
            return []
        problem = "a link" if self.directory.is_symlink() else "no such directory, but records of builds"
        cure = "restore it; or run `nvllm build IMAGE` in every project that uses this state, then `nvllm gc`"
        return [Refusal("NV922", str(self.directory), "the list of the projects that use this state", problem, cure)]


def _root(link: Path) -> Path:
    # Out of the list, not away: if it replaced the link of a project, that project has to be recorded again.
    away = shlex.join(["mv", str(link), str(link.parent.parent / f"{link.name}.other")])
    cure = f"{away}; then `nvllm build IMAGE` in every project that uses this state, before `nvllm gc`"
    with refusing("NV109", str(link), "a link to a project", cure):
        return Path(os.readlink(link))
