"""The phases of a start, from lines as vLLM 0.21, 0.28 and 0.33 write them, and from lines that nobody should write."""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.serve import timeline
from nvllm.serve.timeline import MissingKernel, Timeline, stamped

PASSED = 'nvllm.gate {"event": "passed", "seconds": 0.001}'
FINDING = {"where": "user", "expected": "1000:1000", "found": "0:0"}
REFUSED = f'nvllm.gate {{"event": "refused", "findings": [{json.dumps(FINDING)}]}}'

INIT = "init engine (profile, create kv cache, warmup model) took"

# 0.28.0 on the CPU, eager: the order of a real start, shortened.
EAGER_28 = (
    (0.3, PASSED),
    (8.0, "(APIServer pid=1) INFO 11-20 23:42:57 [api_utils.py:333]  ▄▄ ▄█ █     █  version 0.28.0"),
    (24.0, "(Worker pid=34) INFO 11-20 23:43:15 [cpu_model_runner.py:131] Starting to load model /models/tiny..."),
    (24.5, "(Worker pid=34) INFO 11-20 23:43:15 [default_loader.py:430] Loading weights took 0.00 seconds"),
    (24.6, "(EngineCore pid=22) INFO 11-20 23:43:15 [kv_cache_utils.py:1869] GPU KV cache size: 52,428 tokens, Max"),
    (
        24.7,
        f"(EngineCore pid=22) INFO 11-20 23:43:15 [core.py:354] {INIT} 0.05 s",
    ),
    (26.0, "(APIServer pid=1) INFO:     Application startup complete."),
)

# 0.21.0 on a GPU, compiled: several graphs, each saved, then one total.
COMPILED_21 = (
    (0.2, PASSED),
    (20.0, "(EngineCore pid=93) INFO 11-20 10:00:20 [gpu_model_runner.py:4735] Starting to load model /models/m..."),
    (80.0, "(EngineCore pid=93) INFO 11-20 10:01:20 [default_loader.py:384] Loading weights took 58.61 seconds"),
    (
        99.0,
        "(EngineCore pid=93) INFO 11-20 10:01:39 [decorators.py:709] saved AOT compiled function to /c/rank_0/model",
    ),
    (120.0, "(EngineCore pid=93) INFO 11-20 10:02:00 [monitor.py:20] torch.compile took 38.42 s in total"),
    (130.0, "(EngineCore pid=93) INFO 11-20 10:02:10 [decorators.py:709] saved AOT compiled function to /c/drafter"),
    (140.0, "(EngineCore pid=93) INFO 11-20 10:02:20 [monitor.py:20] torch.compile took 9.10 s in total"),
    (141.0, "(EngineCore pid=93) INFO 11-20 10:02:21 [kv_cache_utils.py:1319] GPU KV cache size: 1,048,576 tokens"),
    (155.0, "(EngineCore pid=93) INFO 11-20 10:02:35 [x.py:6243] Graph capturing finished in 13 secs, took 0.52 GiB"),
    (
        160.0,
        f"(EngineCore pid=93) INFO 11-20 10:02:40 [core.py:283] {INIT} 79.93 seconds",
    ),
    (165.0, "(APIServer pid=1) INFO:     Application startup complete."),
)

# 0.33.0: the compile texts begin with a tag, and on the CPU the cache is the CPU's.
LOADED_33 = (
    (0.2, PASSED),
    (15.0, "(Worker pid=36) INFO 11-20 11:00:15 [cpu_model_runner.py:140] Starting to load model /models/tiny..."),
    (16.0, "(Worker pid=36) INFO 11-20 11:00:16 [default_loader.py:455] Loading weights took 0.01 seconds"),
    (
        17.5,
        "(Worker pid=36) INFO 11-20 11:00:17 [decorators.py:327] [backbone] Directly load AOT compilation from path /c",
    ),
    (
        17.6,
        "(EngineCore pid=22) INFO 11-20 11:00:17 [kv_cache_utils.py:2001] CPU KV cache size: 131,072 tokens, Maximum",
    ),
    (
        18.0,
        f"(EngineCore pid=22) INFO 11-20 11:00:18 [core.py:401] {INIT} 1.93 s (compilation: 1.50 s)",
    ),
    (19.0, "(APIServer pid=1) INFO:     Application startup complete."),
)


def fed(lines: Sequence[tuple[float, str]], began: float = 1000.0) -> Timeline:
    timeline = Timeline(began)
    for seconds, text in lines:
        timeline.feed(began + seconds, text)
    return timeline


def shown(timeline: Timeline) -> list[tuple[str, float, float]]:
    return [(phase.name, phase.seconds, phase.ended) for phase in timeline.phases]


def test_an_eager_start_has_no_compile() -> None:
    timeline = fed(EAGER_28)
    timeline.finish(1030.0)
    assert shown(timeline) == [
        ("gate", 0.3, 0.3),
        ("import", 23.7, 24.0),
        ("weights", 0.5, 24.5),
        ("warm-up", 0.2, 24.7),
        ("server", 1.3, 26.0),
        ("first token", 4.0, 30.0),
    ]
    assert timeline.kv_tokens == 52428


def test_compile_ends_where_its_last_graph_ends() -> None:
    timeline = fed(COMPILED_21)
    assert shown(timeline) == [
        ("gate", 0.2, 0.2),
        ("import", 19.8, 20.0),
        ("weights", 60.0, 80.0),
        ("compile", 60.0, 140.0),
        ("capture", 15.0, 155.0),
        ("warm-up", 5.0, 160.0),
        ("server", 5.0, 165.0),
    ]
    assert timeline.kv_tokens == 1048576


def test_a_compile_that_was_loaded_is_one_too() -> None:
    timeline = fed(LOADED_33)
    assert ("compile", 1.5, 17.5) in shown(timeline)
    assert timeline.kv_tokens == 131072


@pytest.mark.parametrize("lines", [EAGER_28, COMPILED_21, LOADED_33])
def test_feed_returns_each_phase_as_it_ends(lines: Sequence[tuple[float, str]]) -> None:
    timeline = Timeline(0)
    ended = [phase for seconds, text in lines if (phase := timeline.feed(seconds, text)) is not None]
    assert [name for name, _ in itertools.groupby(ended, lambda phase: phase.name)] == [
        phase.name for phase in timeline.phases
    ]
    assert sum(phase.seconds for phase in timeline.phases) == pytest.approx(timeline.phases[-1].ended)


def test_a_phase_that_is_over_does_not_end_again() -> None:
    timeline = fed(EAGER_28)
    before = shown(timeline)
    for _, text in (*EAGER_28, *COMPILED_21):
        assert timeline.feed(2000.0, text) is None
    assert shown(timeline) == before


def test_a_phase_that_was_passed_over_does_not_come_later() -> None:
    """The sampler is compiled at the first generation, long after the start's own compiles."""
    timeline = fed([EAGER_28[0], EAGER_28[-1]])
    assert timeline.feed(1100.0, "INFO [monitor.py:20] torch.compile took 14.02 s in total") is None
    assert [phase.name for phase in timeline.phases] == ["gate", "server"]


def test_a_second_model_does_not_move_the_end_of_the_first() -> None:
    timeline = fed([*COMPILED_21[:3], (90.0, "INFO [default_loader.py:384] Loading weights took 1.20 seconds")])
    assert shown(timeline)[-1] == ("weights", 60.0, 80.0)


def test_a_clock_that_steps_back_makes_no_negative_phase() -> None:
    timeline = fed([(5.0, PASSED), (3.0, EAGER_28[2][1]), (-9.0, EAGER_28[3][1])])
    assert shown(timeline) == [("gate", 5.0, 5.0), ("import", 0.0, 5.0), ("weights", 0.0, 5.0)]


def test_only_the_gate_itself_passes_the_gate() -> None:
    assert shown(fed([(1.0, f"INFO the model says {PASSED}")])) == []


# The key-value cache


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("GPU KV cache size: 52,428 tokens, Maximum concurrency", 52428),
        ("(EngineCore pid=22) INFO 11-20 [x.py:1] CPU KV cache size: 131,072 tokens", 131072),
        ("KV cache size: 7 tokens", 7),
        ("KV cache size: 1,048,576 tokens", 1048576),
        ("KV cache size: , tokens", None),
        ("KV cache size: many tokens", None),
        ("KV cache size: " + "9" * 5000 + " tokens", None),
    ],
)
def test_the_number_of_tokens(text: str, tokens: int | None) -> None:
    assert fed([(1.0, text)]).kv_tokens == tokens


# The gate's refusals


def test_what_the_gate_refuses_is_read() -> None:
    timeline = fed([(1.0, REFUSED + "\r\n")])
    assert timeline.gate_findings == [FINDING]
    assert timeline.phases == []


def test_every_finding_of_a_refusal_is_read() -> None:
    document = {"event": "refused", "findings": [FINDING, {**FINDING, "where": "/"}]}
    timeline = fed([(1.0, f"nvllm.gate {json.dumps(document, sort_keys=True)}")])
    assert [one["where"] for one in timeline.gate_findings] == ["user", "/"]


@pytest.mark.parametrize(
    "rest",
    [
        '{"event": "refused"}',
        '{"event": "refused", "findings": [{"where": "x"}]}',
        '{"event": "refused", "findings": [1]}',
        '{"event": "refused", "findings": {}}',
        '{"event": "refused", "findings": []}',
        '{"event": "refused", "findings": [{"where": "x", "found": "torn',
        '{"event": "refused", "findings": ' + "[" * 20000 + "}",
    ],
)
def test_a_refusal_that_cannot_be_read_is_still_a_refusal(rest: str) -> None:
    (found,) = fed([(1.0, f"nvllm.gate {rest}")]).gate_findings
    assert found["where"] == "the gate's report"
    assert found["found"] == rest[:300]


# An engine that failed


@pytest.mark.parametrize(
    "text",
    [
        "(EngineCore pid=22) ERROR 11-20 23:43:15 [core.py:1136] EngineCore failed to start.",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ],
)
def test_the_words_of_an_engine_that_failed(text: str) -> None:
    timeline = fed([(1.0, text + " \n"), (2.0, "EngineCore failed to start. again")])
    assert timeline.fatal == text


def test_an_engine_that_is_well_says_nothing_fatal() -> None:
    for lines in (EAGER_28, COMPILED_21, LOADED_33):
        timeline = fed(lines)
        assert timeline.fatal is None
        assert timeline.gate_findings == []


# The engine's times


def test_a_time_with_nanoseconds() -> None:
    found = stamped("2026-11-20T23:42:51.187249491Z nvllm.gate {}")
    assert found is not None
    assert found[0] == pytest.approx(1795218171.187249491, abs=1e-6)
    assert found[1] == "nvllm.gate {}"


def test_a_time_without_a_fraction() -> None:
    expected = datetime.datetime(2026, 11, 20, 23, 42, 51, tzinfo=datetime.UTC).timestamp()
    assert stamped("2026-11-20T23:42:51Z text") == (expected, "text")
    assert stamped("2026-11-21T05:12:51+05:30 text") == (expected, "text"), "Podman says the time of the host's zone"


def test_the_rest_of_the_line_is_kept_as_it_is() -> None:
    found = stamped("2026-11-20T23:42:51.1Z  two  spaces \r")
    assert found is not None
    assert found[1] == " two  spaces \r"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "text",
        "2026-11-20 23:42:51Z text",
        "2026-11-20T23:42:51+1 text",
        "2026-11-20T23:42:51+99:99 text",
        "2026-13-45T99:99:99Z no such time",
    ],
)
def test_a_line_without_a_time_has_none(line: str) -> None:
    assert stamped(line) is None


# Whatever comes

FRAGMENTS = [
    *(text for _, text in (*EAGER_28, *COMPILED_21, *LOADED_33)),
    REFUSED,
    'nvllm.gate {"event": "refused"',
    'nvllm.gate {"event": "refused"}',
    "KV cache size: ,,, tokens",
    "EngineCore failed to start.",
    "\u0662\u0660\u0662\u0666-11-20T00:00:00Z digits of another script",
    "9999-99-99T99:99:99.9Z ",
]
anything = st.text() | st.sampled_from(FRAGMENTS) | st.tuples(st.sampled_from(FRAGMENTS), st.text()).map("".join)


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), anything), max_size=12))
def test_no_text_makes_it_fail_and_its_phases_end_in_order(lines: list[tuple[float, str]]) -> None:
    timeline = Timeline(0.0)
    for when, text in lines:
        timeline.feed(when, text)
    timeline.finish(0.0)
    ended = [phase.ended for phase in timeline.phases]
    assert ended == sorted(ended)
    assert all(phase.seconds >= 0 for phase in timeline.phases)
    names = [phase.name for phase in timeline.phases]
    order = ["gate", "import", "weights", "compile", "capture", "warm-up", "server", "first token"]
    assert names == [name for name in order if name in names]
    assert all(one.keys() == {"where", "expected", "found"} for one in timeline.gate_findings)


@given(st.text() | st.from_regex(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z .*"))
def test_no_line_makes_its_time_fail(line: str) -> None:
    found = stamped(line)
    assert found is None or isinstance(found[0], float)


AOT = "/home/nvllm/.cache/vllm/torch_compile_cache/torch_aot_compile/c2a533687e6885f4dc728aa12bb84353fa0a0d09"
CODE = '<code object forward at 0x7f1c5c0e9c60, file "/opt/venv/lib/python3.11/site-packages/vllm/x.py", line 311>'


@pytest.mark.parametrize(
    "text",
    [
        f"WARNING 11-21 07:57:12 [decorators.py:321] Compiling model again due to a load failure from {AOT}, reason: x",
        "INFO 11-21 07:57:12 [backends.py:393] Compiling a graph for compile range (1, 256) takes 3.21 s",
        "INFO 11-21 07:57:12 [backends.py:1155] Dynamo bytecode transform time: 4.21 s",
        f"DEBUG 11-21 07:57:12 [decorators.py:593] Start compiling function {CODE}",
    ],
)
def test_every_line_that_vllm_says_of_a_compile_is_one(text: str) -> None:
    """The texts of vLLM 0.28.0, as its front end, its core and its workers write them."""
    made = Timeline(0.0)
    for process in ("", "(EngineCore pid=22) ", "(Worker pid=36) "):
        assert made.feed(1.0, f"{process}{text}\n") is None
        assert made.compiled.pop() == f"{process}{text}"
    assert (made.compiled, made.saved, made.loaded, made.missed) == ([], [], [], [])


@pytest.mark.parametrize(
    "text",
    [
        f"INFO 11-21 08:00:37 [decorators.py:716] saved AOT compiled function to {AOT}/rank_0_0/model",
        f"INFO 11-21 08:04:11 [decorators.py:311] Directly load AOT compilation from path {AOT}/rank_0_0/model",
        "INFO 11-21 07:57:09 [cpu_model_runner.py:150] Warming up model for the compilation...",
        "INFO 11-21 07:57:12 [monitor.py:20] torch.compile took 1.93 s in total",
        "INFO 11-21 07:57:12 [backends.py:293] Directly load the compiled graph(s) for compile range (1, 256) from the",
        "WARNING 11-21 08:00:53 [vllm.py:1354] Inductor compilation was disabled by user settings, optimizations",
    ],
)
def test_what_is_said_around_a_compile_is_none(text: str) -> None:
    made = Timeline(0.0)
    made.feed(1.0, f"(Worker pid=36) {text}")
    assert made.compiled == []


TRACED = "(EngineCore pid=58) INFO 11-22 14:40:41 [backends.py:1148] Dynamo bytecode transform time: 1.05 s"
LOADING = (
    "(EngineCore pid=58) INFO 11-22 14:40:41 [backends.py:292] Directly load the compiled graph(s) for compile range",
    f"(EngineCore pid=58) INFO 11-22 14:40:41 [decorators.py:311] Directly load AOT compilation from path {AOT}/model",
    "(EngineCore pid=58) INFO 11-22 14:40:41 [monitor.py:53] torch.compile took 1.20 s in total",
)
"""What vLLM 0.21.0 on an H100 says while it loads a stored cache, `TRACED` before it."""


def test_a_stored_graph_that_is_given_to_the_backend_on_a_gpu_is_no_compile() -> None:
    made = Timeline(0.0)
    for line in (TRACED, *LOADING):
        made.feed(1.0, line)
    assert (made.compiled, made.loaded) == ([], [f"{AOT}/model"])


@pytest.mark.parametrize("further", ["Compiling a graph for compile range (1, 256) takes 3.21 s", None])
def test_a_graph_that_is_compiled_or_not_loaded_is_a_compile(further: str | None) -> None:
    made = Timeline(0.0)
    lines = [TRACED, further, *LOADING] if further is not None else [*LOADING, TRACED]
    for line in lines:
        made.feed(1.0, line)
    assert TRACED in made.compiled
    assert made.compiled[-1] == (further or TRACED)


def test_what_no_cache_held_is_counted_whoever_says_it() -> None:
    made = Timeline(0.0)
    made.feed(1.0, "(EngineCore pid=22) nvllm.kernels miss key=ABC name=zero_pages_kernel.json")
    made.feed(2.0, "nvllm.kernels miss key=DEF name=cuda_utils.cpython-312-x86_64-linux-gnu.so")
    made.feed(3.0, "a line about nvllm.kernels")
    assert made.missed == [
        "key=ABC name=zero_pages_kernel.json",
        "key=DEF name=cuda_utils.cpython-312-x86_64-linux-gnu.so",
    ]


def test_what_is_compiled_for_a_missing_kernel_is_known() -> None:
    made = Timeline(0.0)
    made.feed(5.0, "(EngineCore pid=22) nvllm.kernels miss key=ABC name=conv.json")
    made.feed(5.5, "nvllm.kernels miss key=DEF name=conv.autotune.json")
    assert made.kernels["ABC"] == MissingKernel("ABC", "conv.json", 5.0)
    made.feed(6.0, 'nvllm.kernels compiled {"arguments": "n: 1", "key": "ABC", "name": "conv"}')
    assert made.kernels == {
        "ABC": MissingKernel("ABC", "conv", 6.0, "n: 1"),
        "DEF": MissingKernel("DEF", "conv.autotune.json", 5.5),
    }
    made.feed(7.0, 'nvllm.kernels compiled {"arguments": "", "key": "GHI", "name": "conv", "requests": ["cmpl-a-0"]}')
    assert made.kernels["GHI"] == MissingKernel("GHI", "conv", 7.0, "", ("cmpl-a-0",))


@pytest.mark.parametrize(
    "document",
    [
        "{}",
        "{",
        '{"key": "ABC"',
        '{"key": "ABC", "name": "conv"}',
        '{"key": "ABC", "name": "conv", "arguments": "", "requests": 1}',
    ],
)
def test_a_line_about_a_kernel_that_is_cut_off_is_ignored(document: str) -> None:
    made = Timeline(0.0)
    made.feed(1.0, f"nvllm.kernels compiled {document}")
    assert made.kernels == {}


@pytest.mark.parametrize("key", ['"\\ud800"', "5" * 5000, "[" * 20_000])
def test_a_report_that_could_not_be_written_again_is_none(key: str) -> None:
    """The state of an instance has the kernels: half a surrogate pair in it would end the supervisor."""
    found = Timeline(0.0)
    found.feed(1.0, f'nvllm.kernels compiled {{"key": {key}, "name": "zero", "arguments": "i32"}}')
    assert found.kernels == {}


def test_a_number_of_tokens_that_json_cannot_hold() -> None:
    found = Timeline(0.0)
    found.feed(1.0, f"GPU KV cache size: {'9' * 30} tokens")
    assert found.kv_tokens == 2**53 - 1


def test_an_engine_that_prints_without_end_does_not_fill_the_memory() -> None:
    found = Timeline(0.0)
    for number in range(10_050):
        found.feed(1.0, f"nvllm.kernels miss key=K{number} name=zero")
    assert len(found.kernels) == len(found.missed) == 10_000


def test_a_whole_log_has_the_timeline_that_its_lines_had() -> None:
    log = (
        b"no time\n2026-11-22T10:00:00.5Z INFO Directly load AOT compilation from path /a/model\n"
        b"2026-11-22T10:00:02.5Z INFO GPU KV cache size: 52,428 tokens, Maximum\n"
        b"2026-11-22T10:00:03.5Z INFO:     Application startup complete.\n"
    )
    found = timeline.of_log(log)
    assert (found.loaded, found.kv_tokens, found.saved) == (["/a/model"], 52428, [])
    assert [(one.name, one.ended) for one in found.phases] == [("compile", 0.0), ("server", 3.0)]
    assert timeline.of_log(b"\xff\n").phases == []
