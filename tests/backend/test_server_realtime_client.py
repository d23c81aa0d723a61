"""The real `openai` package's realtime client against the real server and engine."""

import asyncio

import pytest

pytest_plugins = ["running_backend"]

FIXED = {"type": "realtime", "output_modalities": ["text"], "temperature": 0}


def item(text):
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content}


async def until(connection, kind):
    async with asyncio.timeout(60):
        events = [await connection.recv()]
        while events[-1].type != kind:
            events.append(await connection.recv())
    return events


@pytest.fixture
def client(openai_client):
    return openai_client


async def test_a_conversation_says_what_chat_says_and_finds_what_was_computed(client):
    async with client.realtime.connect(model="tiny") as connection:
        await until(connection, "session.created")
        await connection.session.update(session={**FIXED, "max_output_tokens": 8})
        await until(connection, "session.updated")
        await connection.conversation.item.create(item=item("How are you? " * 10))
        await until(connection, "conversation.item.done")
        await connection.response.create()
        *events, done = await until(connection, "response.done")
        said = "".join(each.delta for each in events if each.type == "response.output_text.delta")
        assert said == done.response.output[0].content[0].text
        await connection.conversation.item.create(item=item("And now?"))
        await connection.response.create()
        again = (await until(connection, "response.done"))[-1].response
        # The first prompt and its answer, but for the last block.
        assert again.usage.input_token_details.cached_tokens > done.response.usage.input_tokens - 32
        assert again.usage.total_tokens == again.usage.input_tokens + again.usage.output_tokens
    messages = [{"role": "user", "content": "How are you? " * 10}]
    plain = await client.chat.completions.create(
        model="tiny", messages=messages, temperature=0, max_tokens=8
    )
    assert said == plain.choices[0].message.content
    assert done.response.usage.input_tokens == plain.usage.prompt_tokens


async def test_what_was_sent_before_the_response_is_computed_already(client, real_server):
    generator = real_server.generator
    computed = asyncio.Event()
    generate = generator.generate

    async def watched(request):
        async for delta in generate(request):
            yield delta
        computed.set()

    generator.generate = watched
    async with client.realtime.connect(model="tiny") as connection:
        await connection.conversation.item.create(item=item("Once upon a time. " * 10))
        await asyncio.wait_for(computed.wait(), 60)
        await connection.response.create(response={"max_output_tokens": 1})
        usage = (await until(connection, "response.done"))[-1].response.usage
    assert usage.input_token_details.cached_tokens >= 160


async def test_a_cancelled_response_and_a_closed_session_free_their_sequences(client, real_server):
    generator = real_server.generator
    freed = asyncio.Semaphore(0)
    generate = generator.generate

    async def watched(request):
        try:
            async for delta in generate(request):
                yield delta
        finally:
            freed.release()

    generator.generate = watched
    endless = {"input": [item("Go on")], "max_output_tokens": "inf"}
    async with client.realtime.connect(model="tiny") as connection:
        await connection.session.update(session=FIXED)
        await connection.response.create(response=endless)
        await until(connection, "response.created")
        await connection.response.cancel()
        done = (await until(connection, "response.done"))[-1].response
        assert done.status in {"cancelled", "completed", "incomplete"}
        await connection.input_audio_buffer.append(audio="AAAA")
        error = (await until(connection, "error"))[-1].error
        assert error.code == "unsupported_event"
        await connection.response.create(response=endless)
        await until(connection, "response.created")
    async with asyncio.timeout(60):
        await freed.acquire()
        await freed.acquire()
    # The engine obeys in order: the aborts come before this request.
    await client.completions.create(model="tiny", prompt="x", max_tokens=1)
    assert generator.stats().running == generator.stats().waiting == 0


async def test_a_wrong_model_is_refused_before_the_switch(client):
    with pytest.raises(Exception, match="404"):
        await client.realtime.connect(model="other").enter()
