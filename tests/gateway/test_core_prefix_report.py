"""What a report finds out: where prompts part, what hides behind it, which settings are needed."""

import re

import orjson
import pytest

from gateway.core.prefix_report import Recorded, passes, report
from gateway.core.prompt_layout import laid_out
from gateway.core.recorded_request import RecordedError, parse_recorded
from gateway.core.types import Endpoint

TIME = re.compile(r"\d\d:\d\d:\d\d")
SETTINGS = ("sort", "times", "spaces")


def rewriting(one, settings):
    """Stand in for the rewrite plan, with rules that can be read in three lines."""
    body = dict(one.body)
    if "sort" in settings:
        body["tools"] = sorted(body["tools"], key=lambda tool: tool["name"])
    if "times" in settings:
        system, *turns = body["messages"]
        body["messages"] = [{**system, "content": TIME.sub("", system["content"])}, *turns]
    return body


def recorded(tools, time, question, **told):
    body = {
        "model": "m",
        "tools": [{"name": name} for name in tools],
        "messages": [
            {"role": "system", "content": f"It is {time}. " + "Be kind to them. " * 20},
            {"role": "user", "content": question},
        ],
    }
    return Recorded(Endpoint.CHAT, "m", "support", body, orjson.dumps(body), **told)


@pytest.fixture
def prompts():
    asked = "Where is my parcel, and why is it late? I have waited for so long that I forgot."
    return [
        recorded(order, f"10:00:{second:02}", f"({second}) {asked}")
        for second, order in enumerate(["abc", "cab", "bca", "abc", "acb", "bac"])
    ]


def test_what_one_cause_hides_shows_once_its_setting_holds(prompts):
    found = report(prompts, SETTINGS, rewriting)
    assert [layer.settings for layer in found.layers] == [(), ("sort",), ("sort", "times")]
    first, second, last = (layer.partings[0] for layer in found.layers)
    assert (first.place, first.cause, first.asked) == ("tools", "sort", False)
    assert (second.place, second.cause) == ("messages[0] (system)", "times")
    assert second.before.endswith("It is 10:00:0")
    assert [way[:3] for way in second.ways] == ["0. ", "1. ", "2. "]
    assert (last.place, last.cause, last.asked) == ("messages[1] (user)", None, True)


def test_a_setting_is_told_only_if_less_is_found_without_it(prompts):
    found = report(prompts, SETTINGS, rewriting)
    assert [setting for setting, _ in found.settings] == ["sort", "times"]
    assert found.as_sent < 0.3
    assert found.rewritten > 0.6
    assert all(0.1 < share <= found.rewritten for _, share in found.settings)
    steady = [recorded("abc", "10:00:00", f"{number}?") for number in range(4)]
    assert report(steady, SETTINGS, rewriting).settings == ()


def test_bytes_that_no_setting_knows_are_shown(prompts):
    found = report(prompts, ("spaces",), rewriting)
    assert found.settings == ()
    assert len(found.layers) == 1
    tools = next(one for one in found.layers[0].partings if one.place == "tools")
    assert tools.cause is None
    assert {way[0] for way in tools.ways} == {"a", "b", "c"}


def test_tokens_are_those_that_the_upstream_counted_else_estimated(prompts):
    guessed = report(prompts, (), rewriting)
    assert (guessed.tokens, guessed.tokens_counted) == (round(guessed.characters / 4), False)
    assert guessed.upstream is None
    usage = [{"prompt_tokens": 200, "cached_tokens": cached} for cached in (0, 100)]
    counted = [recorded("abc", "10:00:00", "?", **each) for each in usage]
    told = report(counted, (), rewriting)
    assert (told.tokens, told.tokens_counted, told.upstream) == (400, True, 0.25)


def test_progress_is_told_for_each_pass_and_there_are_no_more_than_said(prompts):
    done = []
    report(prompts, SETTINGS, rewriting, lambda: done.append(1))
    assert 4 <= len(done) <= passes(SETTINGS)


def test_a_prompt_is_laid_out_in_the_order_in_which_it_is_read():
    body = {
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        ],
        "tools": [{"type": "function"}],
    }
    parts = list(laid_out(Endpoint.CHAT, body))
    assert [(part.place, part.role) for part in parts] == [
        ("tools[0]", "tools"),
        ("messages[0]", "system"),
        ("messages[1]", "user"),
        ("messages[2]", "assistant"),
    ]
    assert parts[2].text == "<user>Hi\n"
    assert '"tool_calls":[{"id":"1"}]' in parts[3].text
    said = {"instructions": "Be kind.", "input": "Hi", "model": "m"}
    places = [part.place for part in laid_out(Endpoint.RESPONSES, said)]
    assert places == ["instructions", "input"]
    (prompt,) = laid_out(Endpoint.COMPLETIONS, {"prompt": [1, 2]})
    assert prompt.text == "[1,2]"


BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (BODY, ""),
        ({"body": BODY, "url": "/v1/chat/completions", "custom_id": "1"}, ""),
        ({"request": BODY, "endpoint": "/v1/chat/completions", "rule": "faq"}, "faq"),
    ],
    ids=["a body", "a batch file's", "a decision log's"],
)
def test_requests_are_read_as_logs_have_them(line, rule):
    one = parse_recorded(orjson.dumps(line))
    assert one.route == (rule, "/v1/chat/completions", "m")
    assert (one.body, orjson.loads(one.raw)) == (BODY, BODY)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"{", "expected JSON"),
        (b"[]", "expected a JSON object"),
        (b'{"request": 1}', "expected an object in its field request or body"),
        (b'{"time": 1, "rule": "default"}', "expected messages, prompt or input"),
        (
            b'{"url": "/v1/moderations", "body": {"input": "x"}}',
            "endpoint: expected one of",
        ),
    ],
)
def test_lines_that_hold_no_request_say_what_was_expected(line, told):
    with pytest.raises(RecordedError, match=re.escape(told)):
        parse_recorded(line)
