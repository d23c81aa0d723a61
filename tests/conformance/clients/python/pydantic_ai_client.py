"""Agents of pydantic-ai: an agent calls the tool and asks again with what it returned."""

import scenes
from pydantic_ai import Agent
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

PROVIDER = OpenAIProvider(base_url=f"{scenes.BASE_URL}/v1", api_key="anything")
AGENT = Agent(OpenAIChatModel(scenes.MODEL, provider=PROVIDER))


def weather(city: str) -> str:
    """Tell the weather."""
    return f"sunny in {city}"


def plain(question):
    return scenes.answer(AGENT.run_sync(question).output)


def stream(question):
    reply = AGENT.run_stream_sync(question)
    return scenes.answer("".join(reply.stream_text(delta=True)))


def call(question):
    run = Agent(AGENT.model, tools=[weather]).run_sync(question)
    parts = [part for message in run.all_messages() for part in message.parts]
    calls = [(part.tool_name, part.args) for part in parts if isinstance(part, ToolCallPart)]
    return scenes.answer(run.output, calls=calls)


scenes.run(plain, stream, call)
