"""What the engine records of itself, and what becomes of it on /metrics."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from backend.scheduler.sequence import ScheduledSequence, Sequence
from backend.scheduler.stats import (
    Distribution,
    EngineStats,
    Figures,
    MemoryUse,
    Recorder,
    Recording,
    SequenceTimes,
)
from backend.server.metrics import Metrics

STATS = EngineStats(1, 2, 3, 4, 5, 6, 7)
LABELS = ("phase", "batch_size", "reason", "tenant", "le", "version", "model")


def samples(stats):
    page = Metrics(lambda: stats, model="m").render().decode()
    return {
        (
            sample.name.removeprefix("refrain_engine_"),
            *(sample.labels[label] for label in LABELS if label in sample.labels),
        ): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def recorded(figures):
    return samples(replace(STATS, recording=figures.read()))


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 5))))
def test_a_value_is_in_the_first_bucket_whose_bound_it_does_not_exceed(observed):
    read = Distribution((0.5, 1.0, 50.0))
    for value, times in observed:
        read.observe(value, times)
    expected = [0, 0, 0, 0]
    for value, times in observed:
        expected[(value > 0.5) + (value > 1.0) + (value > 50.0)] += times
    assert read.counts == expected
    assert math.isclose(read.total, sum(value * times for value, times in observed), abs_tol=1e-9)


class Loop:
    """A recorder with sequences whose tokens are only counted."""

    def __init__(self):
        self.recorder = Recorder()

    def arrive(self, at=0.0, prompt=5, admitted=None):
        sequence = Sequence(0, [1] * prompt, max_length=1000)
        sequence.admitted = admitted
        self.recorder.arrived([sequence], at)
        return sequence

    def step(self, now, *sequences, began=None):
        for sequence in sequences:
            sequence.tokens.append(1)
        step = tuple(ScheduledSequence(sequence, 10, 1, samples=True) for sequence in sequences)
        self.recorder.completed(step, now if began is None else began, now)

    def found(self):
        return samples(replace(STATS, recording=self.recorder.read()))


def test_a_sequences_times():
    loop = Loop()
    sequence = loop.arrive(at=10.0, prompt=100, admitted=10.4)
    for now in (12.0, 12.5, 14.0):
        loop.step(now, sequence)
    for _ in range(2):
        loop.recorder.ended(sequence, "stop")
    found = loop.found()
    for name, count, total in (
        ("time_to_first_token_seconds", 1, 2.0),
        ("queue_seconds", 1, 0.4),
        ("prefill_seconds", 1, 1.6),
        ("inter_token_latency_seconds", 2, 2.0),
        ("time_per_output_token_seconds", 1, 1.0),
        ("decode_seconds", 1, 2.0),
        ("sequence_prompt_tokens", 1, 100),
        ("sequence_generation_tokens", 1, 3),
    ):
        assert found[f"{name}_count",] == count
        assert found[f"{name}_sum",] == pytest.approx(total)
    assert found["sequences_finished_total", "stop"] == 1
    assert found["inter_token_latency_seconds_bucket", "0.5"] == 1
    assert found["inter_token_latency_seconds_bucket", "2.5"] == 2


def test_a_sequence_that_ended_before_its_first_token_has_no_latencies():
    loop = Loop()
    loop.recorder.ended(loop.arrive(admitted=0.5), "abort")
    found = loop.found()
    assert found["sequences_finished_total", "abort"] == 1
    assert found["decode_seconds_count",] == found["time_per_output_token_seconds_count",] == 0
    assert found["sequence_generation_tokens_sum",] == 0


def test_a_sequence_that_never_ran_ends_by_a_refusals_reason_or_uncounted():
    loop = Loop()
    loop.recorder.ended(loop.arrive(), "abort")
    loop.recorder.ended(loop.arrive(), "queue_timeout")
    found = loop.found()
    assert ("sequences_finished_total", "abort") not in found
    assert found["sequences_finished_total", "queue_timeout"] == 1
    assert found["sequence_prompt_tokens_count",] == 1


def test_a_step_that_was_in_flight_when_a_sequence_ended_is_not_a_token_of_it():
    loop = Loop()
    sequence, other = loop.arrive(), loop.arrive()
    loop.step(1.0, sequence, other)
    loop.recorder.ended(sequence, "stop")
    loop.step(2.0, sequence, other)
    loop.step(3.0, other)
    found = loop.found()
    assert found["inter_token_latency_seconds_count",] == 2
    assert found["time_to_first_token_seconds_count",] == 2


@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 5), min_size=1), st.none() | st.integers(0, 5)),
        max_size=25,
    )
)
def test_gaps_are_those_of_each_sequence_whoever_shares_its_steps(steps):
    loop = Loop()
    everyone = [loop.arrive() for _ in range(6)]
    first, last, gaps, decode = {}, {}, [], []
    ended = set()
    for now, (members, end) in enumerate(steps, 1):
        loop.step(float(now), *(everyone[index] for index in members))
        alive = members - ended
        gaps += [now - last[index] for index in alive if index in last]
        last |= dict.fromkeys(alive, now)
        first = dict.fromkeys(alive, now) | first
        if end is not None and end not in ended:
            ended.add(end)
            loop.recorder.ended(everyone[end], "stop")
            decode += [last[end] - first[end]] if end in last else []
    found = loop.found()
    assert found["inter_token_latency_seconds_count",] == len(gaps)
    assert found["inter_token_latency_seconds_sum",] == sum(gaps)
    assert found["time_to_first_token_seconds_count",] == len(last)
    assert found["decode_seconds_sum",] == sum(decode)
    assert found["decode_seconds_count",] == len(decode)


def test_tokens_after_a_client_left_are_those_of_steps_that_came_later():
    loop = Loop()
    sequence, other = loop.arrive(), loop.arrive()
    loop.step(1.0, sequence, other)
    loop.step(2.0, sequence, other)
    sequence.num_steps_in_flight = 1
    loop.recorder.client_left(sequence, at=1.5)
    loop.recorder.ended(sequence, "abort")
    sequence.num_steps_in_flight = 0
    loop.step(3.0, sequence, other)  # it was in flight
    loop.step(4.0, other)
    assert loop.recorder.num_tokens_after_disconnect == 2


def test_who_left_during_a_step_that_failed_is_forgotten():
    recorder = Recorder()
    gone, other = Sequence(1, [1, 2], 9), Sequence(2, [1, 2], 9)
    recorder.arrived((gone, other), 0.0)
    gone.num_steps_in_flight = other.num_steps_in_flight = 1
    recorder.client_left(gone, 1.0)
    recorder.ended(gone, "abort")
    gone.num_steps_in_flight = other.num_steps_in_flight = 0
    recorder.completed((ScheduledSequence(other, 0, 2, True),), 1.0, 2.0)
    assert not recorder._left
    assert recorder.num_tokens_after_disconnect == 0


def test_everybody_has_an_end_when_the_engine_starts_over():
    loop = Loop()
    sequence = loop.arrive()
    loop.arrive()
    loop.step(1.0, sequence)
    loop.recorder.all_ended("error")
    loop.recorder.ended(sequence, "stop")
    assert loop.found()["sequences_finished_total", "error"] == 2
    assert ("sequences_finished_total", "stop") not in loop.found()


@pytest.mark.parametrize(
    ("decoding", "prefilling", "label"),
    [
        (1, 0, ("decode", "1")),
        (0, 2, ("prefill", "2")),
        (2, 1, ("mixed", "3-4")),
        (5, 0, ("decode", "5-8")),
        (512, 0, ("decode", "257-512")),
        (513, 0, ("decode", "513-")),
    ],
)
def test_steps_by_phase_and_batch_size(decoding, prefilling, label):
    figures = Figures()
    figures.step(decoding, prefilling, 40, 0.003)
    found = recorded(figures)
    assert found["step_seconds_sum", *label] == 0.003
    assert found["step_seconds_bucket", *label, "0.005"] == 1
    assert found["step_seconds_bucket", *label, "0.0025"] == 0
    assert found["batch_size_sum",] == decoding + prefilling
    assert found["step_tokens_sum",] == 40


def some_figures(seed):
    figures = Figures()
    times = SequenceTimes(arrived=0.0)
    figures.first_token(times, None, float(seed))
    figures.next_tokens(1, 1.0)
    figures.finished(times, "stop" if seed % 2 else "length", seed, 2)
    figures.step(seed, 0, seed, 0.1)
    return figures


def test_an_engine_that_takes_anothers_place_goes_on_counting():
    first = replace(STATS, recording=some_figures(1).read(), prefix_hits=16, restarts=1)
    second = replace(STATS, recording=some_figures(2).read(), running=0, memory=MemoryUse(5))
    both = samples(second.following(first))
    assert both["sequences_running",] == 0
    assert both["resident_bytes",] == 5
    assert both["preemptions_total",] == 10
    assert both["prefix_cache_hits_total",] == 16
    assert both["restarts_total",] == 1
    assert both["time_to_first_token_seconds_sum",] == 3
    assert both["sequences_finished_total", "stop"] == 1
    assert both["sequences_finished_total", "length"] == 1
    assert both["step_seconds_count", "decode", "1"] == 1
    assert both["step_seconds_count", "decode", "2"] == 1


def test_recordings_add_up_in_any_order():
    one, two, three = (some_figures(seed).read() for seed in (1, 2, 3))
    assert (one + two) + three == one + (two + three)
    assert Recording() + one == one + Recording() == one


def test_tenants_are_the_ten_largest_and_the_rest():
    tenants = (("other", 3), ("", 50), *((f"hash{number:02}", number) for number in range(1, 21)))
    found = {
        key[1]: value
        for key, value in samples(replace(STATS, tenants=tenants)).items()
        if key[0] == "prefix_cache_blocks"
    }
    assert found == {
        "shared": 50,
        **{f"hash{number}": number for number in range(12, 21)},
        "other": 3 + sum(range(1, 12)),
    }


def test_labels_are_bounded_whatever_happens():
    figures = Figures()
    for size in range(1, 2000):
        for prefilling in (0, size // 2, size):
            figures.step(size - prefilling, prefilling, size, 0.01)
    labels = {key[1:3] for key in recorded(figures) if key[0] == "step_seconds_count"}
    assert len(labels) <= 3 * 11


def test_a_figure_that_the_page_does_not_know_is_shown_by_its_name():
    observed = Distribution((1.0,))
    observed.observe(0.5)
    recording = Recording({("new_seconds", ("a",)): observed}, {("new_events", ()): 3})
    found = samples(replace(STATS, recording=recording))
    assert found["new_seconds_count",] == 1
    assert found["new_events_total",] == 3
    assert found["sequences_running",] == 1
