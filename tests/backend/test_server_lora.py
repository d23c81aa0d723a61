"""LoRA adapters over HTTP: a request's model is the base or an adapter by its name."""

import asyncio
import json

import pytest
from fake_models import at_once, nothing_to_close
from lora_adapters import merge, write_adapter

from backend.app import create_app
from backend.engine.loading import load_engine
from backend.models.config import ModelLoadError
from backend.scheduler.cache_events import BlocksStored, EventBatch
from backend.scheduler.request import GenerationRequest, SamplingParams
from backend.server.app import SERVED_MODEL, build_application
from backend.server.kv_events import KvEvents
from backend.server.served_model import LoadedModel, ServedModel
from backend.settings import AdapterSource, Settings

pytest_plugins = ["running_backend", "tiny_checkpoints"]

MODEL = "base"
ADAPTERS = (AdapterSource("sql", "/adapters/sql"), AdapterSource("org/poems", "poems"))


@pytest.fixture
async def server(serve_application):
    from running_backend import CharacterEncoder, ScriptedGenerator

    generator = ScriptedGenerator()
    loaded = LoadedModel(generator, CharacterEncoder(), nothing_to_close)
    model = ServedModel(MODEL, at_once(loaded), adapters=ADAPTERS)
    server = await serve_application(build_application(model), generator)
    await server.model.load()
    return server


async def test_every_endpoint_takes_an_adapters_name(server):
    for name, number in ((MODEL, 0), ("sql", 1), ("org/poems", 2)):
        for reply in (
            await server.chat(model=name),
            await server.complete(model=name),
            await server.respond(model=name),
        ):
            assert reply.status == 200
            assert reply.json["model"] == name
        assert [each.adapter for each in server.generator.requests[-3:]] == [number] * 3
        assert (await server.post("/tokenize", {"model": name, "prompt": "a"})).status == 200
    for ask in (server.chat, server.complete, server.respond):
        reply = await ask(model="other")
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")


async def test_adapters_are_listed_behind_their_base(server):
    base, sql, poems = (await server.get("/v1/models")).json["data"]
    assert base["id"] == MODEL
    assert sql == base | {"id": "sql", "root": "/adapters/sql", "parent": MODEL}
    assert poems == base | {"id": "org/poems", "root": "poems", "parent": MODEL}
    assert (await server.get("/v1/models/org/poems")).json == poems


async def test_routers_learn_whose_blocks_they_are(serve_application, server):
    events = KvEvents(beat_seconds=0.01)
    events.adapter_names = ("sql", "org/poems")
    events.adapters = lambda: (b"one", b"two")
    app = build_application(server.model, kv_events=events)
    routed = await serve_application(app)
    events.apply([EventBatch(0, (BlocksStored(b"root", (b"a",), 16),))])
    async with routed.session.get(f"{routed.url}/kv_events") as reply:
        lines = []
        while True:
            line = await reply.content.readline()
            if line.startswith(b"data: "):
                lines.append(json.loads(line.removeprefix(b"data: ")))
                if len(lines) == 2:
                    break
                events.apply([EventBatch(1, (BlocksStored(b"else", (b"b",), 16, 2),))])
    assert set(lines[0]["adapters"]) == {"sql", "org/poems"}
    assert len(set(lines[0]["adapters"].values())) == 2
    assert (lines[1]["lora_id"], lines[1]["lora_name"]) == (2, "org/poems")


async def test_the_engines_process_computes_by_the_adapter_that_is_named(
    serve_application, checkpoint, tmp_path
):
    base = checkpoint("llama")[0]
    adapter = write_adapter(tmp_path / "adapter", base, seed=3)
    settings = Settings(
        model=str(base),
        served_model_name="base",
        lora=(AdapterSource("mine", str(adapter)),),
        threads=1,
    )
    server = await serve_application(create_app(settings))
    await server.model.load()
    prompt = tuple(range(20, 60))

    async def written(name):
        reply = await server.complete(list(prompt), model=name, temperature=0, max_tokens=16)
        return reply.json["choices"][0]["text"]

    by_base, by_adapter = await asyncio.gather(written("base"), written("mine"))
    engine, _ = load_engine(str(merge(base, adapter, tmp_path / "merged")), device="cpu")
    engine.start()
    sampling = SamplingParams(temperature=0.0, max_tokens=16)
    request = GenerationRequest("r", prompt, sampling)
    merged = "".join([delta.text async for delta in engine.generate(request)])
    engine.stop()
    assert by_adapter.split() == merged.split()
    assert by_adapter != by_base


async def test_an_adapter_has_not_its_models_name(checkpoint, tmp_path):
    base = checkpoint("llama")[0]
    adapter = write_adapter(tmp_path / "adapter", base, seed=3)
    settings = Settings(
        model=str(base), served_model_name="same", lora=(AdapterSource("same", str(adapter)),)
    )
    with pytest.raises(ModelLoadError, match=r"^lora same=.*: the model itself has this name$"):
        await create_app(settings)[SERVED_MODEL].load()


async def test_an_embedding_model_takes_none(checkpoint, tmp_path):
    adapter = write_adapter(tmp_path / "adapter", checkpoint("llama")[0], seed=3)
    model = tmp_path / "encoder"
    model.mkdir()
    (model / "modules.json").write_text("[]")
    settings = Settings(model=str(model), lora=(AdapterSource("mine", str(adapter)),))
    with pytest.raises(ModelLoadError, match="an embedding model takes no LoRA adapters"):
        await create_app(settings)[SERVED_MODEL].load()
