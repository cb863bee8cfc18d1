"""The commands of docs/campaigns.md, with the names and the numbers of a test in the place of those of a campaign."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
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


def misshapen(name: str, result: Mapping[str, Any]) -> list[str]:
    """Return what RESULT, the comparison of the campaign NAME, lacks of what the page promises."""
    wrong = [f"no {part}" for part in PROMISED[name] if not result[part]]
    outcomes = {one["name"]: one["outcome"] for one in result["arms"]}
    arms = [*outcomes]
    if {*outcomes.values()} != {"passed"} or not _arms_fit(name, arms):
        wrong.append(f"arms {outcomes}")
    if name == "soak" and [one["turn"] for one in result["engines"][0]["runs"]] != [1, 2]:
        wrong.append(f"runs {result['engines']}")
    traced = result["traced"] if "traced" in PROMISED[name] else []
    if [one["arm"] for one in traced if len(one["runs"]) == 2 and one["low"] is not None] != (arms if traced else []):
        wrong.append(f"traces {traced}")
    return wrong


def _arms_fit(name: str, arms: Sequence[str]) -> bool:
    if name in ARTIFACTS:
        return list(arms) == ["artifact-1", "artifact-2"]
    if name == "sweep":
        return arms[-1] == f"{arms[0]}-2"
    return len(arms) == (1 if name in {"soak", "blessed"} else 2)
