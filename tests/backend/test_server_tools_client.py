"""The real `openai` package: tools and structured answers of a tiny random model.

Its weights know nothing of tools, so whatever is right comes from constrained decoding.
"""

from typing import Literal

import openai
import pytest
import tokenizers
from pydantic import BaseModel, Field

pytest_plugins = ["tool_client"]

MESSAGES = [{"role": "user", "content": "Paint it, please."}]
ALPHABET = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
# A model with random weights would write more space than anything else.
NO_SPACE = {str(ALPHABET.index(character)): -100 for character in "ĠĊčĉ"}


class Point(BaseModel):
    x: int = Field(ge=0, le=99)
    y: int = Field(ge=0, le=99)


class Painting(BaseModel):
    """What to paint."""

    colour: Literal["red", "green", "blue"]
    at: list[Point] = Field(max_length=2)
    title: str | None = Field(max_length=6)
    again: bool


class Wipe(BaseModel):
    """Clean everything."""

    slowly: bool


TOOLS = [openai.pydantic_function_tool(Painting), openai.pydantic_function_tool(Wipe)]


@pytest.fixture(scope="module", params=["qwen", "llama"])
def model(request, chat_model, tmp_path_factory):
    from tool_client import tool_model

    directory = tmp_path_factory.mktemp("tools") / request.param
    yield from tool_model(chat_model, directory, request.param)


@pytest.mark.parametrize("seed", [1, 2])
async def test_answers_are_parsed_into_a_model(client, seed):
    reply = await client.chat.completions.parse(
        model="tiny",
        messages=MESSAGES,
        response_format=Painting,
        seed=seed,
        n=2,
        logit_bias=NO_SPACE,
    )
    for choice in reply.choices:
        assert isinstance(choice.message.parsed, Painting)
        assert choice.finish_reason == "stop"


async def test_a_streamed_answer_is_parsed_into_a_model(client):
    asked = {"model": "tiny", "messages": MESSAGES, "response_format": Painting, "seed": 3}
    asked |= {"logit_bias": NO_SPACE}
    plain = await client.chat.completions.parse(**asked)
    async with client.chat.completions.stream(**asked) as stream:
        async for _ in stream:
            pass
        streamed = await stream.get_final_completion()
    assert streamed.choices[0].message.parsed == plain.choices[0].message.parsed


REQUIRED = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "tool_choice": "required"}
REQUIRED |= {"seed": 4, "parallel_tool_calls": False, "logit_bias": NO_SPACE}


@pytest.mark.usefixtures("one_by_one")
async def test_required_calls_are_streamed(client):
    async with client.chat.completions.stream(**REQUIRED) as stream:
        kinds = [event.type async for event in stream]
    assert kinds.count("tool_calls.function.arguments.delta") > 3


async def test_required_calls_are_valid_plain_and_streamed(client):
    plain = (await client.chat.completions.parse(**REQUIRED)).choices[0]
    assert plain.finish_reason == "tool_calls"
    assert plain.message.content is None
    [call] = plain.message.tool_calls
    assert isinstance(call.function.parsed_arguments, Painting | Wipe)
    async with client.chat.completions.stream(**REQUIRED) as stream:
        streamed = (await stream.get_final_completion()).choices[0]
    assert streamed.finish_reason == "tool_calls"
    [again] = streamed.message.tool_calls
    assert again.function.arguments == call.function.arguments
    assert again.function.parsed_arguments == call.function.parsed_arguments


async def test_a_named_function_is_called_and_its_result_understood(client):
    asked = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "seed": 5}
    asked |= {"logit_bias": NO_SPACE}
    named = {"type": "function", "function": {"name": "Wipe"}}
    message = (await client.chat.completions.create(**asked, tool_choice=named)).choices[0].message
    [call] = message.tool_calls
    assert call.function.name == "Wipe"
    assert isinstance(Wipe.model_validate_json(call.function.arguments), Wipe)
    asked["messages"] = [
        *MESSAGES,
        message,
        {"role": "tool", "tool_call_id": call.id, "content": "done"},
    ]
    reply = await client.chat.completions.create(**asked, tool_choice="none", max_tokens=5)
    assert reply.choices[0].message.tool_calls is None
    assert reply.usage.completion_tokens <= 5


async def test_auto_lets_the_model_say_what_it_will(client):
    reply = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=TOOLS, max_tokens=30, seed=6
    )
    assert reply.choices[0].finish_reason in {"stop", "length", "tool_calls"}


async def test_either_a_call_or_an_answer_in_the_form_that_was_asked_for(client):
    asked = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "response_format": Wipe}
    asked |= {"logit_bias": NO_SPACE}
    for seed in range(3):
        message = (await client.chat.completions.parse(**asked, seed=seed)).choices[0].message
        assert isinstance(message.parsed, Wipe) or message.tool_calls


async def test_bad_schemas_are_bad_requests(client):
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "[a-"}}}
    form = {
        "type": "json_schema",
        "json_schema": {"name": "thing", "strict": True, "schema": schema},
    }
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model="tiny", messages=MESSAGES, response_format=form)
    assert refused.value.param == "response_format"
    assert "Invalid schema for response_format 'thing': Regex" in refused.value.message
    form["json_schema"]["schema"] = {"type": "object", "properties": {"a": {"not": {}}}}
    with pytest.raises(openai.BadRequestError, match="'not' is not permitted") as refused:
        await client.chat.completions.create(model="tiny", messages=MESSAGES, response_format=form)
    assert "In context=('properties', 'a')" in refused.value.message
