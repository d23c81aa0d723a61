"""`refrain demo` as a newcomer meets it: everything real, through the unmodified openai client."""

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from processes import Process

MODEL = "refrain-demo"
RESET = "How do I reset my password?"


def start_demo(data: Path) -> tuple[Process, str]:
    process = Process("-m", "gateway.cli", "demo", "--port", "0", "--data-dir", str(data))
    line = process.wait_for_line("Refrain is ready.")
    return process, line.split()[4]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def demo(data_dir: Path) -> Iterator[tuple[Process, str]]:
    process, url = start_demo(data_dir)
    yield process, url
    process.stop(signal.SIGKILL)


@pytest.fixture
def client(demo: tuple[Process, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=demo[1], api_key="anything", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, question: str) -> tuple[str, str]:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": question}], temperature=0
    )
    answer = raw.parse().choices[0]
    assert answer.finish_reason == "stop"
    assert answer.message.content is not None
    return raw.headers["Cache-Status"], answer.message.content


def test_the_readme_transcript(client: openai.OpenAI):
    miss, answer = ask(client, RESET)
    assert miss == "refrain; fwd=miss; stored"
    assert "password" in answer

    exact, again = ask(client, RESET)
    assert exact.endswith("detail=exact")
    assert again == answer

    semantic, same = ask(client, "How can I reset my password?")
    assert 'detail="semantic; similarity=0.99' in semantic
    assert same == answer

    near_miss, other = ask(client, "How do I change my password?")
    assert near_miss == "refrain; fwd=miss; stored"
    assert other != answer


def test_streamed_and_plain_share_an_entry(client: openai.OpenAI):
    question = "How do I delete my account?"
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert chunks[-1].usage is not None
    status, plain = ask(client, question)
    assert status.endswith("detail=exact")
    assert plain == text


async def test_async_completions_and_models(demo: tuple[Process, str]):
    async with openai.AsyncOpenAI(base_url=demo[1], api_key="anything", max_retries=0) as client:
        models = [model.id async for model in await client.models.list()]
        assert models == [MODEL]
        completion = await client.completions.create(
            model=MODEL, prompt="How do I", max_tokens=8, temperature=0
        )
        assert completion.usage is not None
        assert 0 < completion.usage.completion_tokens <= 8
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hello!"}], stream=True
        )
        assert "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])


def test_what_the_engine_refuses_passes_through(client: openai.OpenAI):
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "a"}])
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "word " * 9000}]
        )
    assert long.value.code == "context_length_exceeded"


def test_a_second_start_still_has_the_entries_and_ctrl_c_leaves_nothing(
    demo: tuple[Process, str], client: openai.OpenAI, data_dir: Path
):
    _, answer = ask(client, RESET)
    process, _ = demo
    children = [os.pidfd_open(pid) for pid in process.children()]
    assert len(children) == 3
    assert process.stop(signal.SIGINT) == 0
    for descriptor in children:
        assert select.select([descriptor], [], [], 30)[0]  # readable once the process has ended
        os.close(descriptor)

    process, url = start_demo(data_dir)
    with openai.OpenAI(base_url=url, api_key="anything", max_retries=0) as again:
        status, same = ask(again, RESET)
        assert (status.rpartition(" ")[2], same) == ("detail=exact", answer)
        assert "semantic" in ask(again, "How can I reset my password?")[0]
    assert process.stop(signal.SIGINT) == 0
