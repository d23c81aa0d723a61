"""What the engine records of itself, and what becomes of it on /metrics."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from backend.core.figures import Figures, Histogram, Recording, SequenceTimes
from backend.core.types import EngineStats, MemoryUse
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
    histogram = Histogram((0.5, 1.0, 50.0))
    for value, times in observed:
        histogram.observe(value, times)
    read = histogram.read()
    expected = [0, 0, 0, 0]
    for value, times in observed:
        expected[(value > 0.5) + (value > 1.0) + (value > 50.0)] += times
    assert list(read.counts) == expected
    assert math.isclose(read.total, sum(value * times for value, times in observed), abs_tol=1e-9)


def test_a_sequences_times():
    figures = Figures()
    times = SequenceTimes(arrived=10.0, admitted=10.4)
    for now in (12.0, 12.5, 14.0):
        figures.tokens([times], now)
    figures.finished(times, "stop", 100)
    found = recorded(figures)
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
    figures = Figures()
    figures.finished(SequenceTimes(arrived=0.0), "abort", 5)
    found = recorded(figures)
    assert found["sequences_finished_total", "abort"] == 1
    assert found["decode_seconds_count",] == found["time_per_output_token_seconds_count",] == 0
    assert found["sequence_generation_tokens_sum",] == 0


@given(st.lists(st.sets(st.integers(0, 5), min_size=1), max_size=20))
def test_gaps_are_those_of_each_sequence_whoever_shares_its_steps(steps):
    figures = Figures()
    everyone = [SequenceTimes(arrived=0.0) for _ in range(6)]
    last, gaps = {}, []
    for now, members in enumerate(steps, 1):
        figures.tokens([everyone[index] for index in members], float(now))
        gaps += [now - last[index] for index in members if index in last]
        last |= dict.fromkeys(members, now)
    found = recorded(figures)
    assert found["inter_token_latency_seconds_count",] == len(gaps)
    assert found["inter_token_latency_seconds_sum",] == sum(gaps)
    assert found["time_to_first_token_seconds_count",] == len(last)


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
    figures.tokens([times], float(seed))
    figures.tokens([times], float(seed + 1))
    figures.finished(times, "stop" if seed % 2 else "length", seed)
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
