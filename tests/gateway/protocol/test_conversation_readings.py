"""All text of a JSON value is read, and so is what it says once it is put together or unescaped."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.conversation import as_names, query_readings, readings
from policies.pii.scan import PiiScanner

SCANNER = PiiScanner(["US", "GB"])


def test_strings_come_in_reading_order_from_any_depth():
    value = {"a": ["1", {"b": "2", "c": [["3"]]}], "d": None, "e": 4, "f": "5"}
    assert list(readings(value)) == ["1", "2", "3", "5"]
    deep: object = "bottom"
    for _ in range(100_000):
        deep = [deep]
    assert list(readings(deep)) == ["bottom"]


def text(content: str) -> dict[str, str]:
    return {"type": "text", "text": content}


def message(role: str, content: object) -> dict[str, object]:
    return {"role": role, "content": content}


def called(arguments: str) -> dict[str, object]:
    return {"tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"metadata": {"ada@example.com": True}}, "email"),
        ({"123-45-6789": 1}, "ssn"),
        ({"properties": {"4111111111111111": {"type": "string"}}}, "card"),
        ({"ada\\u0040example.com": 1}, "email"),
        (called(json.dumps({"to": "ada@example.com"})), "email"),
        (called('{"to": "ada\\u0040example.com"}'), "email"),
        (called('{"to": "\\u0061da\\x40example.com"}'), "email"),
        (called(json.dumps({"inner": json.dumps({"to": "ad\u00e4@example.com"})})), "email"),
        (called('{"inner": "{\\"to\\": \\"ada\\\\u0040example.com\\"}"}'), "email"),
        (called('{"text": "tel\\n4155552671\\n"}'), "phone"),
        (called('{"\\u0034111111111111111": 1}'), "card"),
        ({"content": "mailto:ada%40example.com"}, "email"),
        ({"content": "ada&#64;example.com and ada&#x40;example.com"}, "email"),
        ({"content": [text("ada@exam"), text("ple.com")]}, "email"),
        ({"content": [text("4111 1111 "), text("1111 1111")]}, "card"),
        ([message("user", "ada@exam"), message("user", "ple.com")], "email"),
        ([message("user", "4111 1111"), message("user", "1111 1111")], "card"),
        ([message("user", "4111"), *[message("user", "1111")] * 3], "card"),
        (
            [message("user", "ada@exam"), message("assistant", "yes?"), message("user", "ple.com")],
            "email",
        ),
        (
            [
                message("user", "It is " + "long " * 100 + "123-"),
                message("user", [text("45-67"), text("89, " + "long " * 100)]),
            ],
            "ssn",
        ),
        ([message("user", ["ada@exam", "ple.com"])], "email"),
        ({"content": "ada@exam", "reasoning_content": "ple.com"}, "email"),
        ({"content": "ple.com", "reasoning": "write to ada@exam"}, "email"),
        ({"bWFpbCBhYWFhYkBleGFtcGxlLmNvbSAu": 1}, "email"),
        ({"output": [{"content": [{"type": "output_text", "text": "ada@example.com"}]}]}, "email"),
        ({"choices": [{"message": {"refusal": "ada@example.com"}}]}, "email"),
        ({"type": "reasoning", "summary": [text("ada@example.com")]}, "email"),
    ],
)
def test_personal_data_is_found_wherever_it_can_be_read(value, kind):
    assert SCANNER.scan("\n".join(readings(value))) == kind


@pytest.mark.parametrize(
    "value",
    [
        {"role": "user", "content": "What is 2 + 2?", "logit_bias": {"50256": -100, "1234567": 1}},
        {"content": [text("part one, "), text("part two")]},
        {"content": "a \\ b, C:\\new\\table, \\frac{1}{2}, \\u00", "x1": "\\", "y": "\\\\\\"},
        {"type": "reasoning", "encrypted_content": "aB3dE5gH7jK9mN1pQ3sT5uV7"},
        {"content": "50%40 off &#65;"},
        [message("user", "What is 12345 + 67890?"), message("assistant", "80235")],
        [message("user", "I was born in 1990."), message("assistant", "Then you are 35 in 2025.")],
        {"enum": ["4111", "1111", "1111", "1111"]},
    ],
)
def test_other_text_stays_clean(value):
    assert SCANNER.scan("\n".join(readings(value))) is None


def test_sealed_reasoning_alone_is_left_out():
    assert list(readings({"encrypted_content": "sealed"})) == ["sealed"]
    assert list(readings({"type": "reasoning", "encrypted_content": ["open"]})) == [
        "reasoning",
        "open",
    ]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters() | st.sampled_from('\\u"n4')),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_values)
def test_every_string_is_among_the_readings_of_any_value(value):
    read = list(readings(value))
    stack = [value]
    while stack:
        match stack.pop():
            case str() as string:
                assert string in read
            case dict() as members:
                stack.extend(members.values())
            case list() as items:
                stack.extend(items)


# A backslash, %, & and whitespace may be read in another way than they were meant.
plain_text = st.text(st.characters(min_codepoint=32, exclude_characters='\\%&"/', codec="utf-8"))


@given(plain_text, st.integers(1, 3))
def test_text_escaped_up_to_three_times_is_read(plain, times):
    escaped = plain
    for _ in range(times):
        escaped = json.dumps(escaped)[1:-1]
    assert plain in readings(escaped)


@given(st.text('\\u0041n"/ ab', max_size=200))
def test_readings_are_few_and_no_longer_than_the_text(written):
    read = list(readings(written))
    assert len(read) <= 4
    assert all(len(each) <= len(written) for each in read)


@pytest.mark.parametrize(
    "name",
    [
        "user_2NNEqL2nrIRdJ194ndJqAHwEfxC",
        "Mixtral-8x7B-Instruct-v0.1-GPTQ",
        "org/aB3dE5gH7jK9mN1pQ3sT5uV7",
        "550e8400-e29b-41d4-a716-446655440000",
        "u-123456",
        "t2ikPEB7qid5mD-WoiP4Rz3f_-UsGFBvqxw6KGp6d8A",
        "customer-8326470533-pctrhysuxvpr",
        "google-oauth2|641567609789682983120",
    ],
)
def test_names_may_look_random(name: str):
    assert SCANNER.scan(as_names(name)) is None


@pytest.mark.parametrize(
    "name",
    [
        "ada@example.com",
        "averyveryverylongname2@example.com",
        "4111111111111111",
        "415-555-2671",
        "GB82WEST12345698765432",
        "gb82-west-1234-5698-7654-32",
        "4111-1111-1111-1111-110",
        "sk-proj-abcdefghijklmnop1234",
        "YWRhQGV4YW1wbGUuY29t",
        "+14155552671_customer_42",
        "ada%40examplecorporation.com",
        "ada\\x40examplecorporation.com",
        "tel:+14155552671-customer-one",
        "phone=+442079460958-account",
        "+44-20-7946-0958-primary",
        "(020)7946-0958-customer-1",
    ],
)
def test_names_that_are_personal_data_are_found(name: str):
    assert SCANNER.scan(as_names(name)) is not None


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("for=ada%40example.com", "email"),
        ("ada@example.com", "email"),
        ("tel=+44+20+7946+0958", "phone"),
        ("card=4111+1111+1111+1111", "card"),
        ("a=1&password=hunter2hunter2", "secret"),
        ("key=ada@example.com", "email"),
        ("from=%2B14155552671_customer_42", "phone"),
        ("api-version=2024-10-01-preview&key=aB3dE5gH7jK9mN1pQ3sT5uV7", None),
        ("trace=aB3dE5gH7jK9mN1pQ3sT5uV7", None),
        ("", None),
    ],
)
def test_a_query_string_is_read_but_for_the_key_it_is_sent_with(query: str, kind: str | None):
    assert SCANNER.scan("\n".join(query_readings(query))) == kind


def test_borders_of_many_texts_are_no_longer_than_the_texts():
    parts = [message("user", "x" * 999 + "@") for _ in range(1000)]
    (together,) = (each for each in readings(parts) if each.startswith("x" * 40 + "\n"))
    assert len(together) == 81 * 1000
    assert sum(map(len, readings(parts))) < 1.2 * 1000 * 1000


def test_words_alone_are_not_put_together():
    said = [message("user", "How are you?"), message("assistant", "Fine.")]
    assert sorted(readings(said)) == ["Fine.", "How are you?", "assistant", "user"]
