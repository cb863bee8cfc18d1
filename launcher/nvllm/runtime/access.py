"""Asks whoever sends a request to the engine for the API key, if the profile names a key file.

Standard library only. vLLM runs it as a middleware of its HTTP server, named by ``--middleware``. vLLM's own
``--api-key`` would stand among the arguments and in vLLM's log, its ``VLLM_API_KEY`` in the environment of every
process, and either guards only some of the paths: ``/invocations`` generates without a key. This one reads the key from
its mounted file, keeps it in the memory of the HTTP server, and lets nothing through without it but `OPEN`.
"""

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

KEY_FILE = "/run/secrets/nvllm-api-key"

OPEN = frozenset({"/health", "/metrics"})
"""Pages that say how the engine is and hold no word of a prompt or an answer: those who watch it need no key."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


class ApiKey:
    """The application APP, for those who have the key. Raises OSError if the key cannot be read: then vLLM ends."""

    def __init__(self, app: Application, key_file: str = KEY_FILE) -> None:
        self._app = app
        with open(key_file, "rb") as stream:
            self._key = stream.read().strip()
        if not self._key:
            raise ValueError(f"{key_file} is empty")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind not in {"http", "websocket"} or self._may(scope):
            await self._app(scope, receive, send)
        elif kind == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"error":"Unauthorized"}'})

    def _may(self, scope: Message) -> bool:
        """Say whether the request of SCOPE may pass. A browser's OPTIONS carries no key, and asks nothing."""
        if scope.get("method") == "OPTIONS" or (scope["type"] == "http" and scope["path"] in OPEN):
            return True
        given = [text for name, text in scope["headers"] if name.lower() == b"authorization"]
        scheme, _, key = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        return bool(scheme.lower() == b"bearer") and hmac.compare_digest(key.strip(), self._key)
