"""The commands of docs/campaigns.md, with the names and the numbers of a test in the place of those of a campaign."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support import documented, question_samples

PAGE = "docs/campaigns.md"
PROGRAM = "./coherent.py"
FLAGS = frozenset({"--trace"})
"""Options of the page that take no value."""
FEWER: Mapping[str, str] = {
    "--artifacts": "2",
    "--bands": "4M,8M",
    "--concurrency": "1",
    "--engines": "1",
    "--floor": "0/50",  # the weights of the tiny model are random
    "--length": "16",
    "--n": "4",
    "--output-len": "16",
    "--prompt-len": "32",
    "--requests": "4",
    "--runs": "1",
    "--runs-per-engine": "2",
    "--seconds": "1",
    "--timeout": "60",
    "--trace-runs": "2",
    "--trace-steps": "48",
    "--trials": "1",
}
"""What a test asks for in the place of the numbers of a campaign."""

ARTIFACTS = ("artifacts", "artifacts-asked")
PROMISED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(ARTIFACTS, ("compiles", "findings")),
    "soak": ("engines", "questions", "findings"),
    "arms": ("effects", "findings", "artifacts"),
    **dict.fromkeys(("sweep", "bench"), ("effects", "findings", "kernels", "common", "traced")),
    "blessed": ("findings",),
}
"""What the comparison of each campaign has to have, by the name of its output."""


def lines() -> list[list[str]]:
    """Return the command lines of the page, each as its words without the program."""
    return [shlex.split(one.line)[1:] for one in documented.commands(PAGE) if one.typed]


def named(words: list[str]) -> str:
    """Return what a test calls the command line of WORDS: the name of its output, or its command."""
    return Path(words[words.index("--output") + 1]).name if "--output" in words else " ".join(words[:2])


def fewer(words: list[str], image: str, profiles: Mapping[str, str], sentinel: str, directory: Path) -> list[str]:
    """Return WORDS for IMAGE, by the PROFILES of a test in the place of the page's, with numbers of `FEWER`.

    Questions, program and outputs lie in DIRECTORY. Raises KeyError for an option whose value is neither.
    """
    given = {
        **FEWER,
        "--data": str(question_samples.write(directory / "questions.jsonl", 6)),
        "--image": image,
        "--output": str(directory / named(words)),
        "--sentinels": sentinel,
    }
    changed, option = list[str](), ""
    for word in words:
        if option in {"--profile", "--vs", "--profiles"}:
            changed.append(",".join(dict.fromkeys(profiles[name] for name in word.split(","))))
        elif option == "--probe" and word == PROGRAM:
            changed.append(program(directory))
        elif option in {"--probe", "--prompt", ""}:
            changed.append(image if word == "gb10" else word)
        else:
            changed.append(given[option])
        option = word if word.startswith("--") and word not in FLAGS else ""
    return changed


def program(directory: Path) -> str:
    """Write the program of the page to DIRECTORY, and return its path."""
    text = (documented.ROOT / PAGE).read_text(encoding="utf-8")
    (written,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    path = directory / Path(PROGRAM).name
    path.write_text(written)
    path.chmod(0o755)
    return str(path)


def misshapen(results: Mapping[str, Any]) -> list[str]:
    """Return what RESULTS, documents of comparisons by the names of their runs, lack of what the page promises."""
    wrong = [f"{name}: an arm is not passed" for name, one in results.items() if not _passed(one)]
    for name, parts in PROMISED.items():
        wrong += [f"{name}: no {part}" for part in parts if not results[name][part]]
    arms = {name: [one["name"] for one in result["arms"]] for name, result in results.items()}
    wrong += [f"{name}: arms {arms[name]}" for name in ARTIFACTS if arms[name] != ["artifact-1", "artifact-2"]]
    wrong += [f"{name}: more than an arm" for name in ("soak", "blessed") if len(arms[name]) != 1]
    wrong += [f"arms: {arms['arms']}"] if arms["arms"][0] != "none" or len(arms["arms"]) != 2 else []
    wrong += [f"sweep: {arms['sweep']}"] if arms["sweep"][-1] != f"{arms['sweep'][0]}-2" else []
    wrong += [
        f"{name}: {one['arm']}: {one['runs']}"
        for name in ("sweep", "bench")
        for one in results[name]["traced"]
        if len(one["runs"]) != 2 or one["low"] is None
    ]
    (engine,) = results["soak"]["engines"]
    wrong += [f"soak: {engine}"] if [one["turn"] for one in engine["runs"]] != [1, 2] else []
    return wrong


def _passed(result: Mapping[str, Any]) -> bool:
    return {one["outcome"] for one in result["arms"]} == {"passed"}
