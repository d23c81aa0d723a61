"""Times and sizes with units: what is written is read as the same number."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.format.units import SIZE, TIME, read_size, read_time, size_text, time_text


@given(st.floats(min_value=0, max_value=1e9, allow_nan=False))
def test_a_time_is_read_as_it_was_written(seconds):
    text = time_text(seconds)
    assert read_time(text) == seconds
    assert re.fullmatch(TIME, text)


@given(st.integers(min_value=0, max_value=2**60))
def test_a_size_is_read_as_it_was_written(count):
    text = size_text(count)
    assert read_size(text) == count
    assert re.fullmatch(SIZE, text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.05, "50ms"),
        (1.5, "1.5s"),
        (90, "90s"),
        (600, "10m"),
        (86_400, "1d"),
        (604_800, "1w"),
        (9_999_999, "9999999s"),
        (0.0001, "0.0001s"),
    ],
)
def test_a_time_has_the_largest_whole_unit(seconds, text):
    assert time_text(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0B"), (1000, "1000B"), (2048, "2KiB"), (2**25, "32MiB"), (2**40, "1TiB")],
)
def test_a_size_has_the_largest_whole_unit(count, text):
    assert size_text(count) == text


@pytest.mark.parametrize(
    ("text", "bare", "seconds"), [("10", "m", 600), ("10s", "m", 10), ("5", "ms", 0.005)]
)
def test_a_plain_number_has_the_unit_of_its_place(text, bare, seconds):
    assert read_time(text, bare) == seconds


@pytest.mark.parametrize("text", ["", "s", "1 0s", "5 minutes", "inf", "nan", "1,5s", "-5s"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ValueError, match="expected a time such as 500ms"):
        read_time(text)


@pytest.mark.parametrize("text", ["", "B", "1.5.2M", "1ib", "MiB", "5 pages", "-1M"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="expected a size such as 512MiB"):
        read_size(text)
