"""What upstreams take of that which the gateway adds: what is suspected, and for how long."""

import pytest

from gateway.upstream.request import LONGEST_MODEL, MOST_MODELS
from gateway.upstream.taken import KNOWN_SECONDS, NOTHING, Added, Taken, Taker

WHO = Taker("gpu-1", "m")
USAGE, HINTS, VOLATILE = (frozenset({one}) for one in Added)
ALL = USAGE | HINTS | VOLATILE
ALTERNATE = b'{"error": "Conversation roles must alternate user/assistant/user/assistant/..."}'


@pytest.mark.parametrize(
    ("status", "answer", "suspects"),
    [
        (400, b"Unrecognized request argument: stream_options", USAGE),
        (422, b'{"loc": ["body", "prompt_cache_key"]}', HINTS),
        (400, ALTERNATE, VOLATILE),
        (400, b"deepseek-reasoner does not support successive user messages", VOLATILE),
        (400, b"stream_options and cache_control are unknown", USAGE | HINTS),
        (400, b"Bad request", ALL),
        (500, ALTERNATE, VOLATILE),
        (500, b"cache_control: internal error", NOTHING),
        (500, b"internal error", USAGE),
        (500, b"stream_options", USAGE),
        (404, ALTERNATE, NOTHING),
        (200, ALTERNATE, NOTHING),
    ],
)
def test_what_an_answer_names_is_suspected_first_then_what_was_never_taken(
    status: int, answer: bytes, suspects: frozenset[Added]
):
    assert Taken().suspects(WHO, ALL, status, answer, 0.0) == suspects


def test_what_was_not_sent_is_not_suspected():
    assert Taken().suspects(WHO, HINTS, 500, b"internal error", 0.0) == NOTHING
    assert Taken().suspects(WHO, NOTHING, 400, ALTERNATE, 0.0) == NOTHING


def test_what_is_taken_is_suspected_only_where_it_is_named_until_it_is_long_ago():
    taken = Taken()
    taken.note(WHO, ALL, 0.0, takes=True)
    now = KNOWN_SECONDS - 1
    assert taken.suspects(WHO, ALL, 400, b"Bad request", now) == NOTHING
    assert taken.suspects(WHO, ALL, 400, ALTERNATE, now) == VOLATILE
    assert taken.suspects(Taker("gpu-2", "m"), HINTS, 400, b"Bad", now) == HINTS
    assert taken.suspects(WHO, HINTS, 400, b"Bad request", KNOWN_SECONDS) == HINTS
    assert taken.refused("m", now) == {}


def test_what_one_upstream_refuses_for_one_model_is_left_out_there_and_for_a_while():
    taken = Taken()
    taken.note(WHO, HINTS, 0.0, takes=False)
    taken.note(WHO, USAGE, 5.0, takes=False)
    taken.note(Taker("gpu-2", "m"), HINTS, 0.0, takes=True)
    assert taken.refused("m", 1.0) == {"gpu-1": HINTS | USAGE}
    assert taken.refused("other", 1.0) == {}
    assert taken.refused("m", KNOWN_SECONDS) == {"gpu-1": USAGE}
    assert taken.refused("m", KNOWN_SECONDS + 5) == {}


def test_of_too_many_models_the_first_is_forgotten():
    taken = Taken()
    for number in range(MOST_MODELS + 1):
        taken.note(Taker("gpu-1", f"m{number}"), HINTS, 0.0, takes=False)
    assert taken.refused("m0", 0.0) == {}
    assert taken.refused(f"m{MOST_MODELS}", 0.0) == {"gpu-1": HINTS}


def test_of_a_model_with_a_long_name_nothing_is_remembered():
    taken = Taken()
    for name in ("m" * LONGEST_MODEL, "m" * (LONGEST_MODEL + 1)):
        taken.note(Taker("gpu-1", name), HINTS, 0.0, takes=False)
    assert taken.refused("m" * LONGEST_MODEL, 0.0) == {"gpu-1": HINTS}
    assert taken.refused("m" * (LONGEST_MODEL + 1), 0.0) == {}


def test_a_fault_that_nobody_has_read_casts_doubt_on_what_is_not_known_to_be_taken():
    taken = Taken()
    taken.note(Taker("gpu-2", "m"), VOLATILE, 0.0, takes=True)
    for name in ("gpu-1", "gpu-2"):
        taken.doubt(Taker(name, "m"), ALL, 1.0)
    assert taken.refused("m", 1.0) == {"gpu-1": VOLATILE | USAGE, "gpu-2": USAGE}
