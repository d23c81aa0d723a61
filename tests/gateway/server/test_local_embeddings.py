"""Embeddings of the installation's own encoder: its port's fake, the real pipeline around it."""

import struct
import time
from base64 import b64decode
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.app import default_policy
from gateway.cache.pii_scan import Scans
from gateway.cache.quality.quarantine import QuarantineFile
from gateway.cache.stores.memory import MemoryStore
from gateway.cache.writer import CacheWriter
from gateway.protocol.errors import ClientError, UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.request import read_request
from gateway.semantic.ports import SemanticUnavailableError
from gateway.server.open.local_encoder import LocalModel, LocalUpstream
from gateway.server.open.policy_file import PolicyFile
from gateway.server.pipeline import Pipeline
from gateway.server.prepare import Outbox
from gateway.telemetry.observation import Observation
from gateway.upstream.answer import AnsweredCall
from gateway.upstream.sharing.coalescer import Coalescer
from policies.decision import Endpoint


class Encoder:
    """The fake at the encoder's port: two numbers a text."""

    name = "all-MiniLM-L6-v2"
    digest = "ab" * 32

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.fault: str | None = None

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        if self.fault is not None:
            raise SemanticUnavailableError(self.fault)
        self.asked.append(list(texts))
        return [(0.5, float(len(text))) for text in texts]


class NoUpstream:
    """The fake at the upstream's port: nothing may come here."""

    name = "http://upstream/v1"

    def send(self, outgoing):
        raise UpstreamError(502, "asked", Reason.UPSTREAM_UNREACHABLE)


class Rig:
    def __init__(self, data_dir: Path) -> None:
        self.encoder = Encoder()
        store, scans = MemoryStore(max_bytes=2**20), Scans()
        quarantine = QuarantineFile(data_dir / "quarantine.jsonl")
        writer = CacheWriter(store, None, scans, time.time, quarantine)
        made = partial(AnsweredCall, writer=writer, max_answer_bytes=2**20)
        self.pipeline = Pipeline(
            store=store,
            semantic=None,
            verifier=None,
            policies=PolicyFile(default_policy()),
            coalescer=Coalescer(made(NoUpstream())),
            scans=scans,
            secret=bytes(32),
            outbox=Outbox(bytes(32)),
            recorder=None,
            now=time.time,
            local=LocalModel(self.encoder, Coalescer(made(LocalUpstream(self.encoder)))),
        )

    async def ask(self, given: Any, **fields: Any) -> tuple[str, int, Any]:
        body = {"model": self.encoder.name, "input": given, **fields}
        request = read_request(Endpoint.EMBEDDINGS, orjson.dumps(body), headers={})
        seen = Observation("/v1/embeddings", 0.0, time.perf_counter, ())
        reply, _ = await self.pipeline.answer(request, seen)
        return dict(reply.headers)["Cache-Status"], reply.status, orjson.loads(reply.body)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.mark.parametrize("model", ["all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"])
async def test_a_request_that_names_it_is_embedded_here_and_found_again(rig: Rig, model):
    status, code, reply = await rig.ask("abc", model=model)
    assert (status, code) == ("refrain; fwd=miss; stored; detail=local", 200)
    assert reply == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 3.0]}],
        "model": model,
        "usage": {"prompt_tokens": 0, "total_tokens": 0},
    }
    assert (await rig.ask("abc", model=model))[0].startswith("refrain; hit")
    assert rig.encoder.asked == [["abc"]]


async def test_a_batch_is_embedded_for_what_is_missing(rig: Rig):
    await rig.ask(["a", "bb"])
    status, _, reply = await rig.ask(["ccc", "bb"])
    assert status == 'refrain; fwd=miss; stored; detail="partial; items=1/2"'
    assert [one["embedding"] for one in reply["data"]] == [[0.5, 3.0], [0.5, 2.0]]
    assert rig.encoder.asked == [["a", "bb"], ["ccc"]]


async def test_base64_holds_the_same_numbers(rig: Rig):
    _, _, reply = await rig.ask("abc", encoding_format="base64")
    packed = b64decode(reply["data"][0]["embedding"])
    assert struct.unpack("<2f", packed) == (0.5, 3.0)


async def test_vectors_of_another_encoder_are_not_found(rig: Rig):
    await rig.ask("abc")
    rig.encoder.digest = "cd" * 32
    assert (await rig.ask("abc"))[0] == "refrain; fwd=miss; stored; detail=local"


@pytest.mark.parametrize(
    "model", ["all-MiniLM-L12-v2", "text-embedding-3-small", "x/all-MiniLM-L6-v2"]
)
async def test_other_models_are_the_upstreams(rig: Rig, model):
    with pytest.raises(UpstreamError, match="asked"):
        await rig.ask("abc", model=model)


async def test_while_it_has_no_name_it_serves_nothing(rig: Rig):
    rig.encoder.name = ""
    with pytest.raises(UpstreamError, match="asked"):
        await rig.ask("abc", model="all-MiniLM-L6-v2")


@pytest.mark.parametrize(
    ("given", "fields", "param"),
    [
        ([1, 2], {}, "input"),
        ([[1], [2]], {}, "input"),
        ("abc", {"dimensions": 7}, "dimensions"),
        ("abc", {"encoding_format": "hex"}, "encoding_format"),
    ],
)
async def test_what_it_cannot_do_is_refused_in_openais_form(rig: Rig, given, fields, param):
    status, code, reply = await rig.ask(given, **fields)
    assert (code, reply["error"]["param"]) == (400, param)
    assert set(reply["error"]) == {"message", "type", "param", "code"}
    assert "stored" not in status
    assert rig.encoder.asked in ([], [["abc"]])


async def test_its_own_dimensions_may_be_asked_for(rig: Rig):
    assert (await rig.ask("abc", dimensions=2))[1] == 200


@pytest.mark.parametrize("fault", ["text-too-long", "empty-text"])
async def test_a_text_without_a_vector_is_the_clients_fault(rig: Rig, fault):
    rig.encoder.fault = fault
    _, code, reply = await rig.ask("abc")
    assert (code, reply["error"]["param"]) == (400, "input")


@pytest.mark.parametrize("fault", ["unavailable", "timeout", "overloaded"])
async def test_an_encoder_that_is_down_is_an_upstream_that_is(rig: Rig, fault):
    rig.encoder.fault = fault
    with pytest.raises(UpstreamError) as caught:
        await rig.ask("abc")
    assert not isinstance(caught.value, ClientError)
    assert caught.value.status == 503
