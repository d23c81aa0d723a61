"""/v1/responses of the real engine behind the real gateway, by the unmodified openai client."""

import openai
import pytest

from backend.ports import EngineError
from backend.scheduler.request import TextDelta

pytest_plugins = ["running_backend"]

ASKED = {
    "model": "tiny",
    "input": "Is it raining?",
    "temperature": 0,
    "store": False,
    # Else a model with random weights might never come to an end.
    "extra_body": {"structured_outputs": {"choice": ["yes", "no"]}},
}


@pytest.fixture
async def connect(start_gateway):
    clients = []

    async def connect(engine):
        gateway = await start_gateway(upstream=(f"{engine.url}/v1",))
        clients.append(
            openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="anything", max_retries=0)
        )
        return clients[-1]

    yield connect
    for client in clients:
        await client.close()


async def plain(client, **fields):
    raw = await client.responses.with_raw_response.create(**ASKED, **fields)
    return raw.headers["Cache-Status"], raw.parse()


async def streamed(client, **fields):
    raw = await client.responses.with_raw_response.create(**ASKED, **fields, stream=True)
    events = [event async for event in raw.parse()]
    return raw.headers["Cache-Status"], events[-1].response


@pytest.mark.parametrize(("first", "then"), [(plain, streamed), (streamed, plain)])
async def test_a_miss_is_kept_and_found_in_either_form(start_real_server, connect, first, then):
    client = await connect(await start_real_server())
    missed, answer = await first(client, user="a")
    assert missed.startswith("refrain; fwd=miss")
    assert answer.output_text in {"yes", "no"}
    for ask in (first, then):
        hit, again = await ask(client, user="b")
        assert hit.endswith("detail=exact")
        assert again.user == "b"
        assert again.output == answer.output
        assert again.usage == answer.usage
        assert again.text == answer.text


async def test_a_response_that_may_be_kept_upstream_passes_by_the_cache(start_real_server, connect):
    client = await connect(await start_real_server())
    raw = await client.responses.with_raw_response.create(
        model="tiny", input="Hi", max_output_tokens=5
    )
    assert raw.headers["Cache-Status"] == "refrain; fwd=bypass; detail=store-true"
    assert raw.parse().store is False


async def test_what_broke_off_is_told_and_not_kept(start_server, connect):
    async def script(request):
        yield TextDelta(0, "Hel", 1)
        raise EngineError("it broke")

    engine = await start_server()
    healthy, engine.generator.script = engine.generator.script, script
    client = await connect(engine)
    asked = {"model": engine.model.name, "input": "Hi", "temperature": 0, "store": False}
    stream = await client.responses.create(**asked, stream=True)
    kinds = [(await anext(stream)).type for _ in range(6)]
    assert kinds[-1] == "response.failed"
    with pytest.raises(openai.APIError, match="The engine failed: it broke"):
        await anext(stream)
    engine.generator.script = healthy
    raw = await client.responses.with_raw_response.create(**asked)
    assert raw.headers["Cache-Status"] == "refrain; fwd=miss; stored"
    assert raw.parse().output_text == "Hello world"
