"""The rounds of requests by which a bless finds the kernels that requests need."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from nvllm.core import workload
from nvllm.core.workload import Bounds

bounds = st.builds(
    Bounds,
    longest=st.integers(2, 5000),
    batch=st.integers(1, 40),
    chunk=st.none() | st.integers(1, 4096),
    graphs=st.lists(st.integers(1, 64), max_size=8).map(lambda found: tuple(sorted(found))),
    adapters=st.sampled_from([(), ("support",), ("support", "sales")]),
)


def kind(number: int) -> str:
    return "one" if number == 1 else "divisible" if number % workload.DIVISOR == 0 else "other"


@settings(max_examples=15)
@given(bounds, st.integers(0, 50))
def test_the_engine_takes_every_request(of: Bounds, number: int) -> None:
    for step in workload.steps(of, number):
        assert 1 <= len(step) <= of.batch
        for one in step:
            assert one.prompt
            assert one.answer >= 1
            assert len(one.prompt) + one.answer <= of.longest


@given(bounds)
def test_every_length_that_triton_tells_apart_is_asked_in_each_range(of: Bounds) -> None:
    asked, longest = set(workload.lengths(of)), of.longest - 1
    assert {1, longest} <= asked
    low = 1
    while low <= longest:
        within = range(low, min(2 * low, longest + 1))
        assert {kind(one) for one in within} == {kind(one) for one in within if one in asked}
        low *= 2


@settings(max_examples=15)
@given(bounds, st.integers(0, 50))
def test_a_round_has_what_it_says(of: Bounds, number: int) -> None:
    found = workload.steps(of, number)
    alone = {len(step[0].prompt) for step in found if len(step) == 1}
    assert set(workload.lengths(of)) <= alone
    sizes = {len(step) for step in found}
    assert {1, of.batch} <= sizes
    assert {one for one in of.graphs if one <= of.batch} <= sizes
    assert {str(one) for one in workload.SETTINGS} <= {str(one.settings) for step in found for one in step}
    prompts = [one.prompt for step in found for one in step]
    assert len(set(prompts)) < len(prompts)  # a prompt that was asked before


@settings(max_examples=15)
@given(bounds, st.integers(0, 50))
def test_a_round_is_the_same_each_time_and_the_next_one_is_not(of: Bounds, number: int) -> None:
    assert workload.steps(of, number) == workload.steps(of, number)
    assert workload.steps(of, number) != workload.steps(of, number + 1)


def test_a_long_prompt_is_computed_in_several_steps_beside_others() -> None:
    of = Bounds(4096, 4, 512, (1, 2, 4))
    assert {511, 512, 513, 1023, 1024, 1025} <= set(workload.lengths(of))
    assert any({1, 4095} <= {len(one.prompt) for one in step} for step in workload.steps(of, 0))


def test_prompts_of_other_requests_begin_otherwise() -> None:
    of = Bounds(128, 2, None, (1, 2))
    found = [one.prompt[:3] for number in (0, 1) for step in workload.steps(of, number) for one in step]
    long = [start for start in found if len(start) == 3]
    assert len(set(long)) > 0.7 * len(long)  # less those that are repeated on purpose


@settings(max_examples=15)
@given(bounds, st.integers(0, 50))
def test_each_adapter_is_asked_for_every_length_and_in_batches(of: Bounds, number: int) -> None:
    steps = workload.steps(of, number)
    for adapter in of.adapters:
        alone = {len(step[0].prompt) for step in steps if [one.adapter for one in step] == [adapter]}
        assert set(workload.lengths(of)) <= alone
        (answered,) = [step for step in workload.sampling_steps(of, number) if step[0].adapter == adapter]
        assert len(answered) == 1
        if of.batch > 1 and of.longest >= 16:
            joint = [step for step in workload.joint_steps(of, number) if step.requests[0].adapter == adapter]
            assert {len(step.requests[0].prompt) for step in joint} == set(workload.lengths(of))
    mixed = {len(step) for step in steps if {one.adapter for one in step} >= {None, *of.adapters}}
    assert {size for size in workload.batches(of) if size > len(of.adapters)} <= mixed
    named = {one.adapter for step in steps for one in step}
    assert named == {None, *of.adapters}


def test_the_bounds_of_a_profile() -> None:
    said: dict[str, bool | int | float | str] = {
        "max-num-seqs": 4,
        "max-num-batched-tokens": 64,
        "compilation-config.cudagraph_capture_sizes": "[2, 1]",
    }
    assert workload.bounds(said, 128) == Bounds(128, 4, 64, (1, 2))
    assert workload.bounds(said, 128, ("support",)).adapters == ("support",)
    default = workload.bounds({}, 128)
    assert (default.batch, default.chunk) == (256, None)
    assert default.graphs[:5] == (1, 2, 4, 8, 16)


@settings(max_examples=15)
@given(bounds, st.integers(0, 3))
def test_joint_steps_are_what_the_engine_takes_at_once(of: Bounds, number: int) -> None:
    for step in workload.joint_steps(of, number):
        answers = [int(str(one.settings.get("n", 1))) for one in (*step.running, *step.requests)]
        assert len(step.running) + len(step.requests) >= 2
        assert sum(answers) <= of.batch
        for one in (*step.running, *step.requests):
            assert one.prompt
            assert one.answer >= 1
            assert len(one.prompt) + one.answer <= of.longest
            assert workload.UNSTREAMED not in one.settings


def test_prompts_are_computed_behind_states_that_16_divides_and_others() -> None:
    of = Bounds(512, 32, None, (1, 2, 4))
    first, second = (workload.joint_steps(of, number) for number in (0, 1))
    assert {len(step.running) % 4 for step in first} == {0, 1, 2, 3}  # a state's index has four bytes
    assert {len(one.prompt) for step in first for one in step.requests} >= set(workload.lengths(of))
    guided = {
        (len(step.requests), len(step.running))
        for step in first
        if any("structured_outputs" in one.settings for one in step.requests)
    }
    assert guided == {(1, 1), (2, 0), (2, 1), (16, 0), (16, 1), (32, 0)}
    assert [step.name for step in first] != [step.name for step in second]
    assert workload.joint_steps(of, 1) == second
    assert workload.joint_steps(Bounds(512, 1, None, ()), 0) == ()
