"""The thread behind /v1/embeddings: batches, readers that leave, crashes, bounds, the end."""

import asyncio
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.engine.embedder import EmbeddingEngine, EmbeddingJob, EmbeddingQueue
from backend.models.config import ModelLoadError
from backend.models.cpu_decoder import SingleThreadIfSmall
from backend.ports import EmbeddingShape, EngineError, QueueFullError
from backend.settings import EngineOptions

pytest_plugins = ["running_backend", "running_embedder", "tiny_encoders"]


def queue(per_pass=100, waiting=1000):
    return EmbeddingQueue(max_tokens_per_pass=per_pass, max_waiting_tokens=waiting)


@pytest.fixture
def model(gated_model):
    return gated_model


@pytest.fixture
def engine(model):
    engine = EmbeddingEngine(model, queue(per_pass=40, waiting=100))
    engine.start()
    yield engine
    model.open.set()
    engine.stop()


async def entered(model):
    assert await asyncio.to_thread(model.entered.acquire, timeout=60)


def unpacked(vectors):
    return [struct.unpack("<2f", vector) for vector in vectors]


async def until(met):
    async with asyncio.timeout(60):
        while not met():  # noqa: ASYNC110 - the thread that changes it has no event of ours
            await asyncio.sleep(0)


async def waiting(engine, count):
    await until(lambda: engine.num_waiting == count)


async def test_what_arrives_during_a_pass_shares_the_next(engine, model):
    first = asyncio.create_task(engine.embed([(1,)]))
    await entered(model)
    others = [asyncio.create_task(engine.embed([(number,), (number, 0)])) for number in (2, 3)]
    await waiting(engine, 4)
    model.open.set()
    assert unpacked(await first) == [(1, 1)]
    assert [unpacked(await other) for other in others] == [[(1, 2), (2, 2)], [(1, 3), (2, 3)]]
    assert [len(batch) for batch in model.batches] == [1, 4]


async def test_a_reader_that_leaves_costs_no_further_pass(engine, model):
    first = asyncio.create_task(engine.embed([(1,) * 30, (2,) * 30, (3,) * 30]))
    await entered(model)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert engine.num_waiting == 0
    model.open.set()
    assert unpacked(await engine.embed([(4,)])) == [(1, 4)]
    assert model.batches == [[(1,) * 30], [(4,)]]


async def test_a_client_that_leaves_is_a_reader_that_leaves(serve_embedder, engine, model):
    model.open.set()
    server = await serve_embedder(engine)
    model.open.clear()
    body = {"model": "gated", "input": ["a" * 30, "b" * 30, "c" * 30]}
    asking = asyncio.create_task(server.post("/v1/embeddings", body))
    await waiting(engine, 2)
    asking.cancel()
    await waiting(engine, 0)


async def test_a_pass_that_crashes_fails_its_requests_and_no_others(engine, model):
    model.broken = 66
    first = asyncio.create_task(engine.embed([(1,)]))
    await entered(model)
    bad = asyncio.create_task(engine.embed([(66,) * 30, (2,) * 30]))
    good = asyncio.create_task(engine.embed([(3,) * 29]))
    await waiting(engine, 3)
    model.open.set()
    with pytest.raises(EngineError, match="while it computed this request"):
        await bad
    assert unpacked(await first) == [(1, 1)]
    assert unpacked(await good) == [(29, 3)]
    assert (2,) * 30 not in [tokens for batch in model.batches for tokens in batch]


@pytest.mark.parametrize("broken", [RuntimeError("CUDA error: an illegal memory access"), None])
async def test_an_engine_that_cannot_go_on_fails_whoever_waits_and_says_so(
    engine, model, monkeypatch, broken
):
    def embed(tokens):
        if broken is not None:
            raise broken
        return []  # fewer than there are inputs

    monkeypatch.setattr(model, "embed", embed)
    async with asyncio.timeout(60):
        with pytest.raises(EngineError, match="stopped after an internal error"):
            await engine.embed([(1,), (2,)])
    assert not engine.ready
    with pytest.raises(EngineError, match="stopped after an internal error"):
        await engine.embed([(1,)])


async def test_output_that_is_not_finite_fails_its_request_alone(engine, model):
    model.not_finite = 66
    first = asyncio.create_task(engine.embed([(1,)]))
    await entered(model)
    bad = asyncio.create_task(engine.embed([(66,), (2,)]))
    good = asyncio.create_task(engine.embed([(3,)]))
    await waiting(engine, 3)
    model.open.set()
    with pytest.raises(EngineError, match="not finite"):
        await bad
    assert unpacked(await good) == [(1, 3)]
    await first


async def test_too_much_is_refused_at_once_and_the_client_is_told_when_to_come_back(
    serve_embedder, engine, model
):
    model.open.set()
    server = await serve_embedder(engine)
    model.open.clear()
    kept = asyncio.create_task(engine.embed([(1,) * 40, (2,) * 40, (3,) * 40]))
    await waiting(engine, 2)
    with pytest.raises(QueueFullError, match="80 tokens wait"):
        await engine.embed([(4,) * 40])
    reply = await server.post("/v1/embeddings", {"model": "gated", "input": "d" * 40})
    assert (reply.status, reply.error["code"]) == (429, "queue_full")
    assert int(reply.headers["Retry-After"]) >= 1
    model.open.set()
    assert len(await kept) == 3


async def test_the_end_fails_what_waits(engine, model):
    first = asyncio.create_task(engine.embed([(1,) * 40, (2,) * 40]))
    await entered(model)
    stopping = asyncio.create_task(asyncio.to_thread(engine.stop))
    await until(lambda: not engine.ready)
    model.open.set()
    with pytest.raises(EngineError, match="shutting down"):
        await first
    await stopping
    with pytest.raises(EngineError, match="shutting down"):
        await engine.embed([(1,)])
    assert len(model.batches) == 1


async def test_a_pass_that_does_not_end_is_reported(engine, model):
    first = asyncio.create_task(engine.embed([(1,)]))
    await entered(model)
    with pytest.raises(TimeoutError, match="did not stop"):
        engine.stop(timeout=0.01)
    model.open.set()
    assert unpacked(await first) == [(1, 1)]


def load(directory, **changes):
    from backend.engine.embedder import load_embedding_model

    return load_embedding_model(EngineOptions(str(directory), device="cpu", **changes))


def copied(minilm, tmp_path, **changed):
    for file in minilm.iterdir():
        if file.name not in changed:
            (tmp_path / file.name).symlink_to(file)
    for name, content in changed.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model.safetensors": b"damaged"}, "deserializ"),
        ({"modules.json": b"{"}, "property name"),
        ({"model.safetensors": None}, "no file named"),
        (
            {
                "modules.json": b'[{"idx": 0, "name": "0", "path": "1_Pooling", '
                b'"type": "sentence_transformers.models.Pooling"}]'
            },
            "does not read token ids",
        ),
    ],
    ids=["damaged weights", "damaged list", "no weights", "no transformer"],
)
def test_a_directory_that_is_no_model(minilm, tmp_path, changed, said):
    with pytest.raises(ModelLoadError, match=said) as caught:
        load(copied(minilm, tmp_path, **changed))
    assert str(caught.value).startswith(f"{tmp_path}: ")
    assert "\n" not in str(caught.value)


def test_without_sentence_transformers_it_is_said_what_to_install(minilm, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    said = r"needs sentence_transformers: pip install 'refrain-gateway\[transformers\]'"
    with pytest.raises(ModelLoadError, match=said):
        load(minilm)


def test_the_context_may_be_set_up_to_the_models_positions(minilm):
    model, _ = load(minilm, max_model_len=512)
    assert model.shape.max_tokens == 512
    with pytest.raises(ModelLoadError, match="the model's context is 512 tokens"):
        load(minilm, max_model_len=513)


def test_the_default_prompt_goes_before_texts(minilm, tmp_path):
    settings = b'{"prompts": {"query": "query: "}, "default_prompt_name": "query"}'
    _, prompted = load(copied(minilm, tmp_path, **{"config_sentence_transformers.json": settings}))
    _, plain = load(minilm)
    made = prompted.encode("hello", add_special_tokens=True)
    assert made == plain.encode("query: hello", add_special_tokens=True)


def test_prompts_that_pooling_leaves_out_cannot_be_named_and_chat_templates_are_refused(tmp_path):
    from tiny_encoders import edit_json, save_embedder, save_tokenizer

    directory = save_embedder(tmp_path, "mean")
    edit_json(directory / "1_Pooling" / "config.json", include_prompt=False)
    _, tokenizer = load(directory)
    assert tokenizer.named == {}
    edit_json(directory / "config_sentence_transformers.json", default_prompt_name="topic")
    with pytest.raises(ModelLoadError, match="leaving the prompt out of pooling"):
        load(directory)
    save_tokenizer(directory, template="{{ messages }}")
    read = {"method": "forward", "method_output_name": "last_hidden_state"}
    kinds = {"text": read, "message": {**read, "format": "flat"}}
    edit_json(directory / "sentence_bert_config.json", modality_config=kinds)
    with pytest.raises(ModelLoadError, match="chat template"):
        load(directory)


class FewThreads:
    """As much of a SentenceTransformer as is asked of it; says how many threads it has."""

    device = torch.device("cpu")
    tokenizer = SimpleNamespace(pad_token_id=0, padding_side="right")

    def __call__(self, features):
        return {"sentence_embedding": torch.full((1, 2), float(torch.get_num_threads()))}


def test_a_thread_that_begins_while_another_engine_takes_few_has_its_own():
    from backend.engine.embedder import EmbeddingModel

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = EmbeddingModel(FewThreads(), EmbeddingShape(8, dimensions=2, unit=False))
        with ThreadPoolExecutor(1) as other, SingleThreadIfSmall(1):
            vectors = other.submit(model.embed, [[1]]).result(60)
    finally:
        torch.set_num_threads(before)
    assert unpacked(vectors) == [(2.0, 2.0)]


def job(*lengths):
    return EmbeddingJob([(1,) * length for length in lengths])


def test_the_longest_inputs_of_a_request_go_first():
    waiting = queue(per_pass=60)
    waiting.add(job(10, 30, 20))
    assert [position for _, position in waiting.take()] == [1, 2]
    assert [position for _, position in waiting.take()] == [0]


def test_requests_take_turns_so_that_a_large_one_holds_nobody_up():
    waiting, small = queue(per_pass=40), job(10)
    waiting.add(job(*[10] * 50))
    waiting.add(small)
    assert small in [each for each, _ in waiting.take()]


def test_padding_counts():
    waiting = queue(per_pass=100)
    waiting.add(job(90))
    waiting.add(job(5, 5))
    assert [len(waiting.take()) for _ in range(2)] == [1, 2]


def test_an_input_over_the_budget_gets_a_pass_of_its_own():
    waiting = queue(per_pass=10)
    waiting.add(job(50, 50))
    assert [len(waiting.take()) for _ in range(3)] == [1, 1, 0]


def test_what_waits_is_bounded_and_a_refusal_takes_nothing():
    waiting, large, small = queue(waiting=100), job(150), job(1)
    waiting.add(large)  # larger than the bound, but nothing else waits
    with pytest.raises(QueueFullError, match="150 tokens wait"):
        waiting.add(small)
    assert waiting.num_waiting == 1
    waiting.drop(large)
    waiting.drop(large)
    waiting.add(small)
    assert waiting.num_waiting_tokens == 1


@given(st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=8), max_size=8))
def test_every_input_is_in_one_pass_within_the_budget(requests):
    waiting, jobs = queue(per_pass=100, waiting=10_000), [job(*lengths) for lengths in requests]
    for each in jobs:
        waiting.add(each)
    taken = []
    while batch := waiting.take():
        longest = max(len(each.inputs[position]) for each, position in batch)
        assert len(batch) == 1 or longest * len(batch) <= 100
        taken += batch
    expected = [(each, position) for each in jobs for position in range(len(each.inputs))]
    assert len(taken) == len(expected)
    assert set(taken) == set(expected)
    assert waiting.num_waiting == waiting.num_waiting_tokens == 0
