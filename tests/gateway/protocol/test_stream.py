import orjson
import pytest

from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.streaming.decode import DONE, Decoder, Event, encode
from policies.decision import Endpoint

USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def follow(*, assemble=True, max_bytes=10**6, endpoint=Endpoint.CHAT):
    return SPECS[endpoint].streaming.follow(assemble=assemble, max_bytes=max_bytes)


def event(data):
    raw = data if isinstance(data, bytes) else orjson.dumps(data)
    [one] = Decoder().feed(encode(raw))
    return one


def said(content=None, finish=None, index=0, **top):
    delta = {} if content is None else {"content": content}
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"id": "c", "created": 1, "model": "m", "choices": [choice], **top}


def usage_chunk(usage=USAGE, **top):
    return {"id": "c", "created": 1, "model": "m", "choices": [], "usage": usage, **top}


def passed(answer, *chunks):
    """The events for a client that asked for usage."""
    return [answer.pass_on(event(chunk))[0] for chunk in chunks]


def bare(answer, *chunks):
    """The events for a client that did not."""
    return [answer.pass_on(event(chunk))[1] for chunk in chunks]


def test_events_pass_as_they_came():
    answer = follow()
    for raw in (
        b'data:{"choices": [ {"index":0, "delta":{"content":"a"}} ], "x": 1.50}\n\n',
        b": ping\n\n",
        b"event: x\nid: 3\ndata: {}\r\n\r\n",
        b"data: not json\n\n",
        b"\n\n",
    ):
        [one] = Decoder().feed(raw)
        assert answer.pass_on(one) == (raw, raw)


def test_usage_is_taken_out_for_a_client_that_did_not_ask_for_it():
    answer = follow()
    got = bare(answer, said("a", usage=None), said(None, "stop", usage=None), usage_chunk(), DONE)
    chunks = [orjson.loads(one[6:]) for one in got[:2]]
    assert chunks == [said("a"), said(None, "stop")]
    assert got[2:] == [b"", encode(DONE)]
    assert answer.usage == USAGE
    assert answer.result()["usage"] == USAGE


def test_usage_with_the_last_choice_stays():
    # So report it those who were not asked.
    answer = follow()
    [one] = bare(answer, said("a", "stop", usage=USAGE))
    assert orjson.loads(one[6:]) == said("a", "stop", usage=USAGE)
    assert answer.usage == USAGE


def test_a_chunk_without_choices_that_is_not_about_usage_stays():
    answer = follow()
    first = usage_chunk(None, prompt_filter_results=[{"prompt_index": 0}])
    [one] = bare(answer, first)
    assert orjson.loads(one[6:]) == {k: v for k, v in first.items() if k != "usage"}


def test_usage_the_client_asked_for_stays():
    answer = follow()
    chunks = [said("a", usage=None), said(None, "stop", usage=None), usage_chunk(), DONE]
    assert passed(answer, *chunks) == [event(chunk).raw for chunk in chunks]
    assert answer.result()["usage"] == USAGE


def test_usage_is_known_of_answers_that_are_not_assembled():
    answer = follow(assemble=False)
    passed(answer, said("a", "stop"), usage_chunk(), DONE)
    assert answer.usage == USAGE
    assert answer.result() is Reason.UNKNOWN_SHAPE


@pytest.mark.parametrize(
    ("chunks", "ended"),
    [
        ([], False),
        ([said("a")], False),
        ([said("a", "stop")], True),
        ([said("a"), said(None, "stop")], True),
        ([said("a"), said("b", index=1), said(None, "stop")], False),
        ([said("a"), said("b", index=1), said(None, "stop"), said(None, "stop", 1)], True),
        ([said("a", "")], False),
        ([said("a", "stop"), said("b")], False),
        ([said("a"), DONE], True),
        ([DONE], False),
        ([usage_chunk(), DONE], False),
        ([usage_chunk()], False),
        ([said("a"), {"error": {"message": "gone"}}], True),
        ([said("a"), b"not json"], False),
    ],
)
def test_ended(chunks, ended):
    answer = follow()
    passed(answer, *chunks)
    assert answer.ended is ended


@pytest.mark.parametrize("error", [{"message": "m"}, "gone", {}, True])
def test_an_error_event_passes_and_spoils_the_answer(error):
    answer = follow()
    chunks = [said("a"), {"error": error}, said(None, "stop"), DONE]
    *raw, _done = [event(chunk).raw for chunk in chunks]
    assert passed(answer, *chunks) == [*raw, b""]
    assert answer.error
    assert answer.result() is Reason.UNCLEAN


def test_a_null_error_is_none():
    answer = follow()
    passed(answer, said("a", "stop", error=None), DONE)
    assert not answer.error
    assert answer.result()["choices"][0]["message"]["content"] == "a"


@pytest.mark.parametrize("data", [b"not json", b"{", b"[]", b"5", b'"a"', b"[DONE", b"\xff"])
def test_what_is_no_chunk_passes_and_spoils_the_answer(data):
    answer = follow()
    got = passed(answer, said("a", "stop"), data, DONE)
    assert got[1] == event(data).raw
    assert answer.result() is Reason.UNCLEAN
    assert not answer.error


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": 5},
        {"choices": None},
        {"choices": [None]},
        {"choices": [5, "x"]},
        {"choices": [{"index": "0"}]},
        {"choices": [{"index": 0, "delta": 5}]},
        {
            "choices": [
                {"index": 0, "delta": {"content": 5}},
                {"index": 0, "delta": {"content": "a"}},
            ]
        },
        {"choices": [{"index": 0, "finish_reason": 5}], "usage": 7},
        {},
    ],
)
def test_an_odd_chunk_passes_and_is_not_stored(chunk):
    answer = follow()
    got = passed(answer, said("a", "stop"), chunk, DONE)
    assert got[1] == event(chunk).raw
    result = answer.result()
    assert result is Reason.UNKNOWN_SHAPE or result["choices"][0]["finish_reason"] != "stop"


def test_a_chunk_too_deep_to_print_passes_whole():
    deep = b'{"choices":[],"usage":null,"x":' + b"[" * 900 + b"]" * 900 + b"}"
    answer = follow()
    assert bare(answer, deep) == [encode(deep)]


def test_an_answer_too_deep_to_merge_is_not_stored():
    def deep(leaf):
        return b'{"choices":[],"x":' + b'{"a":' * 1000 + leaf + b"}" * 1000 + b"}"

    answer = follow()
    for data in (deep(b"1"), deep(b"2")):
        assert answer.pass_on(event(data)) == (encode(data), encode(data))
    assert answer.result() is Reason.UNKNOWN_SHAPE


@pytest.mark.parametrize("levels", [300, 500, 900])
def test_an_answer_too_deep_to_put_together_has_no_result(levels):
    deep = b'{"a":' * levels + b"1" + b"}" * levels
    answer = follow()
    answer.feed(encode(b'{"choices":[{"index":0,"delta":{"content":"a"},"extra":' + deep + b"}]}"))
    result = answer.result()
    assert isinstance(result, dict) or result is Reason.UNKNOWN_SHAPE


def test_an_empty_stream_is_no_answer():
    answer = follow()
    passed(answer, DONE)
    assert answer.result() is Reason.UNKNOWN_SHAPE


def test_a_missing_done_still_has_a_result_and_leaves_the_choice_to_the_caller():
    answer = follow()
    passed(answer, said("a"), said(None, "stop"))
    assert answer.ended
    assert answer.result()["choices"][0]["finish_reason"] == "stop"


def test_events_after_done_pass():
    answer = follow()
    chunks = [said("a", "stop"), DONE, said("b"), b"x", DONE]
    assert passed(answer, *chunks) == [event(chunk).raw for chunk in chunks]
    assert answer.ended


def test_an_answer_over_the_limit_passes_and_is_not_kept():
    chunk = said("x" * 100)
    size = len(event(chunk).raw)
    answer = follow(max_bytes=3 * size)
    for _ in range(3):
        assert passed(answer, chunk) == [event(chunk).raw]
    assert isinstance(answer.result(), dict)
    assert passed(answer, chunk) == [event(chunk).raw]
    assert answer.result() is Reason.TOO_LARGE


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"not json", Reason.UNCLEAN),
        ({"error": {"message": "m"}}, Reason.UNCLEAN),
        ({"choices": 5}, Reason.UNKNOWN_SHAPE),
        (said("x" * 1000), Reason.TOO_LARGE),
    ],
)
def test_the_first_reason_counts(first, reason):
    answer = follow(max_bytes=900)
    passed(answer, first, {"choices": 5}, said("x" * 1000))
    assert answer.result() is reason


def test_a_completion():
    result = {
        "id": "c",
        "object": "text_completion",
        "choices": [{"index": 0, "text": "a", "logprobs": None, "finish_reason": "stop"}],
        "usage": USAGE,
    }
    answer = follow(endpoint=Endpoint.COMPLETIONS)
    stream = SPECS[Endpoint.COMPLETIONS].streaming.render(result, include_usage=True)
    out = b"".join(answer.pass_on(one)[1] for one in Decoder().feed(stream))
    assert out == SPECS[Endpoint.COMPLETIONS].streaming.render(result, include_usage=False)
    assert answer.result() == result


def test_a_comment_is_no_chunk():
    answer = follow()
    assert answer.pass_on(Event(None, b": OPENROUTER PROCESSING\n\n"))[1] == (
        b": OPENROUTER PROCESSING\n\n"
    )
    passed(answer, said("a", "stop"), DONE)
    assert isinstance(answer.result(), dict)


def test_an_event_of_the_type_error_is_an_error():
    answer = follow()
    chunk = {"type": "error", "message": "overloaded"}
    assert passed(answer, said("a"), chunk) == [event(said("a")).raw, event(chunk).raw]
    assert answer.error == orjson.dumps(chunk)
    assert answer.result() is Reason.UNCLEAN


@pytest.mark.parametrize("late", [b"not json", orjson.dumps({"error": "late"})])
def test_what_follows_the_end_is_no_part_of_the_answer(late):
    answer = follow()
    passed(answer, said("a", "stop"), DONE, late)
    assert answer.error is None
    assert answer.result()["choices"][0]["message"]["content"] == "a"


def test_the_end_of_an_answer_goes_on_once_it_is_stored():
    answer = follow()
    start, end = encode(orjson.dumps(said("a", "stop"))), encode(DONE)
    assert answer.feed(start) == ((start, start), None)
    assert answer.feed(b": ping\n\n" + end + b": ping\n\n") == (
        (b": ping\n\n",) * 2,
        (end + b": ping\n\n",) * 2,
    )


def test_both_forms_of_several_events_are_joined():
    answer = follow()
    usage = encode(orjson.dumps(usage_chunk()))
    start = encode(orjson.dumps(said("a", "stop")))
    assert answer.feed(start + usage) == ((start + usage, start), None)


def test_a_whole_event_without_its_blank_line_is_ended_for_the_error_that_follows():
    answer = follow()
    rest = encode(orjson.dumps(said("a")))[:-2]
    answer.feed(rest)
    assert answer.end() == ((rest + b"\n\n",) * 2, None)


@pytest.mark.parametrize("rest", [b"data: {", b"data: [DO", b"da", b": pi", b"event: x\ndata: {}}"])
def test_an_event_that_was_cut_off_reaches_no_client_which_could_not_parse_it(rest):
    answer = follow()
    answer.feed(encode(orjson.dumps(said("a", "stop"))) + rest)
    assert answer.end() == ((b"", b""), None)
    assert answer.result() is Reason.UNCLEAN


def test_the_last_event_of_a_failed_response_is_ended_too():
    answer = follow(endpoint=Endpoint.RESPONSES)
    answer.feed(encode(b'{"type":"error","message":"overloaded"}'))
    last = b'data: {"type":"response.failed","response":{"id":"r"}}'
    answer.feed(last)
    assert answer.end() == ((b"", b""), (last + b"\n\n",) * 2)


def test_a_last_event_without_its_blank_line_counts():
    answer = follow()
    answer.feed(encode(orjson.dumps(said("a", "stop"))) + b"data: [DONE]")
    assert answer.end() == ((b"", b""), (b"data: [DONE]",) * 2)
    assert answer.done


def test_no_byte_but_null_usage_is_changed_where_it_comes_last():
    raw = b'data: {"choices": [ {"index":0, "delta":{}, "x": 1.50} ],"usage":null}\n\n'
    [(full, bare)] = [follow().pass_on(one) for one in Decoder().feed(raw)]
    assert full == raw
    assert bare == raw.replace(b',"usage":null', b"")


def events_of(*texts, end=b"\n\n", **top):
    """Events that differ in their texts alone, which are the insides of JSON strings."""
    data = orjson.dumps(said("TEXT", **top))
    return b"".join([b"data: " + data.replace(b"TEXT", text) + end for text in texts])


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize(
    ("texts", "whole"),
    [
        ([b"a", b" b", b"", b"c"], "a bc"),
        ([b"a", b'\\n\\"b\\"', rb"\ud83d\ude00", b"\\\\"], 'a\n"b"\U0001f600\\'),
        ([b"a", "é漢".encode(), b"\\u00e9"], "aé漢é"),
        ([b"a", b"\xe2\x82", b"\xac"], None),
        ([b"a", rb"\ud83d", rb"\ude00"], None),
        ([b"a", b'b","c', b"\\"], None),
        ([b"a", b"b\\", b',"c'], None),
        ([b"a", b"\x01"], None),
        ([b"a", b"b\nc", b"d"], None),
        ([b"a", b'b"}}', b"c"], None),
    ],
)
def test_texts_of_events_that_are_alike_are_what_each_event_says(texts, whole, end):
    raw = events_of(*texts, end=end)
    finish = encode(orjson.dumps(said(None, "stop")))
    for size in (1, 7, 100, len(raw)):
        answer = follow()
        reads = [raw[start : start + size] for start in range(0, len(raw), size)]
        passed = [answer.feed(read) for read in [*reads, finish]]
        assert b"".join(now[0] for now, _ in passed) == raw + finish
        result = answer.result()
        if whole is None:
            assert result is Reason.UNCLEAN
        else:
            assert result["choices"][0]["message"]["content"] == whole


def test_null_usage_is_taken_out_of_each_of_several_events_that_are_alike():
    raw = events_of(b"a", b"b", b"c", b"d", usage=None)
    answer = follow()
    (full, bare), _ = answer.feed(raw)
    assert (full, bare) == (raw, raw.replace(b',"usage":null', b""))


def test_an_answer_that_is_not_assembled_passes_its_events_and_its_usage():
    answer = follow(assemble=False)
    raw = events_of(b"a", b"b", b'"', b"c") + encode(orjson.dumps(usage_chunk()))
    assert answer.feed(raw)[0][0] == raw
    assert answer.usage == USAGE
