"""The official client of Anthropic's API, in front of servers of either form."""

import pytest
from messages_api import TOOL, WORDS, as_anthropic, as_openai

anthropic = pytest.importorskip(
    "anthropic", reason="the client of Anthropic's API is not installed"
)

ASKED = {"model": "claude-x", "max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(params=["anthropic", "openai"])
async def client(request, upstream, start_gateway):
    """A client of a gateway in front of a server of one form."""
    upstream.answer = as_anthropic if request.param == "anthropic" else as_openai
    listed = [{"url": f"{upstream.url}/v1", "api": request.param, "probe": "off"}]
    gateway = await start_gateway(upstream=(), upstreams=listed)
    async with anthropic.AsyncAnthropic(
        base_url=gateway.url, api_key="anything", max_retries=0
    ) as made:
        yield made


async def plain(client, **fields):
    raw = await client.messages.with_raw_response.create(**ASKED, **fields)
    message = raw.parse()
    return raw.headers["Cache-Status"], await message if hasattr(message, "__await__") else message


async def streamed(client, **fields):
    async with client.messages.stream(**ASKED, **fields) as stream:
        message = await stream.get_final_message()
        return stream.response.headers["Cache-Status"], message


def seen(message):
    """Return what a client reads of a message."""
    usage = message.usage
    blocks = [
        (block.type, getattr(block, "text", None) or getattr(block, "input", None))
        for block in message.content
    ]
    counts = (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens)
    return message.id, blocks, message.stop_reason, counts


@pytest.mark.parametrize("tools", [[], [TOOL]], ids=["text", "call"])
@pytest.mark.parametrize(("first", "then"), [(plain, streamed), (streamed, plain)])
async def test_a_miss_is_stored_and_found_in_either_form(client, upstream, first, then, tools):
    fields = {"tools": tools} if tools else {}
    missed, message = await first(client, **fields)
    assert missed.startswith("refrain; fwd=miss")
    assert message.content[0].text == "".join(WORDS)
    assert message.stop_reason == ("tool_use" if tools else "end_turn")
    if tools:
        assert message.content[1].input == {"city": "Paris"}
    for ask in (then, first):
        hit, again = await ask(client, **fields)
        assert hit.endswith("detail=exact")
        assert seen(again) == seen(message)
    assert upstream.calls == 1


async def test_what_a_tool_returned_is_sent_back(client, upstream):
    _, message = await plain(client, tools=[TOOL])
    call = message.content[1]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    turns = [
        *ASKED["messages"],
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    again = await client.messages.create(**{**ASKED, "messages": turns}, tools=[TOOL])
    assert again.content[0].text == "".join(WORDS)
    sent = upstream.bodies[-1]["messages"]
    assert "sunny" in str(sent[-1])
    assert call.id in str(sent[-1])


async def test_errors_are_the_clients_own(client):
    with pytest.raises(anthropic.BadRequestError) as raised:
        await client.messages.create(**{**ASKED, "messages": []})
    assert raised.value.body["error"]["type"] == "invalid_request_error"


async def test_tokens_are_counted(client):
    counted = await client.messages.count_tokens(model="claude-x", messages=ASKED["messages"])
    assert counted.input_tokens > 0
