"""The hub, through huggingface_hub: resolving a revision, and downloading the locked files of a model.

Only `nvllm lock` and `nvllm model fetch` use it; serving reads the local cache (`models/modeltree.py`). Without TOKEN
the client uses the operator's own (``HF_TOKEN``, or the one that `hf auth login` stored); no message shows a token.
Without ENDPOINT the client's default is used.

The client neither hashes its downloads nor its cache. So `resolve` checks each file that it hashes itself, and the
files of `download` must be checked by `models.verify`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import httpx2
from huggingface_hub import HfApi, errors, get_session
from huggingface_hub.hf_api import RepoSibling

from nvllm import __version__
from nvllm.core import canonical, reading
from nvllm.core.lock import LockedModel, ModelFile
from nvllm.core.progress import Progress, Silent
from nvllm.core.refusal import Refusal, Refused, collected, refuse, refuse_any
from nvllm.models import modeltree
from nvllm.sources import fetch

_REVISION = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PARALLEL = 8
"""Files at once: as many as the hub's own client downloads by default."""
_AGAIN = "run the command again"


def resolve(
    repo: str,
    revision: str,
    *,
    cache_dir: Path,
    endpoint: str | None = None,
    token: str | None = None,
    progress: Progress | None = None,
) -> LockedModel:
    """Return what a lock says of the present files of REPO at REVISION (a branch, a tag or 40 hex).

    The hub gives the sha256 of large files only. The small files are downloaded at that revision to CACHE_DIR, a cache
    of the client, compared with the hub's git hashes, and hashed. CACHE_DIR must not be the operator's cache: the
    snapshot there lacks the large files, and would be refused as a damaged model instead of a missing one.

    Raises Refused: NV209 if the hub cannot be reached, NV211 if it refuses.
    """
    api = _client(endpoint, token)
    with _client_errors(repo, revision):
        info = api.model_info(repo, revision=revision, files_metadata=True)
    resolved = info.sha if isinstance(info.sha, str) else ""
    if not _REVISION.fullmatch(resolved) or (_REVISION.fullmatch(revision) and resolved != revision):
        answer = f"revision {resolved or 'of no name'}"
        raise refuse("NV211", f"hub: {repo}", f"the commit of {revision}", answer, _AGAIN)
    refuse_any(refusal for sibling in info.siblings or () for refusal in _unusable(repo, sibling))
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    large = [ModelFile(path, sibling.lfs.size, sibling.lfs.sha256) for path, sibling in siblings.items() if sibling.lfs]
    small = {path: sibling.size or 0 for path, sibling in siblings.items() if not sibling.lfs}
    places = _fetch(api, repo, resolved, small, cache_dir, progress or Silent())
    hashed = [_hashed(repo, siblings[path], place) for path, place in places.items()]
    refuse_any(state for state in hashed if isinstance(state, Refusal))
    files = [*large, *(state for state in hashed if isinstance(state, ModelFile))]
    ordered = tuple(sorted(files, key=lambda file: file.path.encode()))
    return LockedModel("huggingface", modeltree.tree_hash(ordered), ordered, repo=repo, revision=resolved)


def download(
    locked: LockedModel,
    cache_dir: Path,
    *,
    endpoint: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Download the files of LOCKED, at its revision, to CACHE_DIR, a cache of the client.

    Files in the cache are neither downloaded nor checked again: the caller verifies them. Raises Refused: NV209 if the
    hub cannot be reached, NV211 for each file that it refuses or sends incomplete.
    """
    assert locked.repo is not None
    assert locked.revision is not None
    api = _client(endpoint, None)
    # One request first: a missing repository is then one refusal, and an unreachable hub is reported at once and not
    # after the retries of each file.
    with _client_errors(locked.repo, locked.revision):
        api.model_info(locked.repo, revision=locked.revision)
    sizes = {file.path: file.size for file in locked.files}
    for path in _fetch(api, locked.repo, locked.revision, sizes, cache_dir, progress or Silent()).values():
        _let_read(path)


def _let_read(path: Path) -> None:
    """Make the file at PATH readable for the container's user, which may be another one, if we own it.

    A strict umask makes files of the cache private. Their directories stay private, so other users of the host still
    cannot read them.
    """
    info = path.stat()
    if info.st_uid == os.geteuid() and not info.st_mode & stat.S_IROTH:
        path.chmod(stat.S_IMODE(info.st_mode) | 0o044)


def _client(endpoint: str | None, token: str | None) -> HfApi:
    # Errors become refusals; the client must not log them too.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    session = get_session()
    # A content coding could make gigabytes of a kilobyte; `fetch.bound` refuses one all the same.
    session.headers["Accept-Encoding"] = "identity"
    hooks = session.event_hooks
    if _bound_pages not in hooks["response"]:
        session.event_hooks = {**hooks, "response": [*hooks["response"], _bound_pages]}
    return HfApi(endpoint=endpoint, token=token, library_name="nvllm", library_version=__version__)


def _bound_pages(response: httpx2.Response) -> None:
    if "/api/models/" in response.url.path:
        fetch.bound(response)


def _unusable(repo: str, sibling: RepoSibling) -> Iterator[Refusal]:
    """Yield NV211 for what is wrong with SIBLING, a file as the hub describes it; the client checks nothing."""
    path, size = sibling.rfilename, sibling.lfs.size if sibling.lfs else sibling.size or 0
    if not isinstance(path, str) or not _inside(path):
        expected = "files with paths inside the repository"
        yield Refusal("NV211", f"hub: {repo}", expected, ascii(path)[:300], "choose another repository")
    elif not isinstance(size, int) or not 0 <= size <= canonical.EXACT:
        yield Refusal("NV211", f"hub: {repo}/{path}", "a size in bytes", ascii(size)[:300], _AGAIN)
    elif sibling.lfs and not _SHA256.fullmatch(str(sibling.lfs.sha256)):
        yield Refusal("NV211", f"hub: {repo}/{path}", "a sha256", ascii(sibling.lfs.sha256)[:300], _AGAIN)
    elif not sibling.lfs and not _REVISION.fullmatch(str(sibling.blob_id)):
        yield Refusal("NV211", f"hub: {repo}/{path}", "a git hash", ascii(sibling.blob_id)[:300], _AGAIN)


def _inside(path: str) -> bool:
    """Return whether PATH is one of a file below a directory, as a lock may have it."""
    parts = PurePosixPath(path)
    return path.isprintable() and bool(parts.name) and ".." not in parts.parts and f"/{path}" == str("/" / parts)


def _hashed(repo: str, sibling: RepoSibling, path: Path) -> ModelFile | Refusal:
    """Return the small file at PATH with its sha256, or NV211 if its git hash is not the hub's."""
    content = reading.content(path, reading.LOG)
    git = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    if git != sibling.blob_id:
        where = f"hub: {repo}/{sibling.rfilename}"
        cure = shlex.join(["rm", os.path.realpath(path)])
        return Refusal("NV211", where, f"git hash {sibling.blob_id}", f"{git} ({len(content)} bytes)", cure)
    return ModelFile(sibling.rfilename, len(content), hashlib.sha256(content).hexdigest())


def _fetch(
    api: HfApi, repo: str, revision: str, sizes: Mapping[str, int], cache_dir: Path, progress: Progress
) -> dict[str, Path]:
    """Download the files of SIZES and return the path of each. Raises Refused with the errors of all files.

    The client's `snapshot_download` is not used: it takes patterns instead of names, lists the whole repository, and
    draws its own progress bars.
    """
    places: dict[str, Path] = {}
    refusals: list[Refusal] = []
    with (
        progress.task(f"downloading {repo}", sum(sizes.values()), "B") as task,
        ThreadPoolExecutor(max_workers=_PARALLEL) as pool,
    ):
        count = fetch.Serial(task).advance

        def download_file(path: str) -> Path:
            bar = _bar(count)
            with _client_errors(f"{repo}/{path}", revision):
                file = api.hf_hub_download(repo, path, revision=revision, cache_dir=cache_dir, tqdm_class=bar)
            count(max(0, sizes[path] - bar.done))  # the part that was in the cache
            return Path(file)

        under_way = {path: pool.submit(download_file, path) for path in sizes}
        try:
            for path, future in under_way.items():
                with collected(refusals):
                    places[path] = future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    refuse_any(refusals)
    return places


class _Bar:
    """A replacement for the client's progress bar: it draws nothing and counts the bytes of one file.

    The client creates it from a class. It reports bytes received and bytes written; the latter are counted.
    """

    count: Callable[[int], None]
    done: int
    total: int | None = None

    def __init__(self, **_drawing: object) -> None:
        pass

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_exception: object) -> None:
        pass

    def update(self, amount: float | None = 1) -> None:
        written = int(amount or 0)
        type(self).done += written
        type(self).count(written)

    def update_transfer(self, amount: float | None = 1) -> None:
        pass

    def set_postfix_str(self, text: str = "", refresh: bool = True) -> None:  # noqa: FBT001, FBT002 - the client's
        pass

    set_transfer_postfix_str = set_postfix_str


def _bar(count: Callable[[int], None]) -> type[_Bar]:
    """Return a class of bars for one file, which calls COUNT."""
    return type("_FileBar", (_Bar,), {"count": staticmethod(count), "done": 0})


@contextmanager
def _client_errors(what: str, revision: str) -> Iterator[None]:
    """Turn the client's exceptions in a request for WHAT (a repository or a file of it) into a refusal.

    The client's messages are not shown: they contain URLs, which can contain credentials.
    """
    try:
        yield
    # RuntimeError: hf_xet's transfers
    except (OSError, RuntimeError, errors.HFValidationError, httpx2.HTTPError, *fetch.OTHER_FORM) as error:
        cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else None
        raise Refused([_refusal(cause or error, f"hub: {what}", revision)]) from error


def _refusal(error: BaseException, where: str, revision: str) -> Refusal:
    """Return the refusal for ERROR of the client."""
    if isinstance(error, errors.HfHubHTTPError):
        return _http_refusal(error, where, revision)
    answer, check = "an answer of the hub", "check the network and the proxy, then " + _AGAIN
    match error:
        case errors.OfflineModeIsEnabled():
            cure = "unset HF_HUB_OFFLINE TRANSFORMERS_OFFLINE"
            return Refusal("NV209", where, answer, "the environment says to stay offline", cure)
        case errors.HFValidationError():
            cure = "write the repository as owner/name in the image spec"
            return Refusal("NV211", where, "a repository and a revision", "a name that no repository can have", cure)
        case OSError(errno=int(), strerror=reason, filename=place):
            below = place or "the hub's cache directory"
            return Refusal("NV209", where, f"to write {below}", f"{reason}", f"make room, or give access, at {below}")
        case OSError() if type(error) is OSError:
            # The client raises this when a file is shorter than announced.
            return Refusal("NV211", where, "the whole file", "a file that is cut short", _AGAIN)
        case httpx2.DecodingError() | ValueError() | LookupError() | TypeError() | AttributeError() | RecursionError():
            return Refusal("NV211", where, "an answer as a hub gives it", f"another ({type(error).__name__})", _AGAIN)
    return Refusal("NV209", where, answer, f"none ({type(error).__name__})", check)


def _http_refusal(error: errors.HfHubHTTPError, where: str, revision: str) -> Refusal:
    """Return the refusal for an HTTP error of the hub."""
    access, status = "access for you", f"HTTP {error.response.status_code}"
    match error:
        case errors.GatedRepoError():
            cure = "ask for access on the repository's page, and log in: hf auth login"
            return Refusal("NV211", where, access, f"a gated repository ({status})", cure)
        case errors.DisabledRepoError():
            return Refusal("NV211", where, access, "a disabled repository", "name another repository in the image spec")
        case errors.RevisionNotFoundError():
            cure = "correct the revision or the branch in the image spec"
            return Refusal("NV211", where, f"revision {revision}", "no such branch, tag or commit", cure)
        case errors.RemoteEntryNotFoundError():
            return Refusal("NV211", where, f"the file at revision {revision}", "no such file", _AGAIN)
        case errors.RepositoryNotFoundError():
            cure = "correct the repository in the image spec; if it is private, log in: hf auth login"
            return Refusal("NV211", where, access, f"no repository of that name, or a private one ({status})", cure)
        case _ if error.response.status_code in {401, 403}:
            return Refusal("NV211", where, access, f"a refusal ({status})", "hf auth login")
    return Refusal("NV209", where, "an answer of the hub", status, f"wait a little, then {_AGAIN}")
