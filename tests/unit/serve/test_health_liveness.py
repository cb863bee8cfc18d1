"""Liveness: metrics as vLLM writes them, and the looks that tell an engine that works from one that is stuck."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.serve import health
from nvllm.serve.health import METRICS_INTERVAL, EngineMetrics, Metrics, StallDetector
from support.plansamples import FrontEnd, front_end

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


def watched(*looks: Metrics, every: float = METRICS_INTERVAL) -> float:
    detector = StallDetector()
    for number, look in enumerate(looks):
        detector.observe(1000.0 + number * every, look)
    return detector.stuck


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
    assert watched(BUSY, {}, {}, {}) == 0.0
    assert watched(BUSY, {}, {}, BUSY) == METRICS_INTERVAL, "of the time without an answer only the last step counts"


def test_one_engine_of_two_is_enough() -> None:
    looks = [{"0": BUSY["0"], "1": EngineMetrics(1.0, (float(number), 0.0, 0.0))} for number in range(5)]
    assert watched(*looks) == 4 * METRICS_INTERVAL


def test_a_supervisor_that_was_stopped_saw_nothing_meanwhile() -> None:
    assert watched(BUSY, BUSY, every=3600.0) == 2 * METRICS_INTERVAL
