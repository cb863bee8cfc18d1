"""Whether an engine is healthy: it has answered a generation, and then the requests that it runs make progress.

Ready means that one real generation came back at the settings that are served. ``/health`` answers 200 over engines
that die at their first request, that hang, or that will never generate another token.

Alive means that the engine answers and that work moves. An engine that answers neither ``/health`` nor ``/metrics``
for a long time is silent. By vLLM's own metrics, requests are running, and for a long time no token was generated,
no prompt was finished, and not one block of the key-value cache was filled or freed: then the engine is stuck. The
last of these moves at every step of a long prompt. The metrics are what the engine's core reported at its last step.
So a core that stops in the middle of its work is seen; one that stops at its first step after it was idle is not,
because it never reported that a request runs.

The HTTP client is imported at the first request, after the container was started: a start need not wait for it.
"""

from __future__ import annotations

import contextlib
import functools
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from nvllm.core import canonical
from nvllm.core.canonical import Json
from nvllm.core.plan import LaunchPlan
from nvllm.core.spec import LOOPBACK
from nvllm.serve import access

T = TypeVar("T")

_OK = 200
COMPLETIONS = "v1/completions"

_TIMEOUT = 5.0
"""Seconds that a page of the engine may take."""

_LONGEST_CONTEXT = 1 << 24
"""Most tokens that an engine may say it takes: prompts of that length are made."""

MOST = 16 << 20
"""Most bytes of an answer: another process may have the port, and an engine may be anybody's by now."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The answer of the probe: TEXT of so many TOKENS, after SECONDS."""

    text: str
    tokens: int
    seconds: float


class NotReady(Exception):  # noqa: N818 - an answer, not an error of the program
    """The engine did not answer with a generation. FINAL means that waiting will not help."""

    def __init__(self, problem: str, *, final: bool) -> None:
        super().__init__(problem)
        self.problem = problem
        self.final = final


class NotInTime(NotReady):
    """The engine gave no answer within its time."""


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """An answer over HTTP: its STATUS and TEXT, after SECONDS."""

    status: int
    text: str
    seconds: float


def url(host: str, port: int, path: str) -> str:
    """Return the address of PATH, which has no leading slash, on PORT of HOST."""
    return f"http://{host}:{port}/{path}"


def answer(
    method: str,
    port: int,
    path: str,
    document: Json,
    timeout: float,
    header: Mapping[str, str] = MappingProxyType({}),
    *,
    host: str = LOOPBACK,
) -> EngineAnswer:
    """Return the answer of the engine on PORT of HOST to METHOD and PATH, with the JSON DOCUMENT unless it is None.

    HEADER shows that the request may be made; `access.header` makes it. All of the answer must come within TIMEOUT
    seconds. Raises httpx2.HTTPError if it does not, or has more than 16 MiB.
    """
    began = time.monotonic()
    with _exchange(method, url(host, port, path), document, timeout, header) as (status, chunks):
        return EngineAnswer(status, b"".join(chunks).decode(errors="replace"), time.monotonic() - began)


@functools.cache
def _unused_tls() -> ssl.SSLContext:
    """Return what a client takes for TLS, which plain HTTP never uses. One for all: a new one takes 0.3 ms."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@contextlib.contextmanager
def _exchange(
    method: str, address: str, document: Json, timeout: float, header: Mapping[str, str]
) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Send a request as `answer` does; yield the status, and the text as it comes. Leaving the context hangs up."""
    import httpx2

    # This host and plain HTTP: no proxy is asked, and no certificates are loaded, which would take longer than a
    # request. A content coding could make gigabytes of a kilobyte.
    headers = {"Accept-Encoding": "identity", **header}
    client = httpx2.Client(timeout=timeout, trust_env=False, verify=_unused_tls(), headers=headers)
    began = time.monotonic()

    def chunks(response: httpx2.Response) -> Iterator[bytes]:
        size = 0
        for chunk in response.iter_raw():
            yield chunk
            size += len(chunk)
            if size > MOST:
                raise httpx2.ReadError(f"an answer of more than {MOST} bytes")
            if time.monotonic() - began > timeout:
                raise httpx2.ReadTimeout(f"no whole answer within {timeout:.0f} s")

    with client, client.stream(method, address, json=document) as response:
        yield response.status_code, chunks(response)


def healthy(port: int) -> bool:
    """Return whether the engine's own health page answers on 127.0.0.1:PORT."""
    return _page(port, "health") is not None


def _page(port: int, name: str) -> str | None:
    """Return the text of the page NAME of the engine on 127.0.0.1:PORT, or None if it does not answer with one."""
    import httpx2

    try:
        reply = answer("GET", port, name, None, _TIMEOUT)
    except httpx2.HTTPError:
        return None
    return reply.text if reply.status == _OK else None


@contextlib.contextmanager
def _answering(late: NotReady, *, final: bool) -> Iterator[None]:
    """Raise LATE where the engine is too late in the context, and NotReady, FINAL or not, where it gives no answer."""
    import httpx2

    try:
        yield
    except httpx2.TimeoutException as error:
        raise late from error
    except httpx2.HTTPError as error:
        raise NotReady(str(error) or type(error).__name__, final=final) from error


AS_SERVED: Mapping[str, float] = MappingProxyType({})
"""No sampling settings are sent, so the engine uses its own."""

GREEDY: Mapping[str, float] = MappingProxyType({"temperature": 0})
"""Take the likeliest token each time, so that a sound engine always gives the same answer to a prompt."""


def complete(
    plan: LaunchPlan, prompt: str, timeout: float, settings: Mapping[str, float], read: Callable[[Any], T]
) -> tuple[T, float]:
    """Return what READ finds in the engine's completion of PROMPT, which is JSON, and the seconds that it took.

    The completion has as many tokens as the probe of PLAN asks for, and the engine gets TIMEOUT seconds. SETTINGS are
    further fields of the request. Raises NotReady if there is no completion, or READ fails on it.
    """
    question: dict[str, Json] = {
        "model": plan.request_name,
        "prompt": prompt,
        "max_tokens": plan.probe.max_tokens,
        "ignore_eos": True,  # whoever asks counts the tokens; a model may end its answer at the first
    }
    with _answering(NotReady(f"no generation within {timeout:.0f} s", final=True), final=False):
        reply = answer("POST", plan.port, COMPLETIONS, {**question, **settings}, timeout, access.header(plan.access))
    if reply.status != _OK:
        raise NotReady(f"HTTP {reply.status}: {reply.text[:200]}", final=True)
    try:
        return read(canonical.decode(reply.text.encode())), reply.seconds
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise NotReady(f"no completion: {reply.text[:200]}", final=True) from error


def ask(plan: LaunchPlan, fields: Mapping[str, Json], timeout: float) -> tuple[int, str]:
    """Return HTTP status and text of the engine's answer to a completion with FIELDS, after TIMEOUT seconds at most.

    Raises NotInTime if that is too short, and NotReady if there is no answer.
    """
    question = {"model": plan.request_name, **fields}
    with _answering(_too_late(timeout), final=True):
        reply = answer("POST", plan.port, COMPLETIONS, question, timeout, access.header(plan.access))
    return reply.status, reply.text


def _too_late(timeout: float) -> NotInTime:
    return NotInTime(f"no answer within {timeout:g} s", final=True)


def stream(plan: LaunchPlan, fields: Mapping[str, Json], timeout: float, more: Callable[[], bool]) -> tuple[int, str]:
    """Ask for a completion with FIELDS part by part; return the HTTP status, and the text if that is an error.

    MORE is called when a part arrives, and the connection is closed once it returns false. All parts must arrive
    within TIMEOUT seconds, and have at most 16 MiB. Raises NotInTime if they come later, and NotReady if they are more,
    or if the engine ends the answer with an error.
    """
    question: dict[str, Json] = {"model": plan.request_name, **fields, "stream": True}
    address = url(LOOPBACK, plan.port, COMPLETIONS)
    with (
        _answering(_too_late(timeout), final=True),
        _exchange("POST", address, question, timeout, access.header(plan.access)) as (status, chunks),
    ):
        if status != _OK:
            return status, b"".join(chunks)[:_ERROR].decode(errors="replace")
        rest = b""
        for chunk in chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            if not all(_part(line, more) for line in lines):
                break
    return status, ""


def _part(line: bytes, more: Callable[[], bool]) -> bool:
    """Call MORE if LINE is a part of an answer; return whether to read on. Raises NotReady if it is an error."""
    if line.startswith(b'data: {"error"'):
        raise NotReady(line[:_ERROR].decode(errors="replace"), final=True)
    return not line.startswith(b"data: {") or more()


_ERROR = 4096
"""Most bytes of an error that are kept."""

REFUSED = "HTTP 401"
"""How an engine answers a request that lacks its key."""


def without_key(port: int) -> str:
    """Return how the engine on 127.0.0.1:PORT answers a request for its models that carries no key."""
    import httpx2

    try:
        return f"HTTP {answer('GET', port, 'v1/models', None, _TIMEOUT).status}"
    except httpx2.HTTPError as error:
        return str(error) or type(error).__name__


def longest(port: int) -> int:
    """Return how many tokens a prompt and its answer may have, as the engine on 127.0.0.1:PORT says.

    Raises NotReady if it does not say it.
    """
    page = _page(port, "v1/models") or ""
    try:
        document: Any = canonical.decode(page.encode())
        length = int(document["data"][0]["max_model_len"])
    except (ValueError, LookupError, TypeError, OverflowError):
        length = 0
    if not 0 < length <= _LONGEST_CONTEXT:
        raise NotReady(f"no list of models that says how long requests may be: {page[:200]!r}", final=True)
    return length


def generate(plan: LaunchPlan, timeout: float, sampling: Mapping[str, float] = AS_SERVED) -> Generation:
    """Return the engine's answer to the probe of PLAN with SAMPLING, after TIMEOUT seconds at most.

    It must have exactly as many tokens as the probe asks for. Raises NotReady.
    """

    def read(body: Any) -> tuple[str, int]:
        return str(body["choices"][0]["text"]), int(body["usage"]["completion_tokens"])

    (text, tokens), seconds = complete(plan, plan.probe.prompt, timeout, sampling, read)
    if tokens != plan.probe.max_tokens:
        raise NotReady(f"{tokens} tokens of {plan.probe.max_tokens}", final=True)
    return Generation(text, tokens, seconds)


# Liveness

METRICS_INTERVAL = 15.0
"""Most seconds between two looks at an engine; a short stall timeout has shorter ones."""

_LONGEST = 2 * METRICS_INTERVAL
"""Seconds that count at most between two looks: a supervisor that was itself stopped saw nothing meanwhile."""

_RUNNING = "vllm:num_requests_running"
_PROGRESS = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:kv_cache_usage_perc")
_SAMPLE = re.compile(r"^(vllm:\w+)(?:\{(.*)\})? ([0-9.eE+-]+)$", re.MULTILINE)
_ENGINE = re.compile(r'\bengine="(\d+)"')


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """One engine's metrics: the number of requests RUNNING, and the figures that change while work makes progress."""

    running: float
    progress: tuple[float, ...]

    @property
    def kv_usage(self) -> float:
        """The share of the KV cache in use."""
        return self.progress[_PROGRESS.index("vllm:kv_cache_usage_perc")]


Metrics: TypeAlias = Mapping[str, EngineMetrics]
"""The metrics of each engine behind one front end, by its number."""


def parse_metrics(text: str) -> Metrics:
    """Return the metrics of each engine in TEXT, which has the format of Prometheus; empty if it has none."""
    figures: dict[str, dict[str, float]] = {}
    for name, labels, value in _SAMPLE.findall(text):
        number = _ENGINE.search(labels)
        engine = figures.setdefault(number[1] if number is not None else "", {})
        try:
            engine[name] = engine.get(name, 0.0) + float(value)
        except ValueError:
            return {}
    return {
        number: EngineMetrics(figures_of[_RUNNING], tuple(figures_of.get(name, 0.0) for name in _PROGRESS))
        for number, figures_of in figures.items()
        if _RUNNING in figures_of
    }


def metrics_page(port: int) -> str:
    """Return the metrics of the engines on 127.0.0.1:PORT, in the format of Prometheus; empty if they report none."""
    return _page(port, "metrics") or ""


def read_metrics(port: int) -> Metrics:
    """Return the metrics of the engines on 127.0.0.1:PORT; empty if they report none."""
    return parse_metrics(metrics_page(port))


@dataclass(frozen=True, slots=True)
class Look:
    """A look at an engine: its METRICS, and the requests that FAILED, each with its address and why.

    None failed if it answered. An engine that reports no metrics may answer all the same.
    """

    metrics: Metrics
    failed: tuple[str, ...] = ()


def interval(stall_timeout: int) -> float:
    """Return the seconds between two looks at an engine with that STALL_TIMEOUT in seconds: at least four fit in."""
    return min(METRICS_INTERVAL, stall_timeout / 4)


def look(host: str, port: int, stall_timeout: int) -> Look:
    """Return whether the engine on PORT of HOST answers /metrics or /health, and its metrics.

    Both together take at most a quarter of STALL_TIMEOUT seconds.
    """
    import httpx2

    failed = []
    for name in ("metrics", "health"):
        try:
            page = answer("GET", port, name, None, min(_TIMEOUT, stall_timeout / 8), host=host)
        except httpx2.HTTPError as error:
            failed.append(f"{url(host, port, name)}: {str(error) or type(error).__name__}")
            continue
        if page.status == _OK:
            return Look(parse_metrics(page.text) if name == "metrics" else {})
        failed.append(f"{url(host, port, name)}: HTTP {page.status}")
    return Look({}, tuple(failed))


class StallDetector:
    """Finds engines behind one front end that have requests and make no progress, and a front end that is silent.

    STALL_TIMEOUT is the profile's, in seconds. BEGAN is when the engine last answered, by a monotonic clock.
    """

    def __init__(self, stall_timeout: int, began: float) -> None:
        self.silent = 0.0
        """Seconds since the front end last answered."""
        self._last: Metrics = {}
        self._when = began
        self._longest = min(_LONGEST, stall_timeout / 2)
        self._stuck: dict[str, float] = {}

    @property
    def stuck(self) -> float:
        """Seconds for which an engine has had requests and made no progress; of several engines the longest."""
        return max(self._stuck.values(), default=0.0)

    def observe(self, when: float, seen: Look) -> None:
        """Add what was SEEN at WHEN, in seconds of a monotonic clock.

        An engine that did not answer may be stuck or not, so the time without an answer counts as silence alone.
        """
        passed, self._when = min(when - self._when, self._longest), when
        self.silent = self.silent + passed if seen.failed else 0.0
        metrics = seen.metrics
        for number, engine in metrics.items():
            still = engine.running > 0 and engine == self._last.get(number)
            self._stuck[number] = self._stuck.get(number, 0.0) + passed if still else 0.0
        self._last = {**self._last, **metrics}
