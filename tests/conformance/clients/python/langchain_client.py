"""LangChain's ChatOpenAI."""

import scenes
from langchain_openai import ChatOpenAI

MODEL = ChatOpenAI(
    base_url=f"{scenes.BASE_URL}/v1",
    api_key="anything",
    model=scenes.MODEL,
    max_retries=0,
    include_response_headers=True,
)
TOOL = {"type": "function", "function": {"name": "weather", "parameters": scenes.SCHEMA}}


def seen(message):
    calls = [(call["name"], call["args"]) for call in message.tool_calls]
    cache = message.response_metadata["headers"]["cache-status"]
    return scenes.answer(message.content, calls=calls, cache=cache)


def stream(question):
    first, *rest = MODEL.stream(question)
    return seen(sum(rest, first))


scenes.run(
    lambda question: seen(MODEL.invoke(question)),
    stream,
    lambda question: seen(MODEL.bind_tools([TOOL]).invoke(question)),
)
