"""The real `openai` package: `client.responses` against a tiny random model."""

from typing import Literal

import openai
import orjson
import pytest
import tokenizers
from pydantic import BaseModel, Field

from backend.ports import EngineError
from backend.scheduler.request import TextDelta

pytest_plugins = ["tool_client"]

ASKED = {"model": "tiny", "input": "Grüße, how are you?", "store": False}
ALPHABET = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
# A model with random weights would write more space than anything else.
NO_SPACE = {"logit_bias": {str(ALPHABET.index(character)): -100 for character in "ĠĊčĉ"}}


class Painting(BaseModel):
    """What to paint."""

    colour: Literal["red", "green", "blue"]
    strokes: int = Field(ge=0, le=99)


TOOLS = [openai.pydantic_function_tool(Painting)["function"] | {"type": "function"}]


@pytest.fixture(scope="module")
def model(chat_model, tmp_path_factory):
    from tool_client import tool_model

    directory = tmp_path_factory.mktemp("responses") / "qwen"
    yield from tool_model(chat_model, directory, "qwen")


async def test_plain_and_streamed_say_the_same_as_chat(client):
    asked = ASKED | {"temperature": 0, "max_output_tokens": 20, "instructions": "Be kind."}
    plain = await client.responses.create(**asked)
    events = [event async for event in await client.responses.create(**asked, stream=True)]
    chat = await client.chat.completions.create(
        model="tiny",
        messages=[
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": asked["input"]},
        ],
        temperature=0,
        max_tokens=20,
    )
    said = chat.choices[0].message.content
    assert said
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert plain.output_text == "".join(deltas) == events[-1].response.output_text == said
    assert [event.sequence_number for event in events] == list(range(len(events)))
    ended = {"stop": "completed", "length": "incomplete"}[chat.choices[0].finish_reason]
    assert plain.status == events[-1].response.status == ended
    assert plain.usage.input_tokens == chat.usage.prompt_tokens
    assert plain.usage.output_tokens == chat.usage.completion_tokens


async def test_log_probabilities_spell_the_text(client):
    included = {"include": ["message.output_text.logprobs"], "top_logprobs": 3}
    reply = await client.responses.create(**ASKED, **included, max_output_tokens=20, temperature=0)
    [part] = reply.output[0].content
    spelled = bytes(byte for token in part.logprobs for byte in token.bytes)
    assert spelled.decode(errors="replace") == part.text
    assert {len(token.top_logprobs) for token in part.logprobs} == {3}


async def test_answers_are_parsed_into_a_model(client):
    reply = await client.responses.parse(
        **ASKED, text_format=Painting, extra_body=NO_SPACE | {"seed": 1}
    )
    assert isinstance(reply.output_parsed, Painting)
    assert reply.status == "completed"
    assert reply.text.format.name == "Painting"


@pytest.mark.usefixtures("one_by_one")
async def test_a_streamed_answer_is_parsed_into_a_model(client):
    async with client.responses.stream(
        **ASKED, text_format=Painting, extra_body=NO_SPACE | {"seed": 2}
    ) as stream:
        kinds = [event.type async for event in stream]
        streamed = await stream.get_final_response()
    assert kinds.count("response.output_text.delta") > 3
    assert isinstance(streamed.output_parsed, Painting)


@pytest.mark.usefixtures("one_by_one")
async def test_required_calls_are_streamed(client):
    asked = ASKED | {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    async with client.responses.stream(**asked, extra_body=NO_SPACE | {"seed": 4}) as stream:
        kinds = [event.type async for event in stream]
    assert kinds.count("response.function_call_arguments.delta") > 3


async def test_required_calls_are_valid_plain_and_streamed_and_can_be_answered(client):
    asked = ASKED | {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    asked["extra_body"] = NO_SPACE | {"seed": 4}
    plain = await client.responses.create(**asked)
    [call] = plain.output
    assert isinstance(Painting.model_validate_json(call.arguments), Painting)
    async with client.responses.stream(**asked) as stream:
        streamed = await stream.get_final_response()
    [again] = streamed.output
    assert (again.name, again.arguments) == ("Painting", call.arguments)
    assert again.parsed_arguments == orjson.loads(call.arguments)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    reply = await client.responses.create(
        model="tiny",
        input=[{"role": "user", "content": "Paint."}, *plain.output, output],
        max_output_tokens=5,
    )
    assert reply.usage.output_tokens <= 5


async def test_a_named_function_is_called(client):
    reply = await client.responses.create(
        **ASKED,
        tools=TOOLS,
        tool_choice={"type": "function", "name": "Painting"},
        extra_body=NO_SPACE | {"seed": 5},
    )
    [call] = reply.output
    assert isinstance(Painting.model_validate_json(call.arguments), Painting)


async def test_what_is_kept_nowhere_is_a_bad_request(client):
    with pytest.raises(openai.BadRequestError, match="'previous_response_id' is not") as refused:
        await client.responses.create(**ASKED, previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve("resp_1")


async def test_a_stream_that_breaks_off_is_an_error(start_server):
    async def script(request):
        yield TextDelta(0, "Hel", 1)
        raise EngineError("it broke")

    server = await start_server()
    server.generator.script = script
    base_url = f"{server.url}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key="anything", max_retries=0) as client:
        stream = await client.responses.create(model=server.model.name, input="Hi", stream=True)
        kinds = [(await anext(stream)).type for _ in range(6)]
        assert kinds[-2:] == ["response.output_text.delta", "response.failed"]
        with pytest.raises(openai.APIError, match="it broke"):
            await anext(stream)
