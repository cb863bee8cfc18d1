"""Liveness: metrics as vLLM writes them, and the looks that tell an engine that works from one that is stuck."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.spec import LOOPBACK
from nvllm.serve import health
from nvllm.serve.health import METRICS_INTERVAL, EngineMetrics, Look, Metrics, StallDetector
from support.plansamples import FrontEnd, front_end
from support.silent_fronts import WAYS

TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 1.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.03125
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 12.0
vllm:prompt_tokens_created{engine="0",model_name="tiny"} 1.7636e+09
vllm:generation_tokens_total{engine="0",model_name="tiny"} 52.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 3.0
http_requests_total{handler="/metrics",method="GET",status="2xx"} 4.0
"""


def test_what_an_engine_says() -> None:
    assert health.parse_metrics(TEXT) == {"0": EngineMetrics(1.0, (52.0, 12.0, 0.03125))}


def test_each_engine_behind_one_front_end_speaks_for_itself() -> None:
    other = TEXT.replace('engine="0"', 'engine="1"').replace(" 52.0", " 9.0").replace(" 1.0\n", " 0.0\n")
    found = health.parse_metrics(TEXT + other)
    assert found == {"0": EngineMetrics(1.0, (52.0, 12.0, 0.03125)), "1": EngineMetrics(0.0, (9.0, 12.0, 0.03125))}


@pytest.mark.parametrize("text", ["", "404 not found", "http_requests_total 4.0", TEXT.replace("running", "walking")])
def test_metrics_without_requests_say_nothing(text: str) -> None:
    assert health.parse_metrics(text) == {}


def test_a_figure_that_is_none_makes_the_whole_nothing() -> None:
    assert health.parse_metrics(TEXT.replace(" 52.0", " 5-2")) == {}


@given(st.text() | st.tuples(st.sampled_from(TEXT.splitlines()), st.text()).map("".join))
def test_no_text_makes_it_fail(text: str) -> None:
    health.parse_metrics(text)


def test_it_is_asked_over_http(front: FrontEnd) -> None:
    assert health.read_metrics(front.port) == {}, "a front end without metrics"
    front.metrics = TEXT
    assert health.read_metrics(front.port)["0"].running == 1.0


def test_nobody_answers() -> None:
    with front_end() as gone:
        port = gone.port
    assert health.read_metrics(port) == {}


# Looks

BUSY = {"0": EngineMetrics(2.0, (52.0, 12.0, 0.5))}


SILENT = Look({}, ("http://127.0.0.1:8000/health: refused",))


def detector_of(*looks: Metrics | Look, every: float = METRICS_INTERVAL) -> StallDetector:
    """Return a detector that has seen LOOKS, one EVERY so many seconds, of an engine that answered at the first."""
    detector = StallDetector(600, 1000.0)
    for number, look in enumerate(looks):
        detector.observe(1000.0 + number * every, look if isinstance(look, Look) else Look(look))
    return detector


def watched(*looks: Metrics | Look, every: float = METRICS_INTERVAL) -> float:
    return detector_of(*looks, every=every).stuck


def test_requests_that_run_and_nothing_that_moves() -> None:
    assert watched(BUSY) == 0.0
    assert watched(BUSY, BUSY) == METRICS_INTERVAL
    assert watched(*[BUSY] * 41) == 40 * METRICS_INTERVAL


@pytest.mark.parametrize("figure", range(3))
def test_anything_that_moves_is_a_sign_of_life(figure: int) -> None:
    moved = list(BUSY["0"].progress)
    moved[figure] += 0.001
    assert watched(BUSY, BUSY, {"0": EngineMetrics(2.0, tuple(moved))}) == 0.0


def test_another_number_of_requests_is_one_as_well() -> None:
    assert watched(BUSY, BUSY, {"0": EngineMetrics(1.0, BUSY["0"].progress)}) == 0.0


def test_an_engine_without_requests_may_rest() -> None:
    idle = {"0": EngineMetrics(0.0, BUSY["0"].progress)}
    assert watched(*[idle] * 100) == 0.0


def test_an_engine_that_does_not_answer_is_not_known_to_be_stuck() -> None:
    assert watched(BUSY, SILENT, SILENT, SILENT) == 0.0
    assert watched(BUSY, SILENT, SILENT, BUSY) == METRICS_INTERVAL, (
        "of the time without an answer only the last step counts"
    )


def test_one_engine_of_two_is_enough() -> None:
    looks = [{"0": BUSY["0"], "1": EngineMetrics(1.0, (float(number), 0.0, 0.0))} for number in range(5)]
    assert watched(*looks) == 4 * METRICS_INTERVAL


def test_a_supervisor_that_was_stopped_saw_nothing_meanwhile() -> None:
    assert watched(BUSY, BUSY, every=3600.0) == 2 * METRICS_INTERVAL


# Silence


def test_the_time_without_an_answer_is_silence() -> None:
    assert detector_of(BUSY, SILENT, SILENT, SILENT).silent == 3 * METRICS_INTERVAL
    assert detector_of(SILENT, SILENT, {}).silent == 0.0, "an answer without metrics is one as well"


def test_a_supervisor_that_was_stopped_does_not_blame_the_engine() -> None:
    assert detector_of(BUSY, SILENT, every=3600.0).silent == 2 * METRICS_INTERVAL
    short = StallDetector(20, 1000.0)
    short.observe(5000.0, SILENT)
    assert short.silent == 10.0, "one look after a suspend is never the whole stall timeout"


def test_how_often_it_looks() -> None:
    assert [health.interval(seconds) for seconds in (20, 60, 600)] == [5.0, 15.0, 15.0]


def test_a_front_end_that_answers(front: FrontEnd) -> None:
    assert health.look(LOOPBACK, front.port, 20) == Look({}), "healthy, without metrics"
    front.metrics, front.health = TEXT, 503
    assert health.look(LOOPBACK, front.port, 20).metrics["0"].running == 1.0
    front.metrics = None
    base = f"http://127.0.0.1:{front.port}"
    assert health.look(LOOPBACK, front.port, 20).failed == (f"{base}/metrics: HTTP 404", f"{base}/health: HTTP 503")


def test_every_way_to_be_silent() -> None:
    """Each row of the table is seen within its time; one list of all that are not."""
    wrong = []
    for name, way in WAYS.items():
        with way() as port:
            began = time.monotonic()
            seen = health.look(LOOPBACK, port, 2)
            took = time.monotonic() - began
        tried = [one.split(": ")[0] for one in seen.failed]
        expected = [f"http://127.0.0.1:{port}/metrics", f"http://127.0.0.1:{port}/health"]
        if seen.metrics or tried != expected or took > 1.5:
            wrong.append((name, seen, took))
    assert wrong == []
