"""The openai-agents package: an agent calls the tool and asks again with what it returned."""

import asyncio

import scenes
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(disabled=True)
CLIENT = AsyncOpenAI(base_url=f"{scenes.BASE_URL}/v1", api_key="anything", max_retries=0)
MODEL = OpenAIChatCompletionsModel(scenes.MODEL, CLIENT)
AGENT = Agent("assistant", model=MODEL)


@function_tool
def weather(city: str) -> str:
    """Tell the weather."""
    return f"sunny in {city}"


def plain(question):
    return scenes.answer(LOOP.run_until_complete(Runner.run(AGENT, question)).final_output)


async def read(question):
    reply = Runner.run_streamed(AGENT, question)
    return [
        event.data.delta
        async for event in reply.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]


def stream(question):
    return scenes.answer("".join(LOOP.run_until_complete(read(question))))


def call(question):
    agent = Agent("assistant", model=MODEL, tools=[weather])
    run = LOOP.run_until_complete(Runner.run(agent, question))
    raw = [item.raw_item for item in run.new_items if item.type == "tool_call_item"]
    return scenes.answer(run.final_output, calls=[(item.name, item.arguments) for item in raw])


LOOP = asyncio.new_event_loop()
scenes.run(plain, stream, call)
LOOP.close()
