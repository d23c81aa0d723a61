"""A pytest plugin: the engine's HTTP server in this process, its generator scripted or real."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import ClientSession, web
from fake_models import at_once, nothing_to_close

from backend.ports import EngineError, RequestRejectedError
from backend.scheduler.request import FinishReason, GenerationRequest, SamplingParams, TextDelta
from backend.scheduler.stats import EngineStats

MODEL = "scripted"


async def hello(request: GenerationRequest) -> AsyncIterator[TextDelta]:
    """Say ``Hello world`` in two deltas for each choice."""
    for index in range(request.n):
        yield TextDelta(index, "Hello", 1)
        yield TextDelta(index, " world", 2)
        yield TextDelta(index, "", 3, FinishReason.STOP)


@dataclass
class ScriptedGenerator:
    """The fake at the engine's port: plays a script and records how it was used."""

    script: Callable[[GenerationRequest], AsyncIterator[TextDelta]] = hello
    max_model_len: int = 100
    ready: bool = True
    unready_reason: str = "the engine is not running"
    detail: tuple[str, ...] = ()
    requests: list[GenerationRequest] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, request: GenerationRequest):
        ended = False
        if request.request_id != "warm-up":
            self.requests.append(request)
            self.started.set()
        try:
            async for delta in self.script(request):
                yield delta
            ended = True
        except (EngineError, RequestRejectedError):
            ended = True
            raise
        finally:
            if not ended:
                self.cancelled.set()

    def stats(self) -> EngineStats:
        return EngineStats(
            running=1,
            waiting=2,
            kv_blocks_used=3,
            kv_blocks_total=4,
            preemptions=5,
            prompt_tokens=6,
            generated_tokens=7,
        )


class CharacterEncoder:
    """One token for each character, and a template that a person can read."""

    vocab_size = 0x110000

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return [ord(character) for character in text]

    def token_bytes(self, token: int) -> bytes:
        return chr(token).encode()

    def decode(self, tokens: Any, *, skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, tokens))

    def apply_chat_template(
        self,
        messages: Any,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Any = None,
        variables: Any = None,
    ) -> str:
        if any(message["content"] == "refuse me" for message in messages):
            raise ValueError("the template refuses these messages")
        return "|".join(f"{message['role']}:{message['content']}" for message in messages)


@dataclass
class Reply:
    """A reply read to its end."""

    status: int
    headers: Any
    raw: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.raw)

    @property
    def error(self) -> Any:
        body = self.json
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        return body["error"]

    @property
    def data(self) -> list[str]:
        """What each server-sent event carries; anything else in the body fails."""
        *events, rest = self.raw.decode().split("\n\n")
        assert rest == ""
        assert all(event.startswith("data: ") and "\n" not in event for event in events)
        return [event.removeprefix("data: ") for event in events]

    @property
    def events(self) -> list[Any]:
        """The parsed events of a stream that ended in ``[DONE]``."""
        *events, done = self.data
        assert done == "[DONE]"
        return [orjson.loads(event) for event in events]

    @property
    def typed_events(self) -> list[Any]:
        """The parsed events of a stream of the Responses API."""
        *events, rest = self.raw.decode().split("\n\n")
        assert rest == ""
        parsed = []
        for number, event in enumerate(events):
            kind, data = event.split("\n")
            parsed.append(orjson.loads(data.removeprefix("data: ")))
            assert kind == f"event: {parsed[-1]['type']}"
            assert parsed[-1]["sequence_number"] == number
        return parsed


@dataclass
class RunningServer:
    """The real HTTP application on a port."""

    generator: Any
    session: ClientSession
    host: str
    port: int
    runner: web.AppRunner
    model: Any

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def get(self, path: str) -> Reply:
        return await self.request("GET", path)

    async def request(self, method: str, path: str, data: bytes | None = None) -> Reply:
        async with self.session.request(method, self.url + path, data=data) as reply:
            return Reply(reply.status, reply.headers, await reply.read())

    async def post(self, path: str, body: Any) -> Reply:
        return await self.request("POST", path, orjson.dumps(body))

    async def chat(self, content: Any = "Hi", /, **fields: Any) -> Reply:
        messages = [{"role": "user", "content": content}]
        body = {"model": self.model.name, "messages": messages, **fields}
        return await self.post("/v1/chat/completions", body)

    async def complete(self, prompt: Any = "Hi", /, **fields: Any) -> Reply:
        return await self.post(
            "/v1/completions", {"model": self.model.name, "prompt": prompt, **fields}
        )

    async def respond(self, given: Any = "Hi", /, **fields: Any) -> Reply:
        return await self.post(
            "/v1/responses", {"model": self.model.name, "input": given, **fields}
        )

    async def metric(self, sample: str) -> float | None:
        """The value of one line of /metrics, named with its labels."""
        for line in (await self.get("/metrics")).raw.decode().splitlines():
            name, _, value = line.rpartition(" ")
            if name == sample:
                return float(value)
        return None


StartServer = Callable[..., Awaitable[RunningServer]]


@pytest.fixture
async def serve_application() -> AsyncIterator[StartServer]:
    """Serve an application on a free port until the test ends; its model is not loaded."""
    from backend.server.app import SERVED_MODEL

    servers: list[RunningServer] = []

    async def start(app: web.Application, generator: Any = None) -> RunningServer:
        from backend.server.app import refuse
        from backend.server.http_server import Runner

        runner = Runner(app, refuse, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        model = app[SERVED_MODEL]
        servers.append(RunningServer(generator, ClientSession(), host, port, runner, model))
        return servers[-1]

    yield start
    for server in servers:
        await server.session.close()
        await server.runner.cleanup()


@pytest.fixture
async def start_server(serve_application: StartServer) -> StartServer:
    """Start servers with a scripted generator; keyword arguments change it or the limits."""
    from backend.server.app import build_application
    from backend.server.served_model import LoadedModel, ServedModel

    async def start(
        *,
        limits: Any = None,
        sampling: SamplingParams | None = None,
        tools: Any = None,
        reasoning: Any = None,
        close: Callable[[], Awaitable[None]] = nothing_to_close,
        sleeper: Any = None,
        **script: Any,
    ) -> RunningServer:
        generator = ScriptedGenerator(**script)
        encoder = CharacterEncoder()
        loaded = LoadedModel(
            generator, encoder, close, sampling or SamplingParams(), tools or "", reasoning, sleeper
        )
        app = build_application(ServedModel(MODEL, at_once(loaded)), **(limits or {}))
        server = await serve_application(app, generator)
        await server.model.load()
        return server

    return start


@pytest.fixture
async def server(start_server: StartServer) -> RunningServer:
    """A server that says ``Hello world``."""
    return await start_server()


@pytest.fixture
def speaking(start_server: StartServer) -> StartServer:
    """Start servers that say these pieces, and read Qwen's tool calls."""
    from responses_api import saying

    from backend.server.tool_parsers import FORMATS

    async def start(*pieces: str, **options: Any) -> RunningServer:
        return await start_server(script=saying(*pieces, **options), tools=FORMATS["qwen"])

    return start


@pytest.fixture
async def start_real_server(
    serve_application: StartServer, chat_model: Path
) -> AsyncIterator[StartServer]:
    """Start warm servers with the tiny model, their engines in threads; options are the engine's.

    ``refrain backend`` has its engine in a process, which takes seconds to start: see
    ``test_engine_process``.
    """
    from backend.engine.loading import load_engine
    from backend.engine.model_files import recommended_sampling
    from backend.server.app import build_application
    from backend.server.served_model import LoadedModel, ServedModel

    engines = []

    async def start(*, batches: Any = None, **options: Any) -> RunningServer:
        engine, tokenizer = load_engine(str(chat_model), device="cpu", **options)
        engine.start()
        engines.append(engine)
        sampling = recommended_sampling(chat_model)
        loaded = LoadedModel(engine, tokenizer, nothing_to_close, sampling)
        app = build_application(ServedModel("tiny", at_once(loaded)), batches=batches)
        server = await serve_application(app, engine)
        await server.model.load()
        return server

    yield start
    for engine in engines:
        engine.stop()


@pytest.fixture
async def real_server(start_real_server: StartServer) -> RunningServer:
    """A warm server with the real engine and the tiny model."""
    return await start_real_server()


@pytest.fixture
async def openai_client(real_server: RunningServer) -> AsyncIterator[Any]:
    """The published client of a real server."""
    import openai

    async with openai.AsyncOpenAI(
        base_url=f"{real_server.url}/v1", api_key="anything", max_retries=0
    ) as client:
        yield client


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a tiny random Llama with a tokenizer of bytes and a chat template."""
    import tokenizers
    import torch
    import transformers

    directory = tmp_path_factory.mktemp("chat") / "tiny-llama"
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=257,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        initializer_range=0.2,
        eos_token_id=256,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    template = (
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    settings = {"eos_token": "<|end|>", "chat_template": template}
    (directory / "tokenizer_config.json").write_bytes(orjson.dumps(settings))
    return directory
