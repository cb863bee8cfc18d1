"""Downloads against a real server on loopback: resumed, verified, cut off, retried, interrupted."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from nvllm.core.lock import LockedFile
from nvllm.core.progress import Silent, Task, Unit
from nvllm.core.refusal import Refusal, Refused
from nvllm.sources import fetch as fetching
from nvllm.sources.fetch import Answer, fetch, missing
from nvllm.sources.store import Store
from support.loopback import Page, Site, serving


class Direct:
    """A source that knows its addresses: every file lies at BASES by its path, or at last in ARCHIVES."""

    def __init__(self, *bases: str, archives: Sequence[str] = ()) -> None:
        self.bases = bases
        self.archives = archives
        self.asked: list[str] = []
        self._client = httpx2.Client(timeout=5.0)

    def locate(self, file: LockedFile) -> Sequence[str]:
        self.asked.append(file.path)
        return [f"{base}/{file.path}" for base in self.bases]

    def archived(self, file: LockedFile) -> Sequence[str]:
        return [f"{base}/{file.path}" for base in self.archives]

    def client(self) -> httpx2.Client:
        return self._client

    def not_offered(self, file: LockedFile, answers: Sequence[Answer]) -> Refusal:
        return fetching.not_offered(file, answers)


class Count(Silent):
    """A progress that adds up what it is told."""

    def __init__(self) -> None:
        self.total: int | None = None
        self.done = 0

    def note(self, text: str) -> None:
        raise AssertionError(text)

    @contextmanager
    def task(self, label: str, total: int | None, unit: Unit) -> Iterator[Task]:
        assert (label, unit) == ("fetch", "B")
        self.total = total
        yield self

    def advance(self, amount: int) -> None:
        self.done += amount


def locked(name: str, data: bytes, index: str = "pypi") -> LockedFile:
    return LockedFile(name, hashlib.sha256(data).hexdigest(), len(data), index)


def some(size: int, seed: int = 1) -> bytes:
    return hashlib.shake_256(bytes([seed])).digest(size)


def test_all_that_is_missing_comes_and_is_counted(tmp_path: Path, site: Site) -> None:
    store, count = Store(tmp_path), Count()
    data = {f"f{n}": some(200_000 + n, n) for n in range(6)}
    site.pages = {f"/{name}": Page(body) for name, body in data.items()}
    files = [locked(name, body) for name, body in data.items()]
    fetch(files, store, Direct(site.url), count, offline=False)
    assert [store.path(file.sha256).read_bytes() for file in files] == list(data.values())
    assert count.total == count.done == sum(map(len, data.values()))
    assert os.listdir(tmp_path / "partial") == []


def test_what_is_here_is_not_asked_for(tmp_path: Path, site: Site) -> None:
    store, source = Store(tmp_path), Direct(site.url)
    site.pages["/a"] = Page(b"a")
    fetch([locked("a", b"a")], store, source, Silent(), offline=False)
    fetch([locked("a", b"a")], store, source, Silent(), offline=True)
    assert source.asked == ["a"]


def test_the_same_bytes_under_two_names_come_once(tmp_path: Path, site: Site) -> None:
    site.pages = {"/a": Page(b"same"), "/b": Page(b"same")}
    store = Store(tmp_path)
    assert len(missing([locked("a", b"same"), locked("b", b"same")], store)) == 1
    fetch([locked("a", b"same"), locked("b", b"same")], store, Direct(site.url), Silent(), offline=False)
    assert len(site.served) == 1


def test_a_file_cut_short_in_the_store_is_fetched_again(tmp_path: Path, site: Site) -> None:
    store, file = Store(tmp_path), locked("a", b"whole")
    site.pages["/a"] = Page(b"whole")
    fetch([file], store, Direct(site.url), Silent(), offline=False)
    store.path(file.sha256).chmod(0o644)
    store.path(file.sha256).write_bytes(b"wh")
    fetch([file], store, Direct(site.url), Silent(), offline=False)
    assert store.path(file.sha256).read_bytes() == b"whole"


def test_a_partial_file_is_resumed_with_a_range(tmp_path: Path, site: Site) -> None:
    data = some(500_000)
    store, file, count = Store(tmp_path), locked("big", data), Count()
    site.pages["/big"] = Page(data)
    store.partial(file.sha256).write_bytes(data[:400_000])
    fetch([file], store, Direct(site.url), count, offline=False)
    assert site.served == [("/big", 400_000, 100_000)]
    assert count.done == len(data)


def test_a_whole_partial_file_needs_no_server(tmp_path: Path, site: Site) -> None:
    store, file = Store(tmp_path), locked("big", b"all of it")
    store.partial(file.sha256).write_bytes(b"all of it")
    fetch([file], store, Direct(site.url), Silent(), offline=False)
    assert store.has(file.sha256)
    assert site.served == []


def test_a_server_without_ranges_starts_over(tmp_path: Path, site: Site) -> None:
    data = some(300_000)
    store, file, count = Store(tmp_path), locked("big", data), Count()
    site.pages["/big"] = Page(data, ranges=False)
    store.partial(file.sha256).write_bytes(data[:1000])
    fetch([file], store, Direct(site.url), count, offline=False)
    assert store.path(file.sha256).read_bytes() == data
    assert site.served == [("/big", 0, 300_000)]
    assert count.done == len(data)


@pytest.mark.parametrize("left", [b"rubbish", b"x" * 900_000])
def test_rubbish_left_by_an_earlier_run_is_not_blamed_on_the_index(tmp_path: Path, site: Site, left: bytes) -> None:
    data = some(300_000)
    store, file, count = Store(tmp_path), locked("big", data), Count()
    site.pages["/big"] = Page(data)
    store.partial(file.sha256).write_bytes(left)
    fetch([file], store, Direct(site.url), count, offline=False)
    assert store.path(file.sha256).read_bytes() == data
    assert count.done == len(data)


def test_connections_that_end_early_are_continued_as_long_as_the_file_grows(tmp_path: Path, site: Site) -> None:
    data = some(700_000)
    store, file, count = Store(tmp_path), locked("big", data), Count()
    site.pages["/big"] = Page(data, cut_after=100_000)
    fetch([file], store, Direct(site.url), count, offline=False)
    assert store.path(file.sha256).read_bytes() == data
    assert site.bytes_of("/big") == len(data)
    assert count.done == len(data)


def test_a_server_that_cuts_each_connection_after_wrong_bytes_is_not_asked_for_ever(tmp_path: Path, site: Site) -> None:
    store, file = Store(tmp_path), locked("big", some(300_000))
    site.pages["/big"] = Page(bytes(300_000), cut_after=100_000)
    with pytest.raises(Refused) as caught:
        fetch([file], store, Direct(site.url), Silent(), offline=False)
    assert [one.code for one in caught.value.refusals] == ["NV206"]
    assert "after a resumed download" in caught.value.refusals[0].found
    assert len(site.served) == 2 * 3


def test_a_busy_server_is_asked_again(tmp_path: Path, site: Site) -> None:
    site.pages["/a"] = Page(b"a", failures=2)
    store = Store(tmp_path)
    fetch([locked("a", b"a")], store, Direct(site.url), Silent(), offline=False)
    assert store.has(locked("a", b"a").sha256)


def test_a_slow_start_is_waited_for(tmp_path: Path, site: Site) -> None:
    site.pages["/a"] = Page(b"a", pace=0.3)
    store = Store(tmp_path)
    fetch([locked("a", b"a")], store, Direct(site.url), Silent(), offline=False)
    assert store.has(locked("a", b"a").sha256)


def test_the_next_address_is_asked_where_one_has_not_the_file(tmp_path: Path, site: Site) -> None:
    site.pages["/second/a"] = Page(b"a")
    store = Store(tmp_path)
    fetch([locked("a", b"a")], store, Direct(f"{site.url}/first", f"{site.url}/second"), Silent(), offline=False)
    assert store.has(locked("a", b"a").sha256)


def test_a_silent_address_hides_no_other(tmp_path: Path, site: Site) -> None:
    with serving() as gone:
        away = gone.url
    site.pages["/a"] = Page(b"a")
    fetch([locked("a", b"a")], Store(tmp_path), Direct(away, site.url), Silent(), offline=False)
    assert site.bytes_of("/a") == 1


@pytest.mark.parametrize("page", [Page(b"", 404), Page(b"a", failures=100)], ids=["gone", "busy"])
def test_an_archive_is_asked_last_and_only_then(tmp_path: Path, site: Site, page: Page) -> None:
    source = Direct(f"{site.url}/mirror", archives=[f"{site.url}/archive"])
    site.pages |= {"/mirror/here": Page(b"here"), "/mirror/gone": page, "/archive/gone": Page(b"a")}
    site.pages["/archive/here"] = Page(b"here")
    fetch([locked("here", b"here"), locked("gone", b"a")], Store(tmp_path), source, Silent(), offline=False)
    assert (site.bytes_of("/archive/here"), site.bytes_of("/archive/gone")) == (0, 1)
    assert page.failures in (0, 97)


def test_what_is_broken_off_at_one_address_goes_on_at_the_next(tmp_path: Path, site: Site) -> None:
    data = some(100_000)
    site.pages |= {"/one/a": Page(data, cut_after=60_000), "/two/a": Page(data)}
    source = Direct(f"{site.url}/one", f"{site.url}/two")
    fetch([locked("a", data)], Store(tmp_path), source, Silent(), offline=False)
    assert ("/two/a", 60_000, 40_000) in site.served


def test_local_files_are_copied_and_resumed(tmp_path: Path) -> None:
    directory = tmp_path / "with space + plus"
    directory.mkdir()
    data = some(400_000)
    (directory / "a.whl").write_bytes(data)
    store, file = Store(tmp_path / "store"), locked("a.whl", data)
    store.partial(file.sha256).write_bytes(data[:1000])
    fetch([file], store, Direct(directory.as_uri()), Silent(), offline=False)
    assert store.path(file.sha256).read_bytes() == data
    assert (directory / "a.whl").exists()


def test_what_can_come_comes_although_another_file_is_refused(tmp_path: Path, site: Site) -> None:
    site.pages = {"/good": Page(b"good"), "/bad": Page(b"evil")}
    store, count = Store(tmp_path), Count()
    files = [locked("gone", b"gone"), locked("bad", b"fine"), locked("good", b"good")]
    with pytest.raises(Refused) as refused:
        fetch(files, store, Direct(site.url), count, offline=False)
    assert [(r.code, r.where) for r in refused.value.refusals] == [
        ("NV205", "index pypi: bad"),
        ("NV206", "index pypi: gone"),
    ]
    assert store.list() == [files[2].sha256]
    assert count.done == 4


def test_a_disk_that_fills_up_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk cannot be provoked without a file system of one's own, so the last step says it is full."""
    (tmp_path / "a").write_bytes(b"a")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Store, "adopt", full)
    with pytest.raises(Refused) as refused:
        fetch([locked("a", b"a")], Store(tmp_path / "s"), Direct(tmp_path.as_uri()), Silent(), offline=False)
    assert [r.code for r in refused.value.refusals] == ["NV506"]


def test_a_bug_in_one_download_ends_the_others(tmp_path: Path, site: Site) -> None:
    class Broken(Direct):
        def locate(self, file: LockedFile) -> Sequence[str]:
            if file.path == "bug":
                raise ZeroDivisionError
            return super().locate(file)

    data = some(65536 * 40)
    site.pages["/slow"] = Page(data, pace=0.1)
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        fetch([locked("bug", b"bug"), locked("slow", data)], Store(tmp_path), Broken(site.url), Silent(), offline=False)
    assert time.monotonic() - began < 2


def test_another_process_that_holds_the_lock_is_waited_for(tmp_path: Path, site: Site) -> None:
    store, file = Store(tmp_path), locked("a", b"a")
    site.pages["/a"] = Page(b"a")
    worker = threading.Thread(target=lambda: fetch([file], Store(tmp_path), Direct(site.url), Silent(), offline=False))
    with store.locked(file.sha256):
        worker.start()
        time.sleep(0.15)
        assert site.served == []
        store.partial(file.sha256).write_bytes(b"a")
        store.adopt(store.partial(file.sha256), file.sha256)
    worker.join(5)
    assert not worker.is_alive()
    assert site.served == []


CHILD = """
import sys
from pathlib import Path
import httpx2
from nvllm.sources.fetch import fetch
from nvllm.core.lock import LockedFile
from nvllm.core.progress import Silent
from nvllm.sources.store import Store

class Source:
    def locate(self, file): return [sys.argv[2]]
    def archived(self, file): return []
    def client(self): return httpx2.Client()

fetch([LockedFile("big", sys.argv[3], int(sys.argv[4]), "pypi")], Store(Path(sys.argv[1])), Source(), Silent(),
      offline=False)
"""


@pytest.mark.parametrize("deadly", [signal.SIGKILL, signal.SIGINT])
def test_killed_in_the_middle_only_the_rest_is_fetched(tmp_path: Path, site: Site, deadly: signal.Signals) -> None:
    data = some(65536 * 60)
    store, file = Store(tmp_path), locked("big", data)
    site.pages["/big"] = Page(data, pace=0.03)
    package = os.fspath(Path(fetching.__file__).parents[2])
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, os.fspath(tmp_path), f"{site.url}/big", file.sha256, str(len(data))],
        env={**os.environ, "PYTHONPATH": package},
        stderr=subprocess.DEVNULL,
    )
    partial = store.partial(file.sha256)
    deadline = time.monotonic() + 10
    while not (partial.exists() and partial.stat().st_size > 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(deadly)
    assert child.wait(10) != 0
    had = partial.stat().st_size
    assert 0 < had < len(data)
    assert store.list() == []
    site.pages["/big"] = Page(data)
    site.record.clear()
    fetch([file], store, Direct(site.url), Silent(), offline=False)
    assert store.path(file.sha256).read_bytes() == data
    assert ("/big", had, len(data) - had) in site.served
