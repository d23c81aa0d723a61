"""What a report finds out: the ceiling as sent and rewritten, and which settings are needed."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.offline.prefix_report import prompt_parts, report
from gateway.server.admin.recorded_request import RecordedRequest
from policies.decision import Endpoint


def recorded(tools, time, question, **told):
    words = [name * 9 for name in tools]
    body = {
        "model": "m",
        "tools": [{"type": "function", "function": {"name": name}} for name in words],
        "messages": [
            {"role": "system", "content": f"It is {time}. " + "Be kind to them. " * 20},
            {"role": "user", "content": question},
        ],
    }
    return RecordedRequest(Endpoint.CHAT, "m", "support", orjson.dumps(body), **told)


def completion(text):
    return RecordedRequest(
        Endpoint.COMPLETIONS, "m", "", orjson.dumps({"model": "m", "prompt": text})
    )


@pytest.fixture
def prompts():
    asked = "Where is my parcel, and why is it late? I have waited for so long that I forgot."
    return [
        recorded(order, f"10:00:{second:02}", f"({second}) {asked}")
        for second, order in enumerate(["abc", "cab", "bca", "abc", "acb", "bac"])
    ]


def common(one, other):
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


@given(st.lists(st.text("ab", max_size=8), min_size=1, max_size=12))
def test_the_ceiling_is_the_longest_beginning_that_any_earlier_prompt_has(texts):
    ceiling = report([completion(text) for text in texts]).as_sent
    shared = [
        max((common(text, earlier) for earlier in texts[:number]), default=0)
        for number, text in enumerate(texts)
    ]
    assert ceiling.characters == sum(map(len, texts))
    assert ceiling.found * max(1, ceiling.characters) == pytest.approx(sum(shared))


def test_a_prompt_that_goes_on_with_another_does_not_part_from_it():
    texts = ("a system", "a system prompt", "a sys", "a system")
    assert report([completion(text) for text in texts]).as_sent.worst is None


def test_the_place_where_most_is_lost_is_told_with_the_bytes_that_differ():
    texts = [f"at 10:00:{second} you are kind" for second in ("01", "02", "17", "25")]
    worst = report([completion(text) for text in texts]).as_sent.worst
    assert (worst.place, worst.before) == ("prompt", "at 10:00:")
    assert [way[:2] for way in worst.ways] == ["02", "17", "25"]
    assert worst.lost == 2 * len("17 you are kind")


def test_what_one_setting_hides_is_found_with_all_of_them(prompts):
    found = report(prompts)
    assert {gain.setting for gain in found.settings} == {"tools: sorted", "volatile: timestamps"}
    assert found.as_sent.found < 0.3
    assert found.rewritten.found > 0.6
    assert all(0.1 < gain.share <= found.rewritten.found for gain in found.settings)
    assert found.as_sent.worst.place.startswith("tools[")
    assert found.rewritten.worst.place == "messages[1] (user)"
    assert found.yaml == "prefix:\n  tools: sorted\n  volatile: [timestamps]"


def test_a_setting_is_told_with_the_bytes_that_it_changes(prompts):
    gains = {gain.setting: gain for gain in report(prompts).settings}
    times, tools = gains["volatile: timestamps"], gains["tools: sorted"]
    assert times.before.endswith("<system>It is ")
    assert times.was.startswith("10:00:00. Be kind")
    assert times.becomes.startswith("[timestamp-1]. Be kind")
    assert tools.before.endswith('"name":"')
    assert (tools.was[0], tools.becomes[0]) == ("c", "a")


def test_a_setting_without_which_as_much_is_found_is_not_recommended():
    steady = report([recorded("cab", "10:00:00", f"{number}?") for number in range(4)])
    assert (steady.settings, steady.yaml) == ((), "")
    assert "tools: sorted" in steady.too_little
    assert steady.rewritten == steady.as_sent


def test_a_setting_that_needs_another_one_is_tried_with_it():
    def conversation(second):
        turns = [
            ("user", f"It is 10:00:{second:02}. {'Here is the handbook. ' * 50}"),
            ("assistant", "What is it about?"),
            ("user", f"Parcel {second}"),
        ]
        body = {"model": "m", "messages": [{"role": who, "content": said} for who, said in turns]}
        return RecordedRequest(Endpoint.CHAT, "m", "", orjson.dumps(body))

    found = report([conversation(second) for second in range(6)])
    assert {gain.setting for gain in found.settings} == {"turns: earlier", "volatile: timestamps"}


def test_bytes_that_no_setting_knows_are_shown():
    words = [f"Step {word}.\n{'Be kind. ' * 50}" for word in ("one", "two", "six")]
    bodies = [{"model": "m", "messages": [{"role": "system", "content": each}]} for each in words]
    found = report([RecordedRequest(Endpoint.CHAT, "m", "", orjson.dumps(body)) for body in bodies])
    assert found.settings == ()
    assert found.as_sent.worst.place == "messages[0] (system)"
    assert found.as_sent.worst.before.endswith("Step ")
    assert {way[:3] for way in found.as_sent.worst.ways} == {"one", "two", "six"}


def test_the_upstreams_share_is_told_where_it_is_none():
    counted = [
        recorded("abc", "10:00:00", "?", prompt_tokens=200, cached_tokens=cached)
        for cached in (0, 0, None)
    ]
    assert report(counted).upstream == 0.0


def test_tokens_are_those_that_the_upstream_counted_else_estimated(prompts):
    guessed = report(prompts)
    characters = guessed.as_sent.characters
    assert (guessed.tokens, guessed.tokens_counted) == (round(characters / 4), False)
    assert guessed.upstream is None
    usage = [{"prompt_tokens": 200, "cached_tokens": cached} for cached in (0, 100)]
    told = report([recorded("abc", "10:00:00", "?", **each) for each in usage])
    assert (told.tokens, told.tokens_counted, told.upstream) == (400, True, 0.25)


def test_a_prompt_is_laid_out_in_the_order_in_which_it_is_read():
    body = {
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        ],
        "tools": [{"type": "function"}],
    }
    parts = list(prompt_parts(Endpoint.CHAT, body))
    assert [part.place for part in parts] == [
        "tools[0]",
        "messages[0] (system)",
        "messages[1] (user)",
        "messages[2] (assistant)",
    ]
    assert parts[2].text == "<user>Hi\n"
    assert '"tool_calls":[{"id":"1"}]' in parts[3].text
    said = {"instructions": "Be kind.", "input": "Hi", "model": "m"}
    places = [part.place for part in prompt_parts(Endpoint.RESPONSES, said)]
    assert places == ["instructions", "input"]
    (prompt,) = prompt_parts(Endpoint.COMPLETIONS, {"prompt": [1, 2]})
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
    assert [*prompt_parts(Endpoint.CHAT, marked)] == [*prompt_parts(Endpoint.CHAT, plain)]


def test_an_image_counts_as_a_digest():
    def text(data):
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        turn = {"role": "user", "content": [{"type": "text", "text": "See"}, image]}
        (part,) = prompt_parts(Endpoint.CHAT, {"messages": [turn]})
        return part.text

    assert len(text("A" * 40_000)) < 200
    assert text("A" * 40_000) != text("B" * 40_000)
    assert text("A" * 40_000).startswith("<user>See\n{")
