"""What must hold of the results of a run on a GPU: each check finds what is wrong, and nothing in what is right."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu import campaigns, checks, report, run
from gpu.machine import SENTINELS


def told(switches: tuple[str, ...], fires: tuple[str, ...]) -> dict[str, list[str]]:
    """What the log of the patched tree says: SWITCHES are on, and FIRES did something."""
    known = (*SENTINELS, "poison")
    return {
        name: [f"enabled={'true' if name in switches else 'false'}", *(["first_fire"] if name in fires else [])]
        for name in known
    }


def recycling(name: str) -> dict[str, Any]:
    before, after = checks.HELD[name]
    tree = "stock" if name.endswith("stock") else "patched"
    switches = {"recycle, patched": SENTINELS, "recycle, poison": (*SENTINELS, "poison")}.get(name, ())
    if name.endswith("without ids"):
        switches = ("page-zeroer", "gdn-first-chunk", "poison")
    fresh = {"before": "zero", "cleared": "zero", "after": "zero", "blocks": [[1]]}
    used = {"before": "stale", "cleared": before, "after": after, "blocks": [[2]]}
    return {
        "status": 0,
        "seconds": 30.0,
        "tree": tree,
        "switches": list(switches),
        "sentinels": {} if tree == "stock" else told(switches, checks.FIRES.get(name, ())),
        "missed": ["_causal_conv1d_fwd_kernel.json"],
        "result": {"device": "NVIDIA X", "answers": [[1, 2]], "seen": [fresh, used, used]},
    }


def one_token(name: str) -> dict[str, Any]:
    tree = "stock" if name.endswith("stock") else "patched"
    switches = {"one token, stock": (), "one token, patched": ("gdn-first-chunk",)}.get(name, SENTINELS)
    again = [[9]] * 2 if tree == "stock" else [[1]] * 2
    return {
        "status": 0,
        "seconds": 90.0,
        "tree": tree,
        "switches": list(switches),
        "sentinels": {} if tree == "stock" else told(switches, checks.FIRES.get(name, ())),
        "missed": [],
        "result": {"device": "NVIDIA X", "fresh": [1], "after others": again, "joining": again},
    }


def by_nvllm() -> dict[str, Any]:
    """What is kept of commands of nvllm that blessed and served."""
    answers = {"1": {"tokens": [1]}}
    trial = {"number": 1, "loaded": True, "saved": False, "compiles": 0, "unchanged": True, "phases": []}
    cold = {"phases": [{"name": "gate", "seconds": 40.0}]}
    variants = {"new": [3, 0, 0], "kernels": [{"name": "conv", "variants": 3}]}
    manifest = {"files": 9, "cold": cold, "trials": [trial], "coverage": variants}
    blessed = {"command": "nvllm bless sm90 --profile x", "status": 0, "seconds": 99.0, "manifest": manifest}
    served = {"command": "nvllm serve sm90 --profile x --detach", "status": 0, "seconds": 9.0, "gate": ["passed"]}
    served |= {"loaded": 1, "saved": 0, "alone": answers, "together": answers, "alive": True, "missing": {}}
    refused = {"status": 3, "seconds": 1.0, "refusals": [{"code": "NV907", "expected": "", "found": ""}]}
    refused["command"] = "nvllm serve sm90 --profile x --dry-run"
    few, net = "extended", "gated delta net"
    return {
        "blessed": {
            "bless": blessed,
            "tampered": refused,
            "tampered: mended": {**refused, "status": 0, "refusals": []},
            "serve": served,
        },
        few: {
            "bless": blessed,
            "serve": {**served, "missing": {"conv": 2}},
            "extend": blessed,
            "serve extended": served,
        },
        net: {"bless": blessed, "serve": served},
    }


def bench() -> dict[str, Any]:
    """What a bench of two profiles with traces came to, on a GPU."""
    gemm, clears = {"name": "gemm", "calls": 4, "microseconds": 8.0}, {"calls": 1, "microseconds": 2.0}
    table = {"on": "gpu", "microseconds": 10.0, "steps": 32}
    return {
        "status": 0,
        "kernels": [
            {"arm": "tiny-eager", **table, "kernels": [gemm, {**clears, "name": "zero_pages_kernel"}]},
            {"arm": "tiny-switched-off", **table, "kernels": [gemm, {**clears, "name": "_zero_kv_blocks_kernel"}]},
        ],
        "common": [
            {
                "name": "gemm",
                "first": "tiny-eager",
                "other": "tiny-switched-off",
                "calls": [4, 4],
                "microseconds": [8.0, 8.0],
            }
        ],
        "traces": {arm: {"bytes": 1000, "steps": 32} for arm in ("tiny-eager", "tiny-switched-off")},
    }


def tortured() -> dict[str, Any]:
    """A server that noticed nothing."""
    return {
        "requests": 2170,
        "statuses": {"0": 3, "200": 1000, "400": 1167},
        "connections": 477,
        "findings": {},
        "engine ended": 0,
        "slowest answer of the neighbour": 1.5,
        "seconds": 100.0,
        "alive at the end": True,
        "kernels missing": {},
    }


def comparison(case: str, **more: list[dict[str, Any]]) -> dict[str, Any]:
    """What is kept of the comparison of CASE, all of whose legs passed, with MORE."""
    names, runs = checks.CAMPAIGNS[case]
    arm = {"outcome": "passed", "runs": runs, "valid": runs, "samples": 1, "correct": 0.0}
    arms = [{**arm, "name": name, "tokens_per_second": 90.0} for name in names]
    head: dict[str, Any] = {"command": "nvllm x sm90", "status": 0, "seconds": 600.0, "arms": arms}
    return {"campaign": {**head, "artifacts": [], "findings": [], **more}}


def compared() -> dict[str, Any]:
    """What the comparisons came to."""
    four, five, three, equal, slower = checks.CAMPAIGNS
    compiles = [{"tree": "a" * 64, "kept": f"artifacts/key-{n}/a", "right": [0]} for n in range(1, 6)]
    gemm = {"name": "gemm", "calls": 4, "microseconds": 8.0}
    table = {"on": "gpu", "microseconds": 10.0, "kernels": [gemm], "others": 1, "run": 2, "tokens": 64}
    finding = {"factor": "a / b", "text": "output tokens/s x0.952"}
    return {
        four: comparison(four, artifacts=[{"arm": name, "trees": ["a" * 64]} for name in checks.CAMPAIGNS[four][0]]),
        five: comparison(five, compiles=compiles),
        three: comparison(three, kernels=[{**table, "arm": name} for name in checks.CAMPAIGNS[three][0]]),
        equal: comparison(equal, findings=[{**finding, "finding": "neutral"}]),
        slower: comparison(slower, findings=[{**finding, "finding": "loss"}]),
    }


def adapted() -> dict[str, Any]:
    """What came of an adapter that a first blessing did not ask."""
    steps = by_nvllm()["extended"]
    serve = {**steps["serve"], "waited": {"KEY": ["cmpl-1-0-f00d"]}}
    return {**steps, "serve": serve, "serve extended": {**steps["serve extended"], "waited": {}, "wrong": []}}


def again() -> dict[str, Any]:
    """What two blesses of a profile came to, and a server with the last cache."""
    steps = by_nvllm()["blessed"]
    bless, serve = steps["bless"], {**steps["serve"], "drawn": {"200": 3, "400": 9}, "wrong": []}
    manifest = {**bless["manifest"], "tree_hash": "a" * 64}
    return {"bless 1": {**bless, "manifest": manifest}, "bless 2": {**bless, "manifest": manifest}, "serve": serve}


def large() -> dict[str, Any]:
    """What the large model's bless and server came to."""
    steps = by_nvllm()["blessed"]
    idle = {"kv in use": 0.0, "running": 0.0, "waiting": 0.0}

    def seen(preempted: float, **more: Any) -> dict[str, Any]:
        memory = {"processes": {"VLLM::EngineCore": 3000}, "gpu": 9000}
        return {"metrics": {**idle, "preempted": preempted}, "memory": memory, **more}

    return {
        **{step: steps[step] for step in ("bless", "serve")},
        "ready": seen(0),
        "pressed": seen(20, answers={"whole": 64}, seconds=30.0),
        "drawn": seen(20, drawn={"200": 300, "400": 700}, wrong=[]),
        "pressed again": seen(40, answers={"whole": 64}, seconds=30.0),
    }


def right() -> dict[str, Any]:
    """Results of a run in which all is well."""
    answers = {str(length): {"tokens": [1]} for length in (1, 16)}
    server = {"seconds": 30.0, "missed": {}, "unchanged": True, "loaded": 1, "saved": 0}
    asked = {"alone": answers, "together": answers, "alive": True, "missed when ready": 0}
    refused = {"1": {"failed": "HTTP 500"}}
    one = {"seconds": 1.0, "tokens": 1000, "clearing": {"calls": 3, "ids": 8, "host us": 50.0, "sum us": 150}}
    return {
        "environment": dict.fromkeys(("gpu", "driver", "python", "torch", "triton", "vllm", "date"), "X"),
        "run": {"commit": "X", "machine": "X", "parts": [*checks.PARTS]},
        **{name: recycling(name) for name in checks.HELD},
        **{name: one_token(name) for name in ("one token, stock", "one token, patched", "one token, whole series")},
        "serving": {
            "one prompt": {
                "cold": {**server, "loaded": 0, "saved": 1},
                "report": {**server, **asked, "missed": {"_causal_conv1d_fwd_kernel.json": 3}},
                "refuse": {**server, **asked, "alone": refused, "together": refused, "alive": False},
            },
            "workload": {
                "cold": {**server, "loaded": 0, "saved": 1, "rounds": [{"new": 7}, {"new": 0}, {"new": 0}]},
                "report": {**server, **asked, "rounds": [{"new": 0}]},
            },
        },
        "blessing": by_nvllm(),
        "adapted": {"extended": adapted()},
        "shapes": {"128 tokens and 2": {step: by_nvllm()["blessed"][step] for step in ("bless", "serve")}},
        "repeats": {"128 tokens and 2, case 1": again()},
        "sized": {"blessed": large(), "ablated": {}},
        "benching": {"traced, switched off": {"bench": bench()}},
        "campaigns": compared(),
        "torture": {"eager": tortured(), "blessed": {**tortured(), "cache unchanged": True}},
        "throughput": {"rounds": {side: [one, one, {}] for side in ("stock", "patched")}},
        "loads": {"tiny": {"rounds": {side: [one, one, {}] for side in ("stock", "patched")}}},
        "allowed": {"stock": beside([10], "error"), "patched": beside([1, 2], "stop")},
    }


def beside(tokens: list[int], ended: str) -> dict[str, Any]:
    """What a request got: alone two tokens, and TOKENS beside one that may get few; with a grammar it ENDED so."""
    alone, other = {"tokens": [1, 2], "ended": "stop"}, {"tokens": tokens, "ended": ended}
    rows = {"alone": alone, "swapped": other, "condensed": other}
    return {"result": {"device": "X", "plain": rows, "grammar": rows}}


def test_nothing_is_wrong_with_what_is_right() -> None:
    assert checks.wrong(right()) == []


def benched(results: dict[str, Any]) -> dict[str, Any]:
    """Return the bench of RESULTS, to change it."""
    found: dict[str, Any] = results["benching"]["traced, switched off"]["bench"]
    return found


def case(results: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what the comparison NAME of RESULTS came to, to change it."""
    step: dict[str, Any] = results["campaigns"][name]["campaign"]
    return step


Break = Callable[[dict[str, Any]], object]

BROKEN: dict[str, tuple[Break, str]] = {
    "an arm that never ran": (lambda r: r.pop("recycle, poison"), "answered: recycle, poison: did not run"),
    "a run of no commit": (lambda r: r["run"].update(commit=""), "run: no commit"),
    "an engine that died": (
        lambda r: r["one token, stock"].update(status=1, result={}, log="OSError"),
        "answered: one token, stock: exit status 1: OSError",
    ),
    "the CPU": (
        lambda r: r["recycle, stock"]["result"].update(device="cpu"),
        "answered: recycle, stock: ran on the CPU",
    ),
    "a trace of the processor": (
        lambda r: benched(r)["kernels"][0].update(on="cpu"),
        "traced: traced, switched off, tiny-eager: 10.0 of 10.0 us on the cpu",
    ),
    "a trace beyond its bound": (
        lambda r: benched(r)["traces"]["tiny-eager"].update(steps=33),
        "traced: traced, switched off, tiny-eager: a trace of 33 steps",
    ),
    "profiles that were not compared": (
        lambda r: benched(r).update(common=[]),
        "traced: traced, switched off: compared 0 of the 1 kernels",
    ),
    "a patch that does nothing": (
        lambda r: benched(r)["kernels"][0]["kernels"].pop(),
        "series_kernel: traced, switched off: no zero_pages_kernel with the switch on",
    ),
    "a switch that does nothing": (
        lambda r: benched(r)["kernels"][1]["kernels"][1].update(name="zero_pages_kernel"),
        "series_kernel: traced, switched off: zero_pages_kernel with the switch off",
    ),
    "a comparison that never ran": (
        lambda r: r["campaigns"].pop("equal legs"),
        "equal_legs: equal legs: did not run",
    ),
    "no comparison at all": (lambda r: r.pop("campaigns"), "five_artifacts: five artifacts: did not run"),
    "a comparison that did not end": (
        lambda r: r["campaigns"].update(
            {"five artifacts": {"ended": {"status": 1, "said": "Traceback\nTimeoutExpired: /x"}}}
        ),
        "five_artifacts: five artifacts: did not end, no comparison, TimeoutExpired",
    ),
    "a comparison that is refused": (
        lambda r: case(r, "three profiles, traced").update(
            status=1, refusals=[{"code": "NV858", "expected": "a trace", "found": ""}]
        ),
        "per_token: three profiles, traced: exit status 1, NV858 for: a trace",
    ),
    "a comparison without arms": (
        lambda r: case(r, "four arms, one artifact").pop("arms"),
        "one_artifact: four arms, one artifact: exit status 0",
    ),
    "an arm that is missing": (
        lambda r: case(r, "five artifacts")["arms"].pop(),
        "five_artifacts: five artifacts: the arms artifact-1, artifact-2, artifact-3, artifact-4",
    ),
    "an arm whose harness failed": (
        lambda r: case(r, "equal legs")["arms"][1].update(outcome="invalid", valid=4),
        "equal_legs: equal legs, tiny-20-ms-2: invalid, 4 of 8 runs valid",
    ),
    "arms of two artifacts": (
        lambda r: case(r, "four arms, one artifact")["artifacts"][3].update(trees=["b" * 64]),
        "one_artifact: four arms, one artifact: 2 artifacts",
    ),
    "an arm without an artifact": (
        lambda r: case(r, "four arms, one artifact")["artifacts"][3].update(trees=[]),
        "one_artifact: four arms, one artifact: 1 artifacts",
    ),
    "an arm of which no artifact is named": (
        lambda r: case(r, "four arms, one artifact")["artifacts"].pop(),
        "one_artifact: four arms, one artifact: 1 artifacts, of the arms none, mamba-block-ids, page-zeroer",
    ),
    "a compile that was not kept": (
        lambda r: case(r, "five artifacts")["compiles"][4].update(tree="", kept=""),
        "five_artifacts: five artifacts: 4 compiles kept",
    ),
    "a compile that was never started": (
        lambda r: case(r, "five artifacts")["compiles"][4].update(right=[]),
        "five_artifacts: five artifacts: 5 compiles kept, started [1, 1, 1, 1, 0] times",
    ),
    "a profile without a trace": (
        lambda r: case(r, "three profiles, traced")["kernels"].pop(2),
        "per_token: three profiles, traced, tiny-eager-four: no trace",
    ),
    "a sweep traced on the processor": (
        lambda r: case(r, "three profiles, traced")["kernels"][1].update(on="cpu"),
        "per_token: three profiles, traced, tiny-switched-off: 2 traces with 1 kernels of the cpu",
    ),
    "a trace whose tokens nobody knows": (
        lambda r: case(r, "three profiles, traced")["kernels"][1].pop("tokens"),
        "per_token: three profiles, traced, tiny-switched-off: no milliseconds a token",
    ),
    "a loss between equals": (
        lambda r: case(r, "equal legs")["findings"][0].update(finding="loss"),
        "equal_legs: equal legs: loss, not neutral",
    ),
    "a slower step that is not found": (
        lambda r: case(r, "a step 5 percent slower")["findings"][0].update(finding="unknown"),
        "slower_step: a step 5 percent slower: unknown, not loss",
    ),
    "a bench that decides nothing": (
        lambda r: case(r, "a step 5 percent slower").update(findings=[]),
        "slower_step: a step 5 percent slower: no finding, not loss",
    ),
    "nothing recycled": (
        lambda r: r["recycle, patched"]["result"].update(seen=[]),
        "states: recycle, patched: no block came back, so nothing was shown",
    ),
    "a stale state": (
        lambda r: r["recycle, patched"]["result"]["seen"][1].update(after="stale"),
        "states: recycle, patched: states went",
    ),
    "a stock engine that clears": (
        lambda r: [one.update(after="zero") for one in r["recycle, stock"]["result"]["seen"]],
        "states: recycle, stock: states went",
    ),
    "another answer": (
        lambda r: r["recycle, patched"]["result"].update(answers=[[7]]),
        "same_answers: recycle, patched: other answers than the stock engine's",
    ),
    "a one-token prompt with another's answer": (
        lambda r: r["one token, patched"]["result"].update(joining=[[1], [5]]),
        "one_token: one token, patched: 3 of 4 answers",
    ),
    "a stock tree that is right": (
        lambda r: r["one token, stock"]["result"].update(joining=[[1], [5]]),
        "one_token: one token, stock: 1 of 4 answers",
    ),
    "a switch that never fired": (
        lambda r: r["recycle, patched"]["sentinels"]["mamba-block-ids"].remove("first_fire"),
        "switches: recycle, patched: mamba-block-ids never fired",
    ),
    "a switch that is off and fires": (
        lambda r: r["recycle, switched off"]["sentinels"]["page-zeroer"].append("first_fire"),
        "switches: recycle, switched off: page-zeroer is off and says first_fire",
    ),
    "a switch that is on without its file": (
        lambda r: r["recycle, switched off"]["sentinels"]["page-zeroer"].__setitem__(0, "enabled=true"),
        "switches: recycle, switched off: page-zeroer says enabled=true",
    ),
    "a kernel that was compiled": (
        lambda r: r["recycle, patched"]["missed"].append("zero_pages_kernel.json"),
        "kernels: recycle, patched: zero_pages_kernel was in no cache",
    ),
    "a server that never answered": (
        lambda r: r["serving"]["workload"]["report"].update(seconds=None, log="Read-only file system"),
        "blessed: workload, report: never answered: Read-only file system",
    ),
    "a cache that was never written": (
        lambda r: r["serving"]["workload"]["cold"].update(saved=0),
        "blessed: workload: the first server wrote no cache",
    ),
    "code that was saved again": (
        lambda r: r["serving"]["workload"]["report"].update(saved=1),
        "blessed: workload, report: loaded 1 and saved 1",
    ),
    "a kernel that was missing at the start": (
        lambda r: r["serving"]["workload"]["report"].update({"missed when ready": 3}),
        "blessed: workload, report: 3 kernels were missing before anybody asked",
    ),
    "a cache that changed": (
        lambda r: r["serving"]["one prompt"]["refuse"].update(unchanged=False),
        "blessed: one prompt, refuse: the cache changed",
    ),
    "a request that ends a server": (
        lambda r: r["torture"]["eager"].update({"engine ended": 1}),
        "torture: eager: the server ended 1 times",
    ),
    "a finding of the torture": (
        lambda r: r["torture"]["blessed"]["findings"].update({"HTTP 500": "POST x"}),
        "torture: blessed: HTTP 500: POST x",
    ),
    "a kernel that the torture lacks": (
        lambda r: r["torture"]["blessed"].update({"kernels missing": {"conv.json": 1}}),
        "torture: blessed: lacked {'conv.json': 1}",
    ),
    "another cache after the torture": (
        lambda r: r["torture"]["blessed"].update({"cache unchanged": False}),
        "torture: blessed: the cache has changed",
    ),
    "no serving": (lambda r: r.pop("serving"), "blessed: no case: the first server wrote no cache"),
    "a prompt that killed the server": (
        lambda r: r["serving"]["one prompt"]["report"].update(alone={"1": {"failed": "HTTP 500"}}),
        "survives: one prompt, report: a prompt of 1 tokens, alone: HTTP 500",
    ),
    "a dead server": (
        lambda r: r["serving"]["one prompt"]["report"].update(alive=False),
        "survives: one prompt, report: the server died",
    ),
    "a workload that never ends": (
        lambda r: r["serving"]["workload"]["cold"].update(rounds=[{"new": 7}, {"new": 1}]),
        "covered: workload: the last rounds brought new kernels: [7, 1]",
    ),
    "a kernel that the workload missed": (
        lambda r: r["serving"]["workload"]["report"].update(missed={"k.json": 1}),
        "covered: workload: 1 kernels were missing after the workload",
    ),
    "a bless that is refused": (
        lambda r: r["blessing"]["blessed"]["bless"].update(status=1, refusals=[]),
        "by_nvllm: blessed, bless: exit status 1",
    ),
    "a bless that did not end": (
        lambda r: r["blessing"]["extended"].pop("bless"),
        "by_nvllm: extended, bless: did not end",
    ),
    "a trial that compiled": (
        lambda r: r["blessing"]["blessed"]["bless"]["manifest"]["trials"][0].update(compiles=1),
        "by_nvllm: blessed, bless: trial 1 is no good one",
    ),
    "a manifest without kernels": (
        lambda r: r["blessing"]["blessed"]["bless"]["manifest"]["coverage"].update(kernels=[]),
        "by_nvllm: blessed, bless: the manifest names no kernel",
    ),
    "a gate that did not pass": (
        lambda r: r["blessing"]["blessed"]["serve"].update(gate=["refused"]),
        "by_nvllm: blessed, serve: gate ['refused']",
    ),
    "a serve that did not end": (
        lambda r: r["blessing"]["blessed"].pop("serve"),
        "by_nvllm: blessed, serve: did not serve to its end",
    ),
    "a prompt that a blessed serve did not answer": (
        lambda r: r["blessing"]["extended"]["serve"].update(alone={"16": {"failed": "HTTP 500"}}),
        "by_nvllm: extended, serve: prompts of 16 tokens were not answered",
    ),
    "a blessing that lacks a kernel": (
        lambda r: r["blessing"]["blessed"]["serve"].update(missing={"conv": 1}),
        "unseen: blessed: lacked {'conv': 1}",
    ),
    "a changed bit that is served": (
        lambda r: r["blessing"]["blessed"]["tampered"].update(refusals=[]),
        "tampered: refused with []",
    ),
    "a cache that is refused for nothing": (
        lambda r: r["blessing"]["blessed"]["tampered: mended"].update(status=3),
        "tampered: mended: exit status 3",
    ),
    "a blessing that is not extended": (
        lambda r: r["blessing"]["extended"]["serve extended"].update(missing={"conv": 1}),
        "extension: still lacked {'conv': 1}",
    ),
    "a gated delta net that lacks a kernel": (
        lambda r: r["blessing"]["gated delta net"]["serve"].update(missing={"chunk": 1}),
        "gated_delta_net: lacked {'chunk': 1}",
    ),
    "a report without requests": (
        lambda r: r["adapted"]["extended"]["serve"].update(waited={"KEY": []}),
        "adapter: requests that waited: []",
    ),
    "an adapter that lacks no kernel from the start": (
        lambda r: r["adapted"]["extended"]["serve"].update(missing={}),
        "adapter: no kernel was missing",
    ),
    "an adapter that lacks a kernel in the end": (
        lambda r: r["adapted"]["extended"]["serve extended"].update(missing={"_lora_expand_kernel": 1}),
        "adapter: still lacked {'_lora_expand_kernel': 1}",
    ),
    "an adapter that fails on a drawn request": (
        lambda r: r["adapted"]["extended"]["serve extended"].update(wrong=["POST /: HTTP 500"]),
        "adapter: POST /: HTTP 500",
    ),
    "a shape that lacks a kernel": (
        lambda r: r["shapes"]["128 tokens and 2"]["serve"].update(missing={"chunk": 1}),
        "shapes: 128 tokens and 2: lacked {'chunk': 1}",
    ),
    "a shape that fails on a drawn request": (
        lambda r: r["shapes"]["128 tokens and 2"]["serve"].update(wrong=["POST /: HTTP 500"]),
        "shapes: 128 tokens and 2: POST /: HTTP 500",
    ),
    "a shape whose bless is rejected": (
        lambda r: r["shapes"]["128 tokens and 2"]["bless"].update(status=1, refusals=[]),
        "shapes: 128 tokens and 2, bless: exit status 1",
    ),
    "one bless of many that is rejected": (
        lambda r: r["repeats"]["128 tokens and 2, case 1"]["bless 2"].update(status=3, refusals=[]),
        "repeats: 128 tokens and 2, case 1, bless 2: exit status 3",
    ),
    "a cache of many that lacks a kernel": (
        lambda r: r["repeats"]["128 tokens and 2, case 1"]["serve"].update(missing={"chunk": 1}),
        "repeats: 128 tokens and 2, case 1: lacked {'chunk': 1}",
    ),
    "no bless of many": (lambda r: r.pop("repeats"), "repeats: no case, bless 1: did not end"),
    "a large model that fails on a drawn request": (
        lambda r: r["sized"]["blessed"]["drawn"].update(wrong=["POST /: HTTP 500"]),
        "sized: blessed: POST /: HTTP 500",
    ),
    "a pressure under which nothing was preempted": (
        lambda r: r["sized"]["blessed"]["pressed again"]["metrics"].update(preempted=20),
        "preempted: preempted after each pressure: [20, 20]",
    ),
    "a preempted request without its answer": (
        lambda r: r["sized"]["blessed"]["pressed"].update(answers={"whole": 63, "short": 1}),
        "preempted: pressed: answers {'whole': 63, 'short': 1}",
    ),
    "a block that nobody gave back": (
        lambda r: r["sized"]["blessed"]["drawn"].update(metrics={"kv in use": 0.1, "running": 0.0, "waiting": 0.0}),
        "flat: drawn: {'kv in use': 0.1",
    ),
    "a process that grew": (
        lambda r: r["sized"]["blessed"]["pressed again"]["memory"]["processes"].update({"VLLM::EngineCore": 3100}),
        "flat: VLLM::EngineCore: 3000 MiB, then 3100",
    ),
    "a request that gets another one's tokens": (
        lambda r: r["allowed"]["patched"]["result"]["plain"]["swapped"].update(tokens=[10]),
        "allowed: patched, swapped: another answer than alone",
    ),
    "a grammar that fails beside another request": (
        lambda r: r["allowed"]["patched"]["result"]["grammar"]["condensed"].update(ended="error"),
        "allowed: patched, condensed: a request with a grammar failed",
    ),
    "a stock engine without the fault": (
        lambda r: r["allowed"].update(stock=beside([1, 2], "stop")),
        "allowed: stock: nothing is wrong without the series",
    ),
    "an engine that did not answer": (
        lambda r: r["allowed"].pop("stock"),
        "allowed: stock: did not answer",
    ),
    "prompts that show nothing": (
        lambda r: r["serving"]["one prompt"]["report"].update(missed={}),
        "covered: one prompt: no kernel was missing, so nothing was shown",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_check_finds(name: str) -> None:
    change, expected = BROKEN[name]
    results = copy.deepcopy(right())
    change(results)
    assert any(line.startswith(expected) for line in checks.wrong(results)), checks.wrong(results)


def test_the_report_says_all_that_was_seen() -> None:
    text = report.document(right())
    assert "WRONG" not in text
    assert text.count("PASS") == sum(map(len, checks.PARTS.values()))
    for word in ("stale", "nan", "zero", "1,000 (1,000-1,000)", "1.000 (1.000-1.000)", "50.0 (50.0-50.0)"):
        assert word in text, word


def test_the_report_shows_a_run_that_broke_off() -> None:
    head = {name: right()[name] for name in ("environment", "run")}
    results = {**head, "recycle, stock": recycling("recycle, stock")}
    text = report.document(results)
    assert "WRONG: answered: one token, stock: did not run" in text
    assert "FAIL" in text


def test_the_report_shows_comparisons_that_did_not_end() -> None:
    results = right()
    results["campaigns"].pop("five artifacts")
    results["campaigns"]["equal legs"] = {"ground": {}}
    text = report.document(results)
    assert re.search(r"five artifacts +\| +\| +\| did not run", text)
    assert re.search(r"equal legs +\| +\| +\| did not end", text)
    assert "- a step 5 percent slower: a / b: **loss**: output tokens/s x0.952." in text
    assert re.search(r"three profiles, traced +\| tiny-switched-off +\|.*\| 0.01 +\| 64 +\| 0.000 ", text)


def test_every_comparison_is_checked() -> None:
    assert tuple(checks.CAMPAIGNS) == run.CAMPAIGNS == tuple(campaigns.CASES)


@pytest.mark.parametrize(("count", "ranks"), [(6, (0, 5)), (9, (1, 7)), (20, (5, 14)), (100, (39, 60))])
def test_the_interval_of_a_median_is_that_of_the_binomial(count: int, ranks: tuple[int, int]) -> None:
    low, high = report.interval([float(one) for one in range(count)])
    assert (low, high) == ranks


RESULTS = sorted((Path(__file__).parents[1] / "gpu").glob("results-*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_committed_results_agree_with_themselves_and_with_their_page(path: Path) -> None:
    """Whether the run took place, no test can tell: this one checks that the results fit together and are shown."""
    results = json.loads(path.read_text(encoding="utf-8"))
    assert checks.wrong(results) == []
    page = Path(__file__).parents[2] / "docs/gpu" / f"{path.stem.removeprefix('results-')}.md"
    assert report.document(results) in page.read_text(encoding="utf-8")


def test_the_parts_of_the_committed_results_are_all_that_are_run() -> None:
    """Each part is of one run; the pages of docs/gpu say which."""
    parts = [part for path in RESULTS for part in json.loads(path.read_text(encoding="utf-8"))["run"]["parts"]]
    assert sorted(parts) == sorted(checks.PARTS)
