"""The real `openai` package against the real server and engine, with a tiny random model."""

import asyncio

import openai
import pytest

pytest_plugins = ["running_backend"]

MESSAGES = [{"role": "user", "content": "Grüße, how are you?"}]


@pytest.fixture
def client(openai_client):
    return openai_client


async def test_chat_plain_and_streamed_say_the_same(client):
    asked = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 20, "n": 2}
    plain = await client.chat.completions.create(**asked)
    assert len({choice.message.content for choice in plain.choices}) == 1
    assert plain.choices[0].finish_reason in {"stop", "length"}
    assert plain.usage.prompt_tokens == len("user: Grüße, how are you?\nassistant: ".encode())
    texts, reasons, usage = ["", ""], [None, None], None
    stream = await client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        usage = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason
    assert texts == [choice.message.content for choice in plain.choices]
    assert reasons == [choice.finish_reason for choice in plain.choices]
    # The second finds its prompt in the prefix cache.
    usage.prompt_tokens_details = plain.usage.prompt_tokens_details
    assert usage == plain.usage


async def test_a_seed_repeats_and_another_does_not(client):
    async def ask(seed):
        reply = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, temperature=1.5, max_tokens=30, seed=seed
        )
        return reply.choices[0].message.content

    first, again, other = await asyncio.gather(ask(1), ask(1), ask(2))
    assert first == again != other


async def test_choices_of_a_seed_differ_and_repeat(client):
    asked = {"model": "tiny", "prompt": "Once", "temperature": 1.5, "max_tokens": 12}

    async def ask(**fields):
        reply = await client.completions.create(**asked, **fields)
        return [choice.text for choice in reply.choices]

    four, again, two = await asyncio.gather(
        ask(seed=5, n=4, best_of=4), ask(seed=5, n=4), ask(seed=5, n=2)
    )
    assert len(set(four)) == 4
    assert four == again
    assert four[:2] == two


async def test_chat_log_probabilities_follow_the_text(client):
    asked = {"model": "tiny", "messages": MESSAGES, "temperature": 1, "seed": 3, "max_tokens": 20}
    asked |= {"logprobs": True, "top_logprobs": 3}
    choice = (await client.chat.completions.create(**asked)).choices[0]
    told = choice.logprobs.content
    spelled = bytes(byte for token in told for byte in token.bytes)
    assert spelled.decode(errors="replace") == choice.message.content
    for token in told:
        values = [other.logprob for other in token.top_logprobs]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert 0 >= values[0] >= token.logprob
    streamed = []
    async for chunk in await client.chat.completions.create(**asked, stream=True):
        (part,) = chunk.choices
        streamed += part.logprobs.content if part.logprobs else []
    assert [token.bytes for token in streamed] == [token.bytes for token in told]
    for token, again in zip(told, streamed, strict=True):
        # Its prompt was in the prefix cache: the last bits differ.
        assert abs(token.logprob - again.logprob) < 1e-4


async def test_greedy_text_is_the_likeliest_and_its_places_are_told(client):
    reply = await client.completions.create(
        model="tiny", prompt="Once", temperature=0, max_tokens=12, logprobs=2
    )
    (choice,) = reply.choices
    told = choice.logprobs
    for name, value, top in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
        assert top[name] == value == max(top.values())
    for name, offset in zip(told.tokens, told.text_offset, strict=True):
        shown = choice.text[offset:].lstrip("\ufffd")  # of bytes that were no character
        assert name.startswith("bytes:") or shown.startswith(name)


async def test_a_text_is_scored_as_it_was_generated(client):
    """The way of evaluation harnesses: tokens in, their log probabilities out."""
    asked = {"model": "tiny", "temperature": 0, "logprobs": 1}
    prompt = list(b"Once upon a time, a server told the same story to everybody.")
    said = (await client.completions.create(prompt=prompt, max_tokens=10, **asked)).choices[0]
    reply = await client.completions.create(prompt=prompt, max_tokens=10, echo=True, **asked)
    echoed = reply.choices[0].logprobs
    assert echoed.token_logprobs[0] is None
    assert len(echoed.tokens) == len(prompt) + len(said.logprobs.tokens)
    assert echoed.tokens[len(prompt) :] == said.logprobs.tokens
    scored = await client.completions.create(prompt=prompt, max_tokens=0, echo=True, **asked)
    (only,) = scored.choices
    assert (scored.usage.completion_tokens, only.finish_reason) == (0, "length")
    assert only.logprobs.tokens == echoed.tokens[: len(prompt)]
    for value, again in zip(
        only.logprobs.token_logprobs[1:], echoed.token_logprobs[1:], strict=False
    ):
        assert abs(value - again) < 1e-4


async def test_cached_tokens_are_told_and_a_salt_parts_them(client):
    async def cached(**fields):
        reply = await client.completions.create(
            model="tiny", prompt="x" * 100, max_tokens=1, **fields
        )
        return reply.usage.prompt_tokens_details.cached_tokens

    assert await cached() == 0
    assert await cached() == 96
    assert await cached(extra_body={"cache_salt": "other"}) == 0
    assert await cached(extra_body={"cache_salt": "other"}) == 96
    # Scored prompts need logits of every token.
    assert await cached(echo=True, logprobs=0) == 0


async def test_penalties_and_biases_change_what_is_said(client):
    asked = {"model": "tiny", "prompt": "Once", "temperature": 0, "max_tokens": 30}

    async def ask(**fields):
        return (await client.completions.create(**asked, logprobs=0, **fields)).choices[0]

    plain, presence, forced = await asyncio.gather(
        ask(), ask(presence_penalty=2, frequency_penalty=2), ask(logit_bias={"65": 100})
    )
    assert len(set(plain.logprobs.tokens)) < len(plain.logprobs.tokens)
    assert len(set(presence.logprobs.tokens)) == len(presence.logprobs.tokens)
    assert len(set(forced.logprobs.tokens)) == 1
    # As the model sees it, not as it was forced.
    assert max(forced.logprobs.token_logprobs) < -1


async def test_an_answer_is_as_long_as_asked_at_least(client):
    asked = {"model": "tiny", "prompt": "Once", "temperature": 0, "max_tokens": 30}
    whole = (await client.completions.create(**asked, logprobs=0)).choices[0].logprobs.tokens
    end = await client.completions.create(**asked, extra_body={"stop_token_ids": [*range(256)]})
    assert (end.choices[0].text, end.choices[0].finish_reason) == ("", "stop")
    assert end.usage.completion_tokens == 1
    late = await client.completions.create(
        **asked, extra_body={"stop_token_ids": [*range(128, 256)], "min_tokens": 6}
    )
    assert late.usage.completion_tokens >= 6
    assert len(whole) > 1


async def test_completions_of_text_and_tokens(client, chat_model):
    plain = await client.completions.create(model="tiny", prompt="Once", temperature=0)
    assert plain.usage.completion_tokens <= 16
    from backend.tokenizer.tokenizer import Tokenizer

    tokens = Tokenizer.load(chat_model).encode("Once")
    both = await client.completions.create(model="tiny", prompt=[tokens, tokens], temperature=0)
    assert [choice.text for choice in both.choices] == [plain.choices[0].text] * 2
    stream = await client.completions.create(
        model="tiny", prompt="Once", temperature=0, stream=True
    )
    text = "".join([chunk.choices[0].text async for chunk in stream])
    assert text == plain.choices[0].text


async def test_stop_strings_are_not_part_of_the_answer(client):
    asked = {"model": "tiny", "prompt": "Once", "temperature": 0, "max_tokens": 40}
    whole = (await client.completions.create(**asked)).choices[0].text
    stop = whole[3:5]
    stopped = (await client.completions.create(**asked, stop=stop)).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.text == whole[: whole.index(stop)]


async def test_models(client):
    assert [model.id async for model in client.models.list()] == ["tiny"]
    assert (await client.models.retrieve("tiny")).object == "model"


async def test_errors_have_their_types(client):
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        await client.completions.create(model="tiny", prompt="x" * 512)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as unsupported:
        await client.chat.completions.create(
            model="tiny", messages=MESSAGES, extra_body={"prompt_logprobs": 1}
        )
    assert unsupported.value.param == "prompt_logprobs"


async def test_a_cancelled_request_frees_its_blocks(client, real_server):
    stream = await client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        stream=True,
        temperature=1,
        extra_body={"ignore_eos": True},
    )
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    assert real_server.model.stats().kv_blocks_used > 0
    await stream.close()
    async with asyncio.timeout(60):
        while await real_server.metric("refrain_engine_kv_blocks_used") != 0:
            pass
    assert await real_server.metric("refrain_engine_sequences_running") == 0


async def test_the_synchronous_client(real_server):
    def ask():
        with openai.OpenAI(base_url=f"{real_server.url}/v1", api_key="anything") as client:
            asked = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 8}
            plain = client.chat.completions.create(**asked)
            with client.chat.completions.create(**asked, stream=True) as stream:
                parts = [chunk.choices[0].delta.content or "" for chunk in stream]
            completion = client.completions.create(model="tiny", prompt="Hi", max_tokens=4)
            return plain.choices[0].message.content, "".join(parts), completion.object

    plain, streamed, kind = await asyncio.to_thread(ask)
    assert plain == streamed
    assert kind == "text_completion"
