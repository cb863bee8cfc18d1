"""The HTTP client for indexes and mirrors: patient with a host that answers slowly, not with one that never does."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx2
from unearth.fetchers import PyPIClient

CONNECT = 10.0
"""Seconds in which a host must take a connection. Its answer may take as long as pip's configuration says."""
PATIENCE = 5.0
"""Seconds that a host may take in all for connections that fail, before any succeeds; then it is not asked again."""
_FAILURES = 3
"""Connections, likewise."""


class SilentHostError(httpx2.ConnectError):
    """A host that has taken no connection so far, and is not asked again."""


class IndexClient(PyPIClient):
    """Takes what `PyPIClient` takes. Safe to use from several threads."""

    def __init__(self, *, timeout: float, **options: Any) -> None:
        super().__init__(timeout=httpx2.Timeout(timeout, connect=min(timeout, CONNECT)), **options)
        self._lock = threading.Lock()
        self._answered: set[str] = set()
        self._failed: dict[str, list[tuple[float, str]]] = {}
        """How long each connection took that failed, and why, by host."""

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send REQUEST. Raises `SilentHostError`, without asking again, once its host has shown that it is silent."""
        self._require_hope(request)
        began = time.monotonic()
        try:
            response: httpx2.Response = super().send(request, **options)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            with self._lock:
                failed = self._failed.setdefault(_host(error.request), [])
                failed.append((time.monotonic() - began, str(error)))
            self._require_hope(error.request)
            raise
        with self._lock:
            self._answered.add(_host(request))
            self._answered.add(_host(response.request))  # another one, after a redirect
        return response

    def _require_hope(self, request: httpx2.Request) -> None:
        host = _host(request)
        with self._lock:
            failed = [] if host in self._answered else self._failed.get(host, [])
        if len(failed) >= _FAILURES or sum(took for took, _ in failed) >= PATIENCE:
            _, reason = failed[-1]
            raise SilentHostError(f"{host} takes no connection: {reason}", request=request)


def _host(request: httpx2.Request) -> str:
    return request.url.netloc.decode("ascii", "replace")
