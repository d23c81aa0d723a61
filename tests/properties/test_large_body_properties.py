"""JSON read in pieces is what the parser makes of the whole."""

import json

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from backend.server.large_body import RepeatedKeyError, parse_in_pieces

TEXT = st.text(st.characters(codec="utf-8"), max_size=60)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(TEXT, inner, max_size=12),
    max_leaves=40,
)
PIECES = st.integers(16, 200)


def read(raw, piece):
    """What is read, or None for what is no JSON."""
    try:
        return [parse_in_pieces(raw, orjson.loads, piece=piece)]
    except RepeatedKeyError:
        raise
    except ValueError:
        return None


def parsed(raw):
    try:
        return [orjson.loads(raw)]
    except ValueError:
        return None


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(VALUES, PIECES, st.booleans(), st.sampled_from([None, 0, 3]))
def test_what_is_written_is_read(value, piece, escaped, indent):
    raw = json.dumps(value, ensure_ascii=escaped, indent=indent).encode()
    assert read(raw, piece) == [orjson.loads(raw)]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from([*'[]{},:"1a\\ud8de0\n ', "true", '"k":', '"ä"']), max_size=60),
    PIECES,
)
@example(list("[1,]"), 16)
@example(list("[,1]"), 16)
@example(["[", "1" * 20, ",", "2" * 20, ",", "]"], 16)
@example(["{", '"k":', "1" * 30, ",", "}"], 16)
@example(["[", " " * 40, "]"], 16)
@example(["[1", " " * 40, ",", " " * 40, "2]", " " * 40], 16)
@example(['["', "\\ud83d\\ude00" * 8, '"]'], 16)
@example(['["', "ä€😀" * 8, '"]'], 16)
@example(['["', "\\", '"', "x" * 40, '"]'], 16)
@example(["[[[[", "1" * 30, "]]}]"], 16)
def test_what_no_parser_reads_is_refused_and_nothing_else(tokens, piece):
    raw = "".join(tokens).encode()
    try:
        assert read(raw, piece) == parsed(raw)
    except RepeatedKeyError:
        pairs = []
        json.loads(raw, object_pairs_hook=pairs.append)
        assert any(len(dict(each)) < len(each) for each in pairs)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(VALUES, PIECES, st.data())
def test_damage_is_found_as_the_parser_finds_it(value, piece, data):
    raw = bytearray(json.dumps(value, ensure_ascii=False).encode())
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    damaged = bytes(raw)
    try:
        assert read(damaged, piece) == parsed(damaged)
    except RepeatedKeyError:
        assert parsed(damaged) is not None


@pytest.mark.parametrize("gap", [0, 10, 100])
def test_a_key_that_comes_again_in_another_piece_is_told(gap):
    raw = b'{"k":1,"fill":"' + b"x" * gap + b'","list":[' + b"1," * gap + b'1],"k":2}'
    seen = []

    def parse(piece):
        value = json.loads(piece, object_pairs_hook=lambda pairs: seen.append(pairs) or dict(pairs))
        if any(len(dict(pairs)) < len(pairs) for pairs in seen):
            raise RepeatedKeyError("k")
        return value

    with pytest.raises(RepeatedKeyError, match="k"):
        parse_in_pieces(raw, parse, piece=32)
