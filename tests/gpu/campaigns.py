"""The comparisons of `nvllm` on a GPU, planted faults among them: `python -m gpu.campaigns PLACE SCRATCH CASE`.

It stands on what `blessing.py` stands on: every command is `nvllm` itself, and a case needs a network of its own.
Prints a line of JSON after each step, each with all before it.
"""

from __future__ import annotations

import compileall
import subprocess
import sys
from collections.abc import Callable, Mapping

from gpu import blessing
from gpu.blessing import Bench
from gpu.project import COMPILED, EAGER, EAGER_FOUR, IMAGE, STEPS_OF_20_MS, STEPS_OF_21_MS, SWITCHED_OFF
from support import question_samples

STEP = "campaign"
LONGEST = 3600.0
"""Seconds for a command. With all cases side by side an H100 took 597 for nine starts, and a sweep has up to 19."""
LOAD = ("--requests", "48", "--concurrency", "2", "--prompt-len", "32", "--output-len", "32")
QUESTIONS = 16
STEPS_LOAD = ("--requests", "12", "--concurrency", "1", "--prompt-len", "32", "--output-len", "32")
"""One request at a time: a second one waits for the end of a step, and so the time to its first token is drawn."""
STEPS_RUNS = 8

WORKER = "vllm/v1/worker/gpu_worker.py"
SLOWER = '''

_execute_model = Worker.execute_model


def _execute_and_wait(self, *arguments, **named):
    """Do a step, and sleep, longer by that share of what a step takes which NVLLM_TEST_SHARE names."""
    import os
    import time

    done = _execute_model(self, *arguments, **named)
    took = min(time.monotonic() - getattr(self, "_last", time.monotonic()), 0.1) + 0.02
    time.sleep(0.02 + float(os.environ["NVLLM_TEST_SHARE"]) * took)
    self._last = time.monotonic()
    return done


Worker.execute_model = _execute_and_wait
'''
"""A step of at least 20 ms, so that what is planted is not lost in what a step of a tiny model takes; as on the CPU."""


def compared(bench: Bench, command: str, *words: str) -> None:
    """Run the COMMAND of evidence with WORDS, and keep what it came to."""
    bench.longest = LONGEST
    result = bench.nvllm(STEP, command, IMAGE, *words, "--output", str(bench.ground.home / "evidence"))
    kept = ("arms", "findings", "effects", "artifacts", "compiles", "kernels", "notes")
    typed = bench.results[STEP]["command"].replace(str(bench.ground.home), "HOME")
    bench.keep(STEP, {"command": typed} | {key: result[key] for key in kept if key in result})


def asked(bench: Bench) -> tuple[str, ...]:
    """Return the options that ask questions, whose right answers no random weights know."""
    data = question_samples.write(bench.ground.home / "questions.jsonl", QUESTIONS)
    return ("--probe", "gsm8k", "--data", str(data), "--length", "24")


def four_arms(bench: Bench) -> None:
    """Try two switches in each of their four combinations, all on one artifact."""
    switches = ("--sentinels", "page-zeroer,mamba-block-ids")
    compared(bench, "ablate", "--profile", COMPILED, *switches, "--runs", "2", *asked(bench))


def five_artifacts(bench: Bench) -> None:
    """Compile one key five times, and start each once."""
    compared(bench, "ablate", "--profile", COMPILED, "--artifacts", "5", "--runs", "1", *asked(bench))


def three_profiles(bench: Bench) -> None:
    """Sweep three profiles, with traces."""
    profiles = ",".join((EAGER, SWITCHED_OFF, EAGER_FOUR))
    compared(bench, "sweep", "--profiles", profiles, *LOAD, "--runs", "1", *asked(bench), "--trace")


def slow_steps(bench: Bench, vs: str) -> None:
    """Hold VS against a profile of which each step takes 20 ms."""
    plant(bench)
    profiles = ("--profile", STEPS_OF_20_MS, "--vs", vs)
    compared(bench, "bench", *profiles, *STEPS_LOAD, "--runs", str(STEPS_RUNS), "--margin", "4%")


def plant(bench: Bench) -> None:
    """Give the image a tree of vLLM whose worker sleeps in each step, before the one that it has."""
    image = bench.ground.engine / "image"
    planted = image / "venv/planted"
    subprocess.run(["cp", "--archive", "--link", bench.ground.place.tree("patched"), planted], check=True)
    worker = planted / WORKER
    text = worker.read_text(encoding="utf-8")
    worker.unlink()  # the other trees have this file too
    worker.write_text(text + SLOWER, encoding="utf-8")
    compileall.compile_file(worker, force=True, quiet=2)  # unlinks the bytecode of the other trees first
    (trees,) = image.rglob("trees.pth")
    trees.write_text("/opt/venv/planted\n" + trees.read_text(encoding="utf-8"), encoding="utf-8")


CASES: Mapping[str, Callable[[Bench], None]] = {
    "four arms, one artifact": four_arms,
    "five artifacts": five_artifacts,
    "three profiles, traced": three_profiles,
    "equal legs": lambda bench: slow_steps(bench, STEPS_OF_20_MS),
    "a step 5 percent slower": lambda bench: slow_steps(bench, STEPS_OF_21_MS),
}

if __name__ == "__main__":
    blessing.run(sys.argv[1:], CASES)
