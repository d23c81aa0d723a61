"""The openai package, chat completions."""

import openai
import scenes

CLIENT = openai.OpenAI(base_url=f"{scenes.BASE_URL}/v1", api_key="anything", max_retries=0)
TOOL = {"type": "function", "function": {"name": "weather", "parameters": scenes.SCHEMA}}


def plain(question, **more):
    raw = CLIENT.chat.completions.with_raw_response.create(
        model=scenes.MODEL, messages=[{"role": "user", "content": question}], **more
    )
    message = raw.parse().choices[0].message
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    return scenes.answer(message.content, calls=calls, cache=raw.headers["cache-status"])


def stream(question):
    raw = CLIENT.chat.completions.with_raw_response.create(
        model=scenes.MODEL, messages=[{"role": "user", "content": question}], stream=True
    )
    pieces = [choice.delta.content or "" for chunk in raw.parse() for choice in chunk.choices]
    return scenes.answer("".join(pieces), cache=raw.headers["cache-status"])


scenes.run(plain, stream, lambda question: plain(question, tools=[TOOL]))
