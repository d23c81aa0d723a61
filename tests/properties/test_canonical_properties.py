"""Parsing agrees with the standard library's JSON; a form stands for exactly one value."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.key import canonical_form
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.exact_json import BodyError, parse_body
from policies.decision import Endpoint

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    [":", "1.0,", '"', "\\", "a:b", "e+", ".0}", "\u2028", "é", "e\u0301"]
)
INTEGERS = st.integers() | st.sampled_from([2**53 + 1, 2**63, 2**64, 2**64 + 1, -(2**63) - 1])
FLOATS = st.floats(allow_nan=False, allow_infinity=False) | INTEGERS.filter(
    lambda number: abs(number) < 2**60
).map(float)
VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)
NEUTRAL = SPECS[Endpoint.COMPLETIONS].neutral
BODIES = st.dictionaries(TEXT, VALUES, max_size=4)


def folded(value: Any) -> Any:
    """Return a value that is equal to another's exactly if no JSON reader tells them apart."""
    match value:
        case bool():
            return ("bool", value)
        case int():
            return ("number", value)
        case float():
            return ("number", int(value) if value.is_integer() else value)
        case str():
            return ("text", value)
        case list():
            return ("list", tuple(map(folded, value)))
        case dict():
            return ("object", frozenset((key, folded(item)) for key, item in value.items()))
        case _:
            return ("null", None)


def raw(body: Any, **options: Any) -> bytes:
    return json.dumps(body, **options).encode()


@given(BODIES, st.booleans(), st.sampled_from([None, 1]))
def test_parsing_keeps_every_value(body, escaped, indent):
    parsed = parse_body(raw(body, ensure_ascii=escaped, indent=indent))
    assert folded(parsed) == folded(body)


@given(st.binary(max_size=40) | st.text('{}[]":,0123456789.eE+-\\u003a nulltrefas', max_size=40))
def test_whatever_parses_here_parses_to_the_same_value_there(text):
    data = text.encode() if isinstance(text, str) else text
    try:
        ours = parse_body(data)
    except BodyError:
        return
    theirs = json.loads(data)
    assert folded(ours) == folded(theirs)


@given(VALUES)
def test_valid_json_is_refused_only_for_not_being_an_object(value):
    data = raw(value)
    if isinstance(value, dict):
        parse_body(data)
    else:
        with pytest.raises(BodyError, match="object"):
            parse_body(data)


@given(BODIES, BODIES)
def test_forms_are_equal_exactly_if_the_values_are(one, other):
    kept = [
        folded({name: value for name, value in body.items() if name not in NEUTRAL})
        for body in (one, other)
    ]
    forms = [canonical_form(Endpoint.COMPLETIONS, parse_body(raw(body))) for body in (one, other)]
    assert (forms[0] == forms[1]) == (kept[0] == kept[1])


@st.composite
def _respelt(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw one value twice: number types changed, and key order where it does not count."""

    def again(value: Any) -> Any:
        match value:
            case bool():
                return value
            case int() if abs(value) < 2**53 and draw(st.booleans()):
                return float(value)
            case float() if value.is_integer() and abs(value) <= 1e22 and draw(st.booleans()):
                return int(value)
            case list():
                return [again(item) for item in value]
            case dict():
                return {key: again(item) for key, item in value.items()}
            case _:
                return value

    body = draw(BODIES)
    listed = {"logit_bias": draw(st.dictionaries(TEXT, INTEGERS, max_size=3))}
    shuffled = {
        "logit_bias": {
            key: listed["logit_bias"][key] for key in draw(st.permutations([*listed["logit_bias"]]))
        }
    }
    one = listed | body
    other = {key: again((shuffled | body)[key]) for key in draw(st.permutations(list(one)))}
    return one, other


@given(_respelt(), st.booleans())
def test_spelling_never_changes_the_form(pair, escaped):
    one, other = pair
    assert canonical_form(Endpoint.COMPLETIONS, parse_body(raw(one))) == canonical_form(
        Endpoint.COMPLETIONS,
        parse_body(raw(other, ensure_ascii=escaped, separators=(" ,\t", "\n: "))),
    )


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_keeps_its_value(number):
    parsed = parse_body(b'{"a":' + repr(number).encode() + b"}")["a"]
    assert parsed == number
    assert isinstance(parsed, int) == (number.is_integer() and abs(number) <= 1e22)


DIGITS = st.text("0123456789", min_size=1, max_size=18)


@st.composite
def _lexemes(draw: st.DrawFn) -> str:
    """Draw a JSON number in any spelling."""
    whole = draw(DIGITS).lstrip("0") or "0"
    fraction = draw(st.just("") | DIGITS.map(".{}".format))
    exponent = draw(st.just("") | st.integers(-290, 290).map("e{}".format))
    return draw(st.sampled_from(["", "-"])) + whole + fraction + exponent


@st.composite
def _pairs(draw: st.DrawFn) -> tuple[str, str]:
    """Draw two numbers; mostly the second is the first one in another spelling, or near it."""
    one = draw(_lexemes())
    mantissa, _, exponent = one.partition("e")
    zeros, shift = draw(st.integers(0, 3)), draw(st.integers(-3, 3))
    point = "" if "." in mantissa else "."
    longer = f"{mantissa}{point}0{'0' * zeros}e{exponent or 0}"
    shifted = f"{Decimal(mantissa).scaleb(shift):f}e{int(exponent or 0) - shift}"
    near = f"{mantissa}{draw(st.integers(1, 9))}e{exponent or 0}"
    return one, draw(st.sampled_from([longer, shifted, near, longer.upper()]) | _lexemes())


@given(_pairs())
def test_equal_numbers_share_a_form_and_others_do_not(pair):
    one, other = (
        canonical_form(Endpoint.COMPLETIONS, parse_body(f'{{"a": {each}}}'.encode()))
        for each in pair
    )
    exact = [Decimal(each) for each in pair]
    # A number of up to 15 digits is the same to all who read it; beyond that doubles are equal.
    if exact[0] == exact[1] and all(len(each.as_tuple().digits) <= 15 for each in exact):
        assert one == other
    if float(exact[0]) != float(exact[1]):
        assert one != other


@given(st.integers(-(10**300), 10**300), st.integers(-(10**300), 10**300))
def test_integers_share_a_form_only_if_all_their_digits_are_the_same(one, other):
    forms = [
        canonical_form(Endpoint.COMPLETIONS, parse_body(b'{"a":%d}' % each))
        for each in (one, one + 1, other)
    ]
    assert forms[0] != forms[1]
    assert (forms[0] == forms[2]) == (one == other)


@given(VALUES, st.booleans())
def test_a_body_without_a_duplicate_passes_whatever_its_strings_hold(value, escaped):
    text = json.dumps({"a": value}, ensure_ascii=escaped).encode()
    assert parse_body(b'{"\\u003a":' + text + b"}") == {":": parse_body(text)}


@given(st.dictionaries(TEXT, VALUES, min_size=1, max_size=4), st.data())
def test_any_duplicate_key_is_found(body, data):
    twice = data.draw(st.sampled_from(list(body)))
    members = [f"{json.dumps(key)}:{json.dumps(value)}" for key, value in body.items()]
    spelling = "".join(f"\\u{ord(c):04x}" if ord(c) < 2**16 else c for c in twice)
    member = f'"{spelling}":{json.dumps(data.draw(VALUES))}'
    members.insert(data.draw(st.integers(0, len(members))), member)
    nested = data.draw(st.booleans())
    text = "{" + ",".join(members) + "}"
    with pytest.raises(BodyError, match="more than once"):
        parse_body((f'{{"outer":[{text}]}}' if nested else text).encode())
