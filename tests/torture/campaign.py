"""Asks a served engine requests in batches, and checks after each batch that nobody else has noticed.

After each batch the engine is alive, no answer was a 5xx and no connection was reset, the greedy answer is what it was,
and a neighbour, who asks the same greedy question all the time, was answered in time. If the engine ended, it is
started again, and the batch is shrunk to one minimal request that ends it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx2

from torture import cases
from torture.cases import COMPLETIONS, Case
from torture.drawing import MODEL, Drawer

PATIENCE = 15.0
"""Seconds after which a client hangs up. To generate long, or to wait for others, is no error of the engine."""

NEIGHBOUR = 45.0
"""Seconds within which the neighbour must be answered, whatever the others ask: three requests that hang up."""

BATCH = 25
AT_ONCE = 4
GREEDY = {"model": MODEL, "prompt": "hello world the quick", "max_tokens": 16, "temperature": 0, "ignore_eos": True}

_OK = 200
_UNSUPPORTED = 501
"""The engine says that it has no such feature. All other statuses from 500 on are errors of its own."""
_INTERNAL = ('"code":500', '"code": 500', "InternalServerError", "EngineDeadError")
_STARTS = 12
"""Starts of an engine that the search for a minimal request may take."""


class Target(Protocol):
    """An engine that is served, and may be started again."""

    @property
    def port(self) -> int: ...

    def alive(self) -> bool: ...
    def restart(self) -> None: ...
    def trace(self) -> str:
        """Return what the log says of the error that ended the engine."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to CASE: the HTTP STATUS, 0 if the client hung up and -1 for a connection that was reset; its TEXT."""

    case: Case
    status: int
    text: str

    @property
    def wrong(self) -> str:
        """Why this is an error of the engine; empty if it is none."""
        expected = self.case.expected
        if self.status < 0:
            return f"connection lost: {self.text}"
        if self.status >= 500 and self.status != _UNSUPPORTED:
            return f"HTTP {self.status}"
        if self.status == _OK and any(word in self.text for word in _INTERNAL):
            return "an internal error in a stream"
        if expected == "answered" and self.status not in {0, _OK}:
            return f"HTTP {self.status} for an ordinary request"
        if expected == "refused" and self.status == _OK:
            return "answered, though nobody can mean it"
        return ""


@dataclass
class Result:
    """What a campaign on one engine saw. FINDINGS: what is wrong, by a minimal request, each kind once."""

    engine: str
    statuses: Counter[int] = field(default_factory=Counter)
    findings: dict[str, str] = field(default_factory=dict)
    ended: int = 0
    connections: int = 0
    """Connections of floods and slow clients."""
    slowest: float = 0.0
    """Seconds of the neighbour's slowest answer."""
    seconds: float = 0.0

    @property
    def requests(self) -> int:
        return sum(self.statuses.values())

    def of(self, least: int) -> int:
        """Return the number of answers with a status from LEAST on, of the same hundred."""
        return sum(count for status, count in self.statuses.items() if least <= status < least + 100)


def send(port: int, case: Case, patience: float = PATIENCE) -> Outcome:
    """Send CASE to the engine on PORT, read the answer, and hang up after PATIENCE seconds."""
    body = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
    headers = {"Content-Type": "application/json", **(case.headers or {})}
    text = bytearray()
    deadline = time.monotonic() + patience
    try:
        with (
            httpx2.Client(timeout=patience, trust_env=False) as client,
            client.stream("POST", f"http://127.0.0.1:{port}{case.path}", content=body, headers=headers) as response,
        ):
            for chunk in response.iter_raw():
                text += chunk[: 1 << 20]
                if time.monotonic() > deadline:
                    return Outcome(case, 0, "")
            return Outcome(case, response.status_code, text.decode(errors="replace"))
    except httpx2.TimeoutException:
        return Outcome(case, 0, "")
    except httpx2.HTTPError as error:
        return Outcome(case, -1, type(error).__name__ + str(error))


def drawn(drawer: Drawer, count: int, seed: int) -> Iterator[Case]:
    """Yield COUNT cases for the routes of DRAWER; completions and chats are drawn as often as all the others."""
    draw = random.Random(seed)
    common = [path for path in (cases.COMPLETIONS, cases.CHAT) if path in drawer.routes]
    for _ in range(count):
        path = draw.choice(common if draw.random() < 0.7 else list(drawer.routes))
        yield Case(path, drawer.draw(path))


class Campaign:
    """A campaign on TARGET, which is called NAME in the result."""

    def __init__(self, target: Target, name: str) -> None:
        self.target = target
        self.result = Result(name)
        self._greedy = self._ask()

    def run(self, asked: Iterable[Case]) -> None:
        """Ask all of ASKED, in batches."""
        began = time.monotonic()
        every = iter(asked)
        try:
            while batch := list(itertools.islice(every, BATCH)):
                self.batch(batch)
        finally:
            self.result.seconds += time.monotonic() - began

    def batch(self, batch: Sequence[Case]) -> None:
        """Ask BATCH, `AT_ONCE` at a time, beside the neighbour, and check the engine afterwards."""
        with self._neighbour(), ThreadPoolExecutor(AT_ONCE) as pool:
            outcomes = list(pool.map(lambda case: send(self.target.port, case), batch))
        self.result.statuses.update(outcome.status for outcome in outcomes)
        if not self.target.alive():
            self.result.ended += 1
            self._find(batch, self.target.trace())
            self._check("after a restart")
            return
        for outcome in outcomes:
            if outcome.wrong:
                self._record(outcome)
        self._check(f"after a batch that began with {shown(batch[0])}")

    def flood(self, what: str, connect: Callable[[int], int]) -> None:
        """Let CONNECT open connections to the engine, beside the neighbour; it returns how many. WHAT names it."""
        began = time.monotonic()
        with self._neighbour():
            self.result.connections += connect(self.target.port)
        if not self.target.alive():
            self.result.ended += 1
            self.result.findings[f"the engine ended: {self.target.trace()}"] = what
            self.target.restart()
        self._check(f"after {what}")
        self.result.seconds += time.monotonic() - began

    # What holds after each batch

    def _check(self, when: str) -> None:
        try:
            answer = self._ask()
        except (httpx2.HTTPError, KeyError, ValueError) as error:
            self.result.findings[f"no answer to the greedy question {when}"] = repr(error)
            return
        if answer != self._greedy:
            self.result.findings[f"another greedy answer {when}"] = answer

    def _ask(self) -> str:
        answer = httpx2.post(
            f"http://127.0.0.1:{self.target.port}{COMPLETIONS}", json=GREEDY, timeout=2 * NEIGHBOUR, trust_env=False
        )
        document: Any = answer.json()
        return str(document["choices"][0]["text"])

    @contextlib.contextmanager
    def _neighbour(self) -> Iterator[None]:
        """Ask the greedy question all the time, for the duration of the context, and record the slowest answer."""
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                began = time.monotonic()
                with contextlib.suppress(httpx2.HTTPError, KeyError, ValueError):  # `_check` reports what is wrong
                    self._ask()
                took = time.monotonic() - began
                self.result.slowest = max(self.result.slowest, took)
                if took > NEIGHBOUR and self.target.alive():
                    self.result.findings["a neighbour waited too long"] = f"{took:.0f} s"
                over.wait(0.2)

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    # What is wrong

    def _record(self, outcome: Outcome) -> None:
        kind = f"{outcome.case.path}: {outcome.wrong}"
        if outcome.status >= 500:
            kind += f": {outcome.text[:160]}"
        if kind in self.result.findings or outcome.case.expected != "either":
            self.result.findings.setdefault(kind, shown(outcome.case))
            return

        def again(case: Case) -> bool:
            status = send(self.target.port, case).status
            return (status < 0 or status >= 500) == (outcome.status != _OK) and status not in {0, _OK}

        self.result.findings[kind] = shown(shrunk(outcome.case, again, 60))

    def _find(self, batch: Sequence[Case], trace: str) -> None:
        """Find the smallest part of a request of BATCH that ended the engine with TRACE. The engine is up then."""
        self.target.restart()
        kind = f"the engine ended: {trace}"
        if kind in self.result.findings:
            return
        starts = _STARTS

        def ends(case: Case) -> bool:
            nonlocal starts
            if starts == 0:
                return False
            send(self.target.port, case)
            time.sleep(1.0)  # an engine ends a moment after its answer
            if self.target.alive():
                return False
            starts -= 1
            self.target.restart()
            return True

        culprit = next((case for case in batch if ends(case)), None)
        if culprit is None:
            together = "; ".join(shown(case) for case in batch)
            self.result.findings[kind] = f"only together: {together[:4000]}"
            return
        self.result.findings[kind] = shown(shrunk(culprit, ends, 40))


def shrunk(case: Case, wrong: Callable[[Case], bool], tries: int) -> Case:
    """Return CASE without the fields that are not needed for it to be WRONG, after TRIES at most."""
    if not isinstance(case.body, dict):
        return case
    body: dict[str, Any] = case.body
    for name in [name for name in body if name not in {"model", "prompt", "messages"}]:
        if tries == 0:
            break
        tries -= 1
        less = {key: value for key, value in body.items() if key != name}
        smaller = Case(case.path, less, case.expected, case.headers)
        if wrong(smaller):
            body, case = less, smaller
    return case


def shown(case: Case) -> str:
    """Return CASE as one line, cut off if it is long."""
    body = case.body.decode(errors="replace") if isinstance(case.body, bytes) else json.dumps(case.body)
    return f"POST {case.path} {body if len(body) <= 600 else f'{body[:600]}... ({len(body)} characters)'}"


# Floods: bounded in number and time, and to 127.0.0.1 alone


def half_open(port: int, count: int = 400, seconds: float = 5.0) -> int:
    """Open COUNT connections that begin a request and do not end it, for that many SECONDS."""
    with contextlib.ExitStack() as stack:
        opened = 0
        for number in range(count):
            with contextlib.suppress(OSError):
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=2))
                begun = (
                    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{" if number % 2 else b""
                )
                connection.sendall(begun)
                opened += 1
        time.sleep(seconds)
    return opened


def slow(port: int, count: int = 40, seconds: float = 6.0) -> int:
    """Send COUNT requests a byte at a time, for that many SECONDS."""
    text = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Slow: " + b"a" * 1000
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=2)) for _ in range(count)
        ]
        deadline, sent = time.monotonic() + seconds, 0
        while time.monotonic() < deadline:
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.sendall(text[sent : sent + 1])
            sent += 1
            time.sleep(0.05)
    return count


def aborts(port: int, count: int = 30) -> int:
    """Hang up in the middle of COUNT streams, each a bit later than the one before."""
    body = json.dumps({**GREEDY, "max_tokens": 110, "stream": True, "temperature": 1.0, "logprobs": 1, "n": 2}).encode()
    sizes = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\n{sizes}"
    for number in range(count):
        with (
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection,
            contextlib.suppress(OSError),
        ):
            connection.sendall(head.encode() + body)
            connection.settimeout(0.02 * number + 0.01)
            connection.recv(200 * number + 1)
    return count


def hung_up(port: int) -> int:
    """Ask for 10,000 answers at once, and hang up after 3 s; and for many at once, from several clients."""
    many = [cases.completion(n=count, temperature=1.0, max_tokens=100) for count in (320, 1000, 10_000)]
    with ThreadPoolExecutor(len(many)) as pool:
        list(pool.map(lambda case: send(port, case, 3.0), many))
    return len(many)


def large_headers(port: int) -> int:
    """Send headers of 64 kB to 1 MB, and 1,000 of them; to hang up on these is an answer too."""
    sizes = (1 << 16, 1 << 18, 1 << 20)
    for size in sizes:
        send(port, Case(COMPLETIONS, GREEDY, headers={"X-Large": "a" * size}))
    send(port, Case(COMPLETIONS, GREEDY, headers={f"X-{number}": "a" for number in range(1000)}))
    return len(sizes) + 1


FLOODS: dict[str, Callable[[int], int]] = {
    "half-open connections": half_open,
    "slow clients": slow,
    "aborted streams": aborts,
    "n = 10,000": hung_up,
    "large headers": large_headers,
}
