"""LlamaIndex's OpenAILike."""

import scenes
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

MODEL = OpenAILike(
    api_base=f"{scenes.BASE_URL}/v1",
    api_key="anything",
    model=scenes.MODEL,
    is_chat_model=True,
    is_function_calling_model=True,
    max_retries=0,
)


def weather(city: str) -> str:
    """Tell the weather."""
    return city


def plain(question):
    return scenes.answer(MODEL.chat([ChatMessage(question)]).message.content)


def stream(question):
    pieces = [chunk.delta or "" for chunk in MODEL.stream_chat([ChatMessage(question)])]
    return scenes.answer("".join(pieces))


def call(question):
    reply = MODEL.chat_with_tools([FunctionTool.from_defaults(weather)], user_msg=question)
    calls = [
        (each.tool_name, each.tool_kwargs) for each in MODEL.get_tool_calls_from_response(reply)
    ]
    return scenes.answer(reply.message.content, calls=calls)


scenes.run(plain, stream, call)
