"""Asks the engine of an exported serve for one real generation: what an orchestrator's startup probe runs.

Standard library only. Exits with status 0 if the engine answers with as many tokens as ``machine.json`` beside it asks
for, and 1 otherwise. A page such as ``/health`` proves less: it answers over engines that die at their first request.
"""

import http.client
import json
import os
import sys
from typing import Any

_TIMEOUT = 55
_LONGEST = 16 << 20


def tokens(probe: dict[str, Any], timeout: float = _TIMEOUT) -> int:
    """Return how many tokens the engine generates for PROBE. Raises OSError, ValueError or LookupError without."""
    question = {
        "model": probe["model"],
        "prompt": probe["prompt"],
        "max_tokens": probe["max_tokens"],
        "ignore_eos": True,
    }
    headers = {"Content-Type": "application/json"}
    if "key_file" in probe:
        with open(probe["key_file"], encoding="ascii") as stream:
            headers["Authorization"] = f"Bearer {stream.read().strip()}"
    connection = http.client.HTTPConnection("127.0.0.1", probe["port"], timeout=timeout)
    try:
        connection.request("POST", "/v1/completions", json.dumps(question), headers)
        answer = connection.getresponse().read(_LONGEST)
    except http.client.HTTPException as error:
        raise ValueError(repr(error)) from error
    finally:
        connection.close()
    return int(json.loads(answer)["usage"]["completion_tokens"])


def main() -> int:
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "machine.json"), encoding="utf-8") as stream:
        probe = json.load(stream)["probe"]
    try:
        count = tokens(probe)
    except (OSError, ValueError, LookupError, TypeError) as error:
        print("nvllm.generation", repr(error), flush=True)
        return 1
    print("nvllm.generation", f"{count} tokens", flush=True)
    return 0 if count == probe["max_tokens"] else 1


if __name__ == "__main__":
    sys.exit(main())
