"""What a work tree of `nvllm dev start` is of: a file in its .git directory, which no commit holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nvllm.core import documents, durable, reading
from nvllm.core.fields import Commit, Form, PinnedCommit, Rule, Sha256, Word
from nvllm.core.refusal import refuse
from nvllm.sources.worktree import WorkTree

SCHEMA = "nvllm.dev-tree/1"
NAME = "nvllm.json"


@dataclass(frozen=True, slots=True)
class DevTree:
    """IMAGE and SERIES whose patches are the commits after BASE, a commit of the tree that is vLLM at COMMIT.

    SOURCE is the sha256 of vLLM's source archive.
    """

    schema: Annotated[str, Rule(choices=(SCHEMA,))]
    image: Word
    series: Word
    commit: PinnedCommit
    base: Commit
    source: Sha256


FORM = Form("dev-tree", SCHEMA, "A development tree", DevTree)


def write(work: WorkTree, record: DevTree) -> None:
    """Write RECORD into WORK. Raises Refused NV920."""
    durable.replace(work.git_directory / NAME, documents.encode(FORM, record), 0o644, code="NV920")


def read(directory: Path) -> DevTree:
    """Return what the work tree in DIRECTORY is of. Raises Refused NV610 if `nvllm dev start` did not make it."""
    path = WorkTree(directory).git_directory / NAME
    cure = "name a directory that `nvllm dev start` has made"
    try:
        data = reading.content(path, reading.STATE)
    except (FileNotFoundError, NotADirectoryError):
        raise refuse("NV610", str(directory), "a work tree of nvllm dev start", "none", cure) from None
    except OSError as error:
        raise reading.refused(str(path), error) from error
    return documents.parse(FORM, data, lambda _: (), code="NV610", label=str(path), cure=cure)
