"""Edits change nothing else, and with very many texts they cost no more than the size."""

import json

import pytest

from gateway.prompts.json_splice import with_field, with_values


class Counted(list):
    """A list that counts how often it is copied."""

    copies = 0

    def copy(self):
        self.copies += 1
        return list(self)


def test_what_holds_several_changed_texts_is_copied_once():
    turns = Counted({"role": "system", "content": str(number)} for number in range(4))
    body = {"model": "m", "messages": turns}
    paths = [("messages", number, "content") for number in (0, 2, 3)]
    now = with_values(body, [*((path, "new") for path in paths), (("model",), "n")])
    assert [turn["content"] for turn in now["messages"]] == ["new", "1", "new", "new"]
    assert (now["model"], turns.copies) == ("n", 1)
    assert now["messages"][1] is turns[1]
    assert body == {"model": "m", "messages": turns}
    assert [turn["content"] for turn in turns] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("raw", "salted"),
    [
        (b'{"model":"m"}', b'{"model":"m","cache_salt":"S"}'),
        (b'{ "model" : "m" \n}\n ', b'{ "model" : "m" \n,"cache_salt":"S"}\n '),
        (b"{}", b'{"cache_salt":"S"}'),
        (b'{"a":"\\ud800","cache_salt":1}', b'{"a":"\\ud800","cache_salt":"S"}'),
        (
            b'{"a":12345678901234567890123,"cache_salt":1}',
            b'{"a":12345678901234567890123,"cache_salt":"S"}',
        ),
        (b'{"cache_salt":"mine","model":"m"}', b'{"cache_salt":"S","model":"m"}'),
        (
            b'{"a":1.50,\n"cache_salt" : {"x":[1,2]} ,"b":2}',
            b'{"a":1.50,\n"cache_salt" : "S" ,"b":2}',
        ),
        (
            b'{"a":{"cache_salt":"inner"},"cache_salt":null}',
            b'{"a":{"cache_salt":"inner"},"cache_salt":"S"}',
        ),
        (b'{"cache\\u005fsalt":"mine"}', b'{"cache\\u005fsalt":"S"}'),
        ('{"é":"ü{}","cache_salt":"漢"}'.encode(), '{"é":"ü{}","cache_salt":"S"}'.encode()),
        (
            b'{"t":"a \\"cache_salt\\": \\"x\\"}"}',
            b'{"t":"a \\"cache_salt\\": \\"x\\"}","cache_salt":"S"}',
        ),
    ],
)
def test_a_field_that_is_set_is_the_only_change_to_the_bytes(raw, salted):
    body = json.loads(raw)
    assert with_field(body, raw, "cache_salt", "S") == ({**body, "cache_salt": "S"}, salted)
    assert json.loads(salted) == {**body, "cache_salt": "S"}
