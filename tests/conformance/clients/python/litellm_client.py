"""The SDK of LiteLLM."""

import litellm
import scenes

TOOL = {"type": "function", "function": {"name": "weather", "parameters": scenes.SCHEMA}}


def ask(question, **more):
    return litellm.completion(
        model=f"openai/{scenes.MODEL}",
        base_url=f"{scenes.BASE_URL}/v1",
        api_key="anything",
        messages=[{"role": "user", "content": question}],
        max_retries=0,
        **more,
    )


def cache_of(reply):
    return reply._hidden_params["additional_headers"]["llm_provider-cache-status"]


def plain(question, **more):
    reply = ask(question, **more)
    message = reply.choices[0].message
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    return scenes.answer(message.content, calls=calls, cache=cache_of(reply))


def stream(question):
    reply = ask(question, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in reply]
    return scenes.answer("".join(pieces), cache=cache_of(reply))


scenes.run(plain, stream, lambda question: plain(question, tools=[TOOL]))
