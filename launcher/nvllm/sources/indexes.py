"""Where locked files are offered, and with which trust and credentials: the indexes that pip is configured with.

A lock names indexes by alias, so that it is the same for everybody, behind every mirror. What an alias means
is the user's own configuration of pip (`pip config`, PIP_* variables): nvllm has none of its own.
"""

from __future__ import annotations

import ast
import logging
import os
import re
import shlex
import ssl
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

import httpx2
from unearth import Link, PackageFinder
from unearth.auth import MultiDomainBasicAuth
from unearth.fetchers import Fetcher

from nvllm.core import canonical, proc
from nvllm.core.lock import COMPILED, REPOSITORY, Lock, LockedDebianBase, LockedFile, Offered
from nvllm.core.refusal import Refusal, Refused, refuse
from nvllm.sources import fetch, gitsource, mirrors
from nvllm.sources.client import IndexClient
from nvllm.sources.fetch import Answer
from nvllm.sources.mirrors import Mirrors

# unearth reports an index that lacks a page as a warning; what no index has is a refusal here.
logging.getLogger("unearth").addHandler(logging.NullHandler())

# pip's documentation names this as the default of --index-url.
_DEFAULT_INDEX = "https://pypi.org/simple"

_SHA256 = re.compile(r"[0-9a-f]{64}")
_PIP_TIMEOUT = 60.0
_ANSWER_TIMEOUT = 60.0
_RETRIES = 3
"""For pip itself; and, in seconds and attempts, for the index unless pip's configuration says otherwise."""

# Aliases whose files the default index cannot carry (it takes no local version labels such as +cpu).
_EXTRA_INDEXES = {"pytorch-cpu": "the PyTorch CPU wheel index", "pytorch-cuda": "the PyTorch CUDA wheel index"}


@dataclass(frozen=True, slots=True)
class Configuration:
    """What pip is told about indexes. CERTIFICATES is a file or None, for the system's own trust.

    An index may take TIMEOUT seconds to answer; one that fails is asked RETRIES times more. KEYRING says that the
    program `keyring` has credentials.
    """

    index_urls: tuple[str, ...]
    find_links: tuple[str, ...]
    trusted_hosts: tuple[str, ...]
    certificates: str | None
    proxy: str | None = None
    timeout: float = _ANSWER_TIMEOUT
    retries: int = _RETRIES
    keyring: bool = False

    @property
    def link_urls(self) -> tuple[str, ...]:
        """Return find-links as URLs, without local paths that do not exist: pip ignores them too."""
        urls = (place if "://" in place else Path(place).absolute().as_uri() for place in self.find_links)
        return tuple(
            url for url in urls if urlsplit(url).scheme != "file" or Path(unquote(urlsplit(url).path)).exists()
        )

    @property
    def secure_index_urls(self) -> tuple[str, ...]:
        """Return the indexes without those that pip ignores: plain HTTP to a host that is neither local nor trusted."""
        return tuple(url for url in self.index_urls if self._is_secure(url))

    def _is_secure(self, url: str) -> bool:
        parts = urlsplit(url)
        host = parts.hostname or ""
        trusted = ("localhost", "::1", *self.trusted_hosts)
        return parts.scheme != "http" or host in trusted or f"{host}:{parts.port}" in trusted or host.startswith("127.")


@dataclass(frozen=True, slots=True)
class Sdist:
    """A source archive as an index offers it now."""

    filename: str
    sha256: str
    url: str


def extra_indexes(aliases: Mapping[str, str]) -> dict[str, str]:
    """Return those of ALIASES (distribution to index alias) that the default index lacks, each with its index."""
    return {name: _EXTRA_INDEXES[alias] for name, alias in aliases.items() if alias in _EXTRA_INDEXES}


def index_cure(index: str) -> str:
    """Return the cure for a missing INDEX (a value of `extra_indexes`): the command that tells pip of it."""
    return f"give pip the URL of {index}: pip config set global.extra-index-url URL"


def read_configuration() -> Configuration:
    """Ask pip for its configuration. Raises Refused NV209 if pip cannot say it."""
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    env = proc.environment({}, passed=[name for name in os.environ if name.startswith("PIP_")])
    done = proc.run(argv, env=env, timeout=_PIP_TIMEOUT)
    if done.returncode != 0:
        problem = done.stderr.decode(errors="replace").strip() or f"exit status {done.returncode}"
        cure = shlex.join(argv)
        raise refuse("NV209", "pip config", "pip's configuration", problem, cure)
    return parse_configuration(done.stdout.decode(errors="replace"))


def parse_configuration(text: str) -> Configuration:
    """Return what the lines of `pip config list` in TEXT say (``section.key='value'``), later sections winning.

    Sections count as pip counts them for `pip install`: global, then install, then PIP_* (``:env:``).
    """
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        section, dot, key = name.rpartition(".")
        if equals and dot and section in sections:
            # pip takes --timeout and --default-timeout as one option.
            sections[section][key.removeprefix("default-")] = _literal(value)
    options: Mapping[str, str] = {**sections["global"], **sections["install"], **sections[":env:"]}
    proxy = options.get("proxy", "")
    named = (*options.get("index-url", _DEFAULT_INDEX).split(), *options.get("extra-index-url", "").split())
    indexes = tuple(fetch.usable(url, "pip config: index-url") for url in named)
    return Configuration(
        index_urls=() if options.get("no-index", "").lower() in ("1", "true", "yes", "on") else indexes,
        find_links=tuple(options.get("find-links", "").split()),
        trusted_hosts=tuple(options.get("trusted-host", "").split()),
        certificates=options.get("cert"),
        proxy=proxy if "://" in proxy else f"http://{proxy}" if proxy else None,
        timeout=_number(options, "timeout", _ANSWER_TIMEOUT),
        retries=int(_number(options, "retries", _RETRIES)),
        keyring=options.get("keyring-provider") in ("import", "subprocess"),
    )


def _literal(text: str) -> str:
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _number(options: Mapping[str, str], key: str, otherwise: float) -> float:
    """Return the number that OPTIONS has for KEY, or OTHERWISE. Raises Refused NV108 for one that is no number."""
    try:
        number = float(options.get(key, otherwise))
    except ValueError:
        number = -1
    if not 0 <= number < 10**6:
        where = f"pip config: {key}"
        raise refuse("NV108", where, "a number from 0", ascii(options[key][:100]), f"pip config unset global.{key}")
    return number


class Indexes:
    """Looks files up in the indexes of CONFIGURATION. Safe to use from several threads."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        trust: ssl.SSLContext | bool = True
        if configuration.certificates is not None:
            trust = ssl.create_default_context(cafile=configuration.certificates)
        self._client = IndexClient(
            trusted_hosts=configuration.trusted_hosts,
            verify=trust,
            timeout=configuration.timeout,
            proxy=configuration.proxy,
        )
        # A process that goes on after this object would keep its connections; one that ends need not close them.
        weakref.finalize(self, self._client.close).atexit = False
        # unearth takes an index that answers 503 for one that lacks the page; raised from here it is not lost.
        self._client.event_hooks = {"response": [_raise_for_server_error, _bound_pages]}
        self._client.headers["Accept-Encoding"] = "identity"
        self._client.auth = MultiDomainBasicAuth(index_urls=list(configuration.index_urls))
        # unearth describes its session by a protocol of its own, which httpx2's client fits but for defaults.
        session = cast("Fetcher", self._client)
        self._finder = PackageFinder(session=session, index_urls=["file:///"], ignore_compatibility=True)
        self._finder.sources.clear()  # without any it would ask a default that pip may be told not to use
        for url in configuration.index_urls:
            self._finder.add_index_url(url)
        for url in configuration.link_urls:
            self._finder.add_find_links(url)
        self._lock = threading.Lock()
        self._pages: dict[str, tuple[Link, ...]] = {}

    def client(self) -> httpx2.Client:
        """Return the client that pip's configuration describes: its certificates, hosts and credentials.

        It is closed when this object is gone.
        """
        return self._client

    def links(self, name: str) -> tuple[Link, ...]:
        """Return what the indexes offer for the distribution NAME, asking each index once.

        Raises httpx2.HTTPError if one of them cannot be asked, or its page has another form.
        """
        with self._lock:
            known = self._pages.get(name)
        if known is None:
            try:
                offered = [package.link for package in self._finder.find_all_packages(name, allow_yanked=True)]
                known = tuple(link for link in offered if self._is_usable(link))
            except fetch.OTHER_FORM as error:
                raise httpx2.DecodingError(f"a page of another form: {str(error)[:200]}") from error
            with self._lock:
                self._pages[name] = known
        return known

    def _is_usable(self, link: Link) -> bool:
        """Return whether LINK may be followed: servers name no files of this host. Raises for one of another form."""
        _sha256_of(link)
        _ = link.filename, link.url_without_fragment.encode()
        places = (*self.configuration.index_urls, *self.configuration.link_urls)
        return link.parsed.scheme != "file" or any(urlsplit(place).scheme == "file" for place in places)

    def locate(self, file: LockedFile) -> tuple[str, ...]:
        """Return the URLs that offer FILE.

        Raises Refused NV206 if no index has that name, NV205 if all have other bytes under it, and what `links` raises.
        """
        named = [link for link in self.links(distribution_of(file.filename)) if link.filename == file.filename]
        if not named:
            raise Refused([_not_found(file)])
        agreeing = [link for link in named if _sha256_of(link) in (None, file.sha256)]
        if not agreeing:
            where, expected = f"index {file.index}: {file.filename}", f"sha256 {file.sha256}"
            answer = "the index says sha256 " + ", ".join(sorted({str(_sha256_of(link)) for link in named}))
            cure = "do not use this index: it offers another file under the locked name; configure another one"
            raise refuse("NV205", where, expected, answer, cure)
        return tuple(link.url_without_fragment for link in agreeing)

    def sdist(self, name: str, version: str) -> Sdist:
        """Return the source archive of VERSION of NAME.

        Raises Refused NV209 if no index offers one with its sha256, or one cannot be asked.
        """
        filename = f"{name.replace('-', '_')}-{version}.tar.gz"
        for link, sha256 in self._hashed(name, filename):
            if link.filename == filename:
                return Sdist(filename, sha256, link.url_without_fragment)
        expected, problem = f"the source archive {filename}, with its sha256", "no configured index offers it"
        cure = f"pip index versions {name}"
        raise refuse("NV209", f"index pypi: {name}", expected, problem, cure)

    def sdist_versions(self, name: str) -> tuple[str, ...]:
        """Return the versions of NAME whose source archive the indexes offer with a sha256, in no order.

        Raises Refused NV209 if an index cannot be asked.
        """
        start, end = f"{name.replace('-', '_')}-", ".tar.gz"
        files = {link.filename for link, _ in self._hashed(name, f"{start}*{end}")}
        named = (file for file in files if file.startswith(start) and file.endswith(end))
        return tuple(file.removeprefix(start).removesuffix(end) for file in named)

    def wheels(self, name: str, version: str) -> tuple[Offered, ...]:
        """Return the wheels of VERSION of NAME, for all platforms, that the indexes offer with a sha256.

        Raises Refused NV209 if an index cannot be asked.
        """
        start = f"{name}-{version}-"
        offered = {
            link.filename: Offered(link.filename, sha256, link.url_without_fragment)
            for link, sha256 in self._hashed(name, f"{start}*.whl")
            if link.filename.startswith(start) and link.filename.endswith(".whl")
        }
        return tuple(offered.values())

    def wheel_versions(self, name: str) -> frozenset[str]:
        """Return the versions of NAME of which an index, or a directory of find-links, offers a wheel for any platform.

        Raises Refused NV209 if an index cannot be asked.
        """
        start = f"{name.replace('-', '_')}-"
        try:
            names = [link.filename for link in self.links(name)]
        except httpx2.HTTPError as error:
            raise Refused([_unreachable(f"{start}*.whl", error)]) from error
        return frozenset(file.split("-")[1] for file in names if file.startswith(start) and file.endswith(".whl"))

    def _hashed(self, name: str, label: str) -> list[tuple[Link, str]]:
        """Return what the indexes offer for NAME with its sha256. Raises Refused NV209, which calls it LABEL."""
        try:
            return [(link, sha256) for link in self.links(name) if (sha256 := _sha256_of(link)) is not None]
        except httpx2.HTTPError as error:
            raise Refused([_unreachable(label, error)]) from error

    def size(self, url: str) -> int:
        """Return the size of the file at URL in bytes. Raises Refused NV209 if the server does not say it."""
        parts = urlsplit(url)
        try:
            if parts.scheme == "file":
                return os.stat(unquote(parts.path)).st_size
            answer = self._client.head(url, headers={"Accept-Encoding": "identity"}, follow_redirects=True)
            answer.raise_for_status()
            size = int(answer.headers["Content-Length"])
        except (httpx2.HTTPError, OSError, KeyError, ValueError) as error:
            raise Refused([_unreachable(parts.path.rsplit("/", 1)[-1], error)]) from error
        if not 0 <= size <= canonical.EXACT:
            raise Refused([_unreachable(parts.path.rsplit("/", 1)[-1], ValueError(f"a size of {size} bytes"))])
        return size


def _bound_pages(response: httpx2.Response) -> None:
    if "simple" in response.request.headers.get("Accept", ""):  # what is asked for a page, and for no file
        fetch.bound(response)


def _raise_for_server_error(response: httpx2.Response) -> None:
    if response.is_server_error:
        response.raise_for_status()


def _unreachable(filename: str, error: Exception) -> Refusal:
    cure = "pip config list"
    expected, problem = "an answer that says what is offered, and its size", Answer.of("", error).problem
    return Refusal("NV209", f"index: {filename}", expected, problem, cure)


class Sources:
    """Where every locked file comes from, by alias: pip's indexes, and for ``debian`` the mirrors of SUITE.

    pip and apt are asked for their configuration only when a file of theirs is needed. SUITE is None for an image
    without Debian packages; SNAPSHOT is a time at which Debian's archive had the packages of a lock.
    """

    def __init__(self, suite: str | None, env: Mapping[str, str], snapshot: str | None = None) -> None:
        self._suite = suite
        self._snapshot = snapshot
        self._env = env
        self._lock = threading.Lock()
        self._searching = threading.Lock()  # of its own: files of an index need not wait for a mirror
        self._indexes: Indexes | None = None
        self._mirrors: Mirrors | None = None

    @classmethod
    def of(cls, lock: Lock, env: Mapping[str, str]) -> Sources:
        """Return where the files of LOCK come from."""
        if isinstance(lock.base, LockedDebianBase):
            return cls(lock.base.suite, env, lock.base.snapshot)
        return cls(None, env)

    def indexes(self) -> Indexes:
        """Return the indexes of pip's configuration. Raises Refused NV209 if pip cannot say it."""
        with self._lock:
            if self._indexes is None:
                self._indexes = Indexes(read_configuration())
            return self._indexes

    def mirrors(self) -> Mirrors:
        """Return the Debian mirrors. Raises Refused NV206 if apt cannot read its sources."""
        client = self.client()
        with self._searching:
            if self._mirrors is None:
                suite = self._suite
                self._mirrors = Mirrors("", ()) if suite is None else mirrors.find(suite, self._env, client)
            return self._mirrors

    def locate(self, file: LockedFile) -> tuple[str, ...]:
        """Return the URLs that may offer FILE, best first; see `fetch.Source`."""
        if file.index == "debian":
            return self.mirrors().locate(file)
        if file.index == REPOSITORY:
            return (gitsource.url(file.path, self._env),)
        if file.index == COMPILED:
            raise Refused([_nobody_offers(file)])
        return self.indexes().locate(file)

    def archived(self, file: LockedFile) -> tuple[str, ...]:
        """Return the URLs that may keep FILE when nobody offers it any more; see `fetch.Source`."""
        if file.index == "debian" and self._snapshot is not None:
            return mirrors.archived(file, self.mirrors(), self._snapshot, self._env)
        return ()

    def client(self) -> httpx2.Client:
        """Return the client for all of them."""
        return self.indexes().client()

    def not_offered(self, file: LockedFile, answers: Sequence[Answer]) -> Refusal:
        """Return the refusal for FILE, which nobody delivered; ANSWERS are the replies."""
        if file.index == "debian":
            return mirrors.not_offered(file, self.mirrors(), answers, self._snapshot, self._env)
        return fetch.not_offered(file, answers)


def distribution_of(filename: str) -> str:
    """Return the distribution that FILENAME, of a wheel or an sdist, belongs to."""
    if filename.endswith(".whl"):
        return filename.split("-", 1)[0]
    return filename.removesuffix(".tar.gz").rsplit("-", 1)[0]


def _sha256_of(link: Link) -> str | None:
    offered = link.hash_option or {}
    values: Sequence[str] = offered.get("sha256", ())
    return values[0].lower() if values and _SHA256.fullmatch(values[0].lower()) else None


def _nobody_offers(file: LockedFile) -> Refusal:
    where, expected = f"index {COMPILED}: {file.filename}", f"a file with sha256 {file.sha256}"
    problem = "it was compiled, so no index offers it, and it is not in the store of this host"
    cure = (
        f"bring the file from the host that compiled it, and lock it here: nvllm lock IMAGE --compiled {file.filename}"
    )
    return Refusal("NV206", where, expected, problem, cure)


def _not_found(file: LockedFile) -> Refusal:
    problem = "no index that pip is configured with offers it"
    cure = "see `pip config list`; add an index that has it: pip config set global.extra-index-url URL"
    if file.index in _EXTRA_INDEXES:
        problem = "the default index does not carry this wheel, and no other that pip is configured with offers it"
        cure = index_cure(_EXTRA_INDEXES[file.index])
    return Refusal("NV206", f"index {file.index}: {file.filename}", f"a file with sha256 {file.sha256}", problem, cure)
