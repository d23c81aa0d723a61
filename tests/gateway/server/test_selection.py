"""What the operator selects, and what is refused because it is not clear."""

from dataclasses import replace

import pytest

from gateway.cache.stores.conformance import example_entry
from gateway.server.admin.operations import Selection, parse_selection, read_hash
from gateway.server.admin.recorded_request import InvalidFieldError

KEY, SCOPE = b"k" * 32, b"s" * 32
ENTRY = replace(example_entry(KEY), scope=SCOPE, model="gpt-4o", tags=("faq", "eu"), rule="prices")


@pytest.mark.parametrize(
    "given",
    [
        {"key": KEY.hex()},
        {"scope": SCOPE.hex()},
        {"model": "gpt-4o"},
        {"model": "gpt-*"},
        {"tag": "eu"},
        {"rule": "prices"},
        {"all": True},
        {"rule": "prices", "tag": "faq", "model": "*"},
    ],
)
def test_an_entry_is_selected(given):
    assert parse_selection(given).holds(ENTRY)


@pytest.mark.parametrize(
    "given",
    [
        {"key": SCOPE.hex()},
        {"scope": KEY.hex()},
        {"model": "gpt-4"},
        {"model": "GPT-4o"},
        {"tag": "e"},
        {"rule": "price"},
        {"rule": "prices", "tag": "us"},
    ],
)
def test_an_entry_is_not_selected(given):
    assert not parse_selection(given).holds(ENTRY)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "all"),
        ({"all": False}, "all"),
        ({"all": "yes"}, "all"),
        ({"all": True, "tag": "faq"}, "all"),
        ({"tags": "faq"}, "tags"),
        ({"tag": ""}, "tag"),
        ({"tag": ["faq"]}, "tag"),
        ({"model": None}, "model"),
        ({"key": "abc"}, "key"),
        ({"key": "z" * 64}, "key"),
        ({"scope": 5}, "scope"),
    ],
)
def test_what_is_not_a_selection_names_its_field(given, field):
    with pytest.raises(InvalidFieldError) as told:
        parse_selection(given)
    assert told.value.field == field


def test_a_selection_of_nothing_in_particular_holds_for_all():
    assert Selection().holds(ENTRY)
    assert read_hash("key", KEY.hex()) == KEY
