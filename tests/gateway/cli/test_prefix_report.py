"""What a report finds out: where prompts part, what hides behind it, which settings are needed."""

import re

import orjson
import pytest

from gateway.cli.prefix_report import report
from gateway.cli.prefix_trials import Ground
from gateway.cli.prompt_layout import laid_out
from gateway.cli.recorded_requests import Recorded, RecordedError, parse_recorded
from gateway.protocol.endpoint import Endpoint

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
TIME = re.compile(r"\d\d:\d\d:\d\d")
SETTINGS = ("times", "spaces", "sort")


def rewriting(one, settings):
    """Stand in for the rewrite plan, with rules that can be read in three lines."""
    body = dict(one.body)
    if "sort" in settings:
        body["tools"] = sorted(body["tools"], key=lambda tool: tool["name"])
    if "times" in settings:
        system, *turns = body["messages"]
        body["messages"] = [{**system, "content": TIME.sub("", system["content"])}, *turns]
    for own in settings:
        if own.startswith("own:"):
            system, *turns = body["messages"]
            kept = re.sub(own.removeprefix("own:"), "[value-1]", system["content"])
            body["messages"] = [{**system, "content": kept}, *turns]
    return body


def reported(prompts, settings=SETTINGS, **told):
    return report(prompts, settings, rewriting, "own:{}".format, **told)


def recorded(tools, time, question, **told):
    body = {
        "model": "m",
        "tools": [{"name": name} for name in tools],
        "messages": [
            {"role": "system", "content": f"It is {time}. " + "Be kind to them. " * 20},
            {"role": "user", "content": question},
        ],
    }
    return Recorded(Endpoint.CHAT, "m", "support", orjson.dumps(body), **told)


@pytest.fixture
def prompts():
    asked = "Where is my parcel, and why is it late? I have waited for so long that I forgot."
    return [
        recorded(order, f"10:00:{second:02}", f"({second}) {asked}")
        for second, order in enumerate(["abc", "cab", "bca", "abc", "acb", "bac"])
    ]


def test_what_one_cause_hides_shows_once_its_setting_holds(prompts):
    found = reported(prompts)
    assert [layer.settings for layer in found.layers] == [(), ("sort",), ("sort", "times")]
    first, second, last = (layer.partings[0] for layer in found.layers)
    assert (first.place, first.ground, first.cause) == ("tools", Ground.STABLE, "sort")
    assert first.prompts == 4  # of the others one began it, and one had the same tools
    assert (second.place, second.cause) == ("messages[0] (system)", "times")
    assert second.before.endswith("It is 10:00:0")
    assert [way[:3] for way in second.ways] == ["0. ", "1. ", "2. "]
    assert (last.place, last.ground, last.cause) == ("the last turn (user)", Ground.ASKED, None)


def test_a_setting_is_told_only_if_less_is_found_without_it(prompts):
    found = reported(prompts)
    assert {setting for setting, _ in found.settings} == {"sort", "times"}
    assert found.as_sent < 0.3
    assert found.rewritten > 0.6
    assert all(0.1 < share <= found.rewritten for _, share in found.settings)
    steady = [recorded("abc", "10:00:00", f"{number}?") for number in range(4)]
    assert reported(steady).settings == ()


def test_bytes_that_no_setting_knows_are_shown():
    prompts = [recorded(order, "10:00:00", "?") for order in ("abc", "cab", "bca")]
    found = reported(prompts, ("spaces",))
    assert found.settings == ()
    (layer,) = found.layers
    (tools,) = layer.partings
    assert (tools.place, tools.cause) == ("tools", None)
    assert {way[0] for way in tools.ways} == {"a", "b", "c"}


def test_what_no_setting_knows_is_looked_for_in_turn_and_patterns_are_made_of_it():
    def prompt(number):
        words = f"Step: {number}\nUser: {['Anna', 'Jan', 'Zoë'][number % 3]}\n" + "Be kind. " * 50
        system = {"role": "system", "content": f"You help.\n{words}"}
        asked = {"role": "user", "content": f"Where is parcel {number}?"}
        body = {"model": "m", "messages": [system, asked]}
        return Recorded(Endpoint.CHAT, "m", "", orjson.dumps(body))

    found = reported([prompt(number) for number in range(6)], ())
    assert {setting for setting, _ in found.settings} == {
        "own:(?m)^Step: (.+)",
        "own:(?m)^User: (.+)",
    }
    assert found.as_sent < 0.1
    assert found.rewritten > 0.7
    assert reported([prompt(1), prompt(1)], ()).settings == ()


def test_a_pattern_is_made_of_what_loses_little_at_many_places():
    def prompt(number):
        house = f"House: {number // 25}, room {number % 25 // 5}, bed {number % 5}\n"
        system = {"role": "system", "content": f"You help.\n{house}" + "Be kind. " * 50}
        body = {"model": "m", "messages": [system, {"role": "user", "content": "?"}]}
        return Recorded(Endpoint.CHAT, "m", "", orjson.dumps(body))

    found = reported([prompt(number) for number in range(125)], ())
    assert len(found.settings) == 3
    assert found.rewritten > 0.8


def test_all_that_is_lost_is_told_however_many_conversations_there_are():
    prompts = [recorded("abc", f"10:{n // 60:02}:{n % 60:02}", f"({n})") for n in range(150)]
    layer = reported(prompts, ()).layers[0]
    lost = sum(parting.lost for parting in layer.partings)
    first = len("".join(part.text for part in laid_out(Endpoint.CHAT, prompts[0].body)))
    characters = reported(prompts, ()).characters
    assert lost == pytest.approx(characters * (1 - layer.found) - first, rel=0.1)


def test_a_setting_that_goes_too_far_keeps_no_other_from_being_told(prompts):
    def undone(one, settings):
        return one.body if "far" in settings else rewriting(one, settings)

    found = report(prompts, ("far", *SETTINGS), undone, "own:{}".format)
    assert {setting for setting, _ in found.settings} == {"sort", "times"}


def test_one_that_goes_too_far_with_patterns_alone_keeps_them_neither(prompts):
    def undone(one, settings):
        if "far" in settings and any(each.startswith("own:") for each in settings):
            return one.body
        body = rewriting(one, settings)
        return {**body, "tools": [*body["tools"], {}]} if "far" in settings else body

    found = report(prompts, ("far", "sort"), undone, "own:{}".format)
    assert {setting for setting, _ in found.settings} == {
        "sort",
        "own:(?m)^It is ([\\w.:/@+-]*\\w)",
    }


def test_settings_that_gain_next_to_nothing_together_are_left_out(prompts):
    told = reported(prompts, ("times", "sort")).layers
    assert len(told) == 3
    assert told[-1].found - told[-2].found > 0.005


def test_instructions_in_what_is_asked_are_told():
    rules = ". ".join(f"Rule {number} of this shop is to be kind to all" for number in range(9))
    bodies = [
        {"model": "m", "messages": [{"role": "user", "content": f"Hi {name}! {rules}. {name}?"}]}
        for name in ("Anna", "Jan", "Zoë")
    ]
    prompts = [Recorded(Endpoint.CHAT, "m", "", orjson.dumps(body)) for body in bodies]
    (asked,) = reported(prompts, ()).layers[0].partings
    assert (asked.ground, asked.cause) == (Ground.ASKED, None)
    assert asked.repeated > 0.8


@pytest.mark.parametrize("kept", [6, 100], ids=["cut", "whole"])
def test_a_history_whose_oldest_turns_are_left_out_is_told(kept):
    turns = [
        {"role": role, "content": f"{role} says {number}. " + f"{number} is said. " * 20}
        for number in range(15)
        for role in ("user", "assistant")
    ]
    bodies = [
        {"model": "m", "messages": [{"role": "system", "content": "Be kind."}, *said[-kept:]]}
        for said in (turns[:end] for end in range(1, len(turns), 2))
    ]
    prompts = [Recorded(Endpoint.CHAT, "m", "", orjson.dumps(body)) for body in bodies]
    said = [one for one in reported(prompts, ()).layers[0].partings if one.ground is Ground.SAID]
    assert [one.is_cut for one in said] == ([True] if kept == 6 else [])


def test_the_upstreams_share_is_told_where_it_is_none():
    counted = [
        recorded("abc", "10:00:00", "?", prompt_tokens=200, cached_tokens=cached)
        for cached in (0, 0, None)
    ]
    assert reported(counted, ()).upstream == 0.0
    line = {"body": BODY, "prompt_tokens": 9, "cached_tokens": 0}
    assert parse_recorded(orjson.dumps(line)).cached_tokens == 0


def test_tokens_are_those_that_the_upstream_counted_else_estimated(prompts):
    guessed = reported(prompts, ())
    assert (guessed.tokens, guessed.tokens_counted) == (round(guessed.characters / 4), False)
    assert guessed.upstream is None
    usage = [{"prompt_tokens": 200, "cached_tokens": cached} for cached in (0, 100)]
    counted = [recorded("abc", "10:00:00", "?", **each) for each in usage]
    told = reported(counted, ())
    assert (told.tokens, told.tokens_counted, told.upstream) == (400, True, 0.25)


def test_progress_is_told_for_each_pass_and_there_are_no_more_than_said(prompts):
    told = []
    reported(prompts, progress=lambda *passes: told.append(passes))
    assert [done for done, _ in told] == list(range(1, len(told) + 1))
    assert len(told) >= 4
    assert {most for _, most in told} == {told[0][1]}
    assert len(told) <= told[0][1]


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


def test_a_clients_own_marks_are_no_part_of_a_prompt():
    mark = {"cache_control": {"type": "ephemeral"}}
    part = {"type": "text", "text": "Be kind."}
    plain = {
        "tools": [{"type": "function"}],
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
    }
    marked = {
        "tools": [{"type": "function", **mark}],
        "messages": [
            {"role": "system", "content": [{**part, **mark}]},
            {"role": "user", "content": "Hi", **mark},
        ],
    }
    assert [*laid_out(Endpoint.CHAT, marked)] == [*laid_out(Endpoint.CHAT, plain)]


def test_an_image_counts_as_a_digest():
    def text(data):
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        turn = {"role": "user", "content": [{"type": "text", "text": "See"}, image]}
        (part,) = laid_out(Endpoint.CHAT, {"messages": [turn]})
        return part.text

    assert len(text("A" * 40_000)) < 200
    assert text("A" * 40_000) != text("B" * 40_000)
    assert text("A" * 40_000).startswith("<user>See\n{")


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
    assert one.body == BODY


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
