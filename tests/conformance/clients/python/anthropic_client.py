"""The anthropic package."""

import anthropic
import scenes

CLIENT = anthropic.Anthropic(base_url=scenes.BASE_URL, api_key="anything", max_retries=0)
TOOL = {"name": "weather", "input_schema": scenes.SCHEMA}


def asked(question):
    return {
        "model": scenes.MODEL,
        "max_tokens": 64,
        "messages": [{"role": "user", "content": question}],
    }


def seen(message, cache):
    text = "".join(block.text for block in message.content if block.type == "text")
    calls = [(block.name, block.input) for block in message.content if block.type == "tool_use"]
    return scenes.answer(text, calls=calls, cache=cache)


def plain(question, **more):
    raw = CLIENT.messages.with_raw_response.create(**asked(question), **more)
    return seen(raw.parse(), raw.headers["cache-status"])


def stream(question):
    with CLIENT.messages.stream(**asked(question)) as events:
        pieces = list(events.text_stream)
        return scenes.answer("".join(pieces), cache=events.response.headers["cache-status"])


scenes.run(plain, stream, lambda question: plain(question, tools=[TOOL]))
