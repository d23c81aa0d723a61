import orjson
import pytest

from gateway.protocol.exact_json import parse_body
from gateway.upstream.additions import ask_for_usage

ASK = b',"stream_options":{"include_usage":true}'


def asked(raw):
    return ask_for_usage(parse_body(raw), raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"m"}',
        b'{"model":"m","stream":false}',
        b'{"model":"m","stream":null}',
        b'{"model":"m","stream_options":{"include_usage":true}}',
        b'{"stream":true,"stream_options":{"include_usage":true}}',
        b' { "stream" : true , "stream_options" : { "include_usage" : true , "x" : 1.0 } } \n',
    ],
)
def test_a_body_that_does_not_stream_or_asks_itself_goes_as_it_is(raw):
    assert asked(raw) == (None, raw)


@pytest.mark.parametrize(
    ("raw", "forwarded"),
    [
        (b'{"stream":true}', b'{"stream":true' + ASK + b"}"),
        (b'{"stream":true} \r\n\t', b'{"stream":true' + ASK + b"} \r\n\t"),
        (b'\n{ "stream" : true }\n', b'\n{ "stream" : true ' + ASK + b"}\n"),
        (b'{"stream":true,"t":1.0,"a":"}"}', b'{"stream":true,"t":1.0,"a":"}"' + ASK + b"}"),
        (
            b'{"stream":true,"a":{"stream_options":{"include_usage":true}}}',
            b'{"stream":true,"a":{"stream_options":{"include_usage":true}}' + ASK + b"}",
        ),
        (b'{"seed":18446744073709551617,"stream":true}',) * 2,
        ('{"stream":true,"a":"é\u2028 \\u00e9"}'.encode(),) * 2,
    ],
)
def test_the_question_is_added_and_no_other_byte_changed(raw, forwarded):
    body, got = asked(raw)
    assert body == parse_body(got)
    end = raw.rindex(b"}")
    assert got == raw[:end] + ASK + raw[end:]
    if forwarded != raw:
        assert got == forwarded
    assert parse_body(got) == {**parse_body(raw), "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("options", "merged"),
    [
        ("null", {}),
        ("{}", {}),
        ('{"include_usage":false}', {}),
        ('{"include_usage":null}', {}),
        ('{"include_obfuscation":false}', {"include_obfuscation": False}),
        ('{"include_usage":1,"x":[1]}', {"x": [1]}),
    ],
)
def test_stream_options_the_client_sent_are_kept(options, merged):
    raw = f'{{"b":"\\u00e9","stream_options":{options},"stream":true,"a":[1,2.5]}}'.encode()
    body, got = asked(raw)
    assert body == parse_body(got)
    assert orjson.loads(got) == {
        "b": "é",
        "stream_options": {**merged, "include_usage": True},
        "stream": True,
        "a": [1, 2.5],
    }
    assert list(orjson.loads(got)) == ["b", "stream_options", "stream", "a"]


def test_large_integers_keep_their_digits_in_a_body_printed_anew():
    raw = b'{"stream":true,"stream_options":{},"seed":18446744073709551617,"a":"\xc3\xa9"}'
    _, got = asked(raw)
    assert parse_body(got)["seed"] == 18446744073709551617
    assert parse_body(got)["a"] == "é"
