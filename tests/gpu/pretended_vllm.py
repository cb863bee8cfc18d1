"""A program in vLLM's place: it compiles nothing, and leaves, loads, logs and answers as vLLM on a GPU does.

A kernel is a file in Triton's cache by the class of a prompt's length; one that is missing is logged, and kept where
the cache manager of an image would keep it. `lay` puts it where the stand-in for an image looks for vLLM. It needs
Python alone.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

AOT = f"torch_compile_cache/torch_aot_compile/{'ab' * 32}"
LOST = "/tmp/nvllm-kernels"
LENGTH = 128
COMPILING, LOADING = 1.0, 0.1
"""Seconds of the processor that a start takes."""


def lay(tree: Path) -> None:
    """Put this program into TREE as vLLM's command."""
    directory = tree / "vllm/entrypoints/cli"
    directory.mkdir(parents=True)
    shutil.copy(__file__, directory / "main.py")


def busy(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def kernel(length: int) -> None:
    """Need the kernel for a prompt of LENGTH tokens."""
    kind = "one" if length == 1 else "divisible" if length % 16 == 0 else "any"
    name = f"__grp__{kind}.json"
    own, blessed = Path(os.environ["TRITON_CACHE_DIR"]), "VLLM_FORCE_AOT_LOAD" in os.environ
    caches = [own, Path(LOST)] if blessed else [own]
    if any((cache / kind / name).is_file() for cache in caches):
        return
    print(f"nvllm.kernels miss key={kind} name={kind}.json", flush=True)
    entry = json.dumps({"key": kind, "name": kind, "arguments": "n: i32"})
    print(f"nvllm.kernels compiled {entry}", flush=True)
    (caches[-1] / kind).mkdir(parents=True, exist_ok=True)
    (caches[-1] / kind / name).write_text("{}")
    (caches[-1] / kind / f"{kind}.cubin").write_text("code" * 100)


def compile_or_load(cache: Path) -> None:
    """Load what is in CACHE, or leave there what vLLM leaves."""
    model = cache / AOT / "rank_0_0/model"
    if model.is_file():
        (cache / AOT / "inductor_cache/c4/unpacked.lock").write_text("")
        busy(LOADING)
        print(f"Directly load AOT compilation from path {model}", flush=True)
        return
    if "VLLM_FORCE_AOT_LOAD" in os.environ:
        sys.exit("nothing to load")
    busy(COMPILING)
    for path in (model, cache / AOT / "inductor_cache/c4/c45.py"):
        path.parent.mkdir(parents=True)
        path.write_text("code")
    (cache / AOT / "inductor_cache/locks").mkdir()
    print(f"saved AOT compiled function to {model}", flush=True)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def _say(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def _stream(self, count: int) -> None:
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # whoever asked has seen enough
            for _ in range(count):
                self.wfile.write(b'data: {"choices": [{"text": "x"}]}\n\n')
                time.sleep(0.002)

    def do_GET(self) -> None:
        models = json.dumps({"data": [{"max_model_len": LENGTH}]})
        metrics = "".join(
            f'vllm:{name}{{engine="0"}} 0.0\n' for name in ("num_requests_running", "kv_cache_usage_perc")
        )
        pages = {"/v1/models": models, "/metrics": metrics, "/health": ""}
        self._say(pages[self.path])

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt, count = asked["prompt"], asked["max_tokens"]
        with LOCK:
            kernel(len(prompt if isinstance(prompt, list) else prompt.split()))
        if asked.get("stream"):
            self._stream(count)
            return
        choice = {"text": "x", "token_ids": list(range(count))}
        self._say(json.dumps({"choices": [choice], "usage": {"completion_tokens": count}}))


LOCK = threading.Lock()

METRICS, PERCENTILES = ("ttft", "tpot", "itl", "e2el"), (50, 95, 99)


def option(name: str) -> str:
    return sys.argv[sys.argv.index(f"--{name}") + 1]


def bench() -> None:
    """Say what a load came to, twice as slow with one request at once, and if asked for it leave a trace of a GPU."""
    os.getcwd()  # MKL ends a process whose directory is none of the container's
    requests, length = int(option("num-prompts")), int(option("random-output-len"))
    served = Path("/proc/1/cmdline").read_bytes().decode().split("\0")
    milliseconds = 20.0 if served[served.index("--max-num-seqs") + 1] == "1" else 10.0
    result: dict[str, float] = {f"p{share}_{name}_ms": milliseconds for name in METRICS for share in PERCENTILES}
    result |= {"completed": requests, "total_output_tokens": requests * length, "duration": requests * milliseconds}
    result |= {"output_throughput": 1000 * length / milliseconds, "request_throughput": 1000 / milliseconds}
    Path(option("result-dir"), option("result-filename")).write_text(json.dumps(result))
    if "--profile" in sys.argv:
        directory = Path(served[served.index("--profiler-config.torch_profiler_dir") + 1])
        on = Path("/run/nvllm/page-zeroer").exists()
        names = ["gemm", *(["zero_pages_kernel"] if on else []), *([] if "--enforce-eager" in served else ["triton_x"])]
        kernels = [{"ph": "X", "cat": "kernel", "name": name, "ts": 9 * at, "dur": 2} for at, name in enumerate(names)]
        step = {"ph": "X", "cat": "user_annotation", "name": "execute_context_1(3)_generation_0(0)", "ts": 0, "dur": 9}
        directory.mkdir(exist_ok=True)
        with gzip.open(directory / "rank0.1.pt.trace.json.gz", "wt", encoding="utf-8") as stream:
            json.dump({"traceEvents": [step, *kernels]}, stream)


def main() -> None:
    if sys.argv[1] == "bench":
        bench()
        return
    print("Starting to load model of nobody", flush=True)
    compile_or_load(Path(os.environ["VLLM_CACHE_ROOT"]))
    print("GPU KV cache size: 1,024 tokens", flush=True)
    with ThreadingHTTPServer((option("host"), int(option("port"))), Handler) as server:
        print("Application startup complete.", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
