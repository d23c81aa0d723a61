"""The endpoints. One request's way: body, schema, prompt tokens, deltas, reply."""

import time
from dataclasses import replace
from typing import Any

from aiohttp import web

from backend.server.answering import Answer
from backend.server.body import read_request
from backend.server.chat import ChatRequest
from backend.server.completions import CompletionRequest
from backend.server.engine_request import constrained, generation_of, sampling_of
from backend.server.front import STOPPING
from backend.server.generation import Tally
from backend.server.json_reply import json_response
from backend.server.metrics import CONTENT_TYPE, Metrics
from backend.server.prompts import chat_prompt, completion_prompts, echoed_prompts
from backend.server.protocol.generation import CompletionFields, StreamOptions
from backend.server.replies import ChatForm, CompletionForm
from backend.server.served_model import ServedModel
from backend.server.structured import constraint_of
from backend.server.tool_parsers import answer_format, tool_use
from backend.server.tools.replies import ReadChatForm


class Handlers:
    """HTTP handlers for one served model."""

    def __init__(self, model: ServedModel, metrics: Metrics) -> None:
        self._model = model
        self._metrics = metrics

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        arrived = time.monotonic()
        asked = await read_request(request, ChatRequest)
        self._model.check_name(asked.model)
        loaded = self._model.require()
        tools = tool_use(
            asked.tools, asked.tool_choice, asked.parallel_tool_calls, loaded.tool_format
        )
        constraint = await constraint_of(asked, asked.response_format, tools)
        prompt = await chat_prompt(
            loaded.encoder,
            asked.messages,
            max_model_len=loaded.generator.max_model_len,
            template=asked.template,
            keep_last=asked.max_prompt_tokens(loaded.generator.max_model_len),
            tools=() if tools is None else tools.functions,
        )
        sampling = sampling_of(asked, asked.most_tokens, asked.wanted_logprobs, loaded)
        sampling = constrained(sampling, constraint)
        generation = generation_of(
            "chatcmpl-", (prompt.tokens,), asked, sampling, request, arrived=arrived
        )
        spell = None if sampling.logprobs is None else loaded.encoder.token_bytes
        chat = ChatForm(spell)
        reading = answer_format(tools, loaded.reasoning_format, prompt.end, sampling.grammar)
        form = chat if reading is None else ReadChatForm(chat, reading)
        answer = Answer(Tally(generation), loaded.generator, form, asked.model, constraint)
        return await _send(answer, request, asked)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        arrived = time.monotonic()
        asked = await read_request(request, CompletionRequest)
        self._model.check_name(asked.model)
        loaded = self._model.require()
        keep_last = asked.max_prompt_tokens(loaded.generator.max_model_len)
        prompts = await completion_prompts(
            loaded.encoder,
            asked.prompts,
            max_model_len=loaded.generator.max_model_len,
            keep_last=keep_last,
        )
        # The engine computes one token at least; where none is wanted, it is not told.
        sampling = sampling_of(asked, asked.most_tokens or 1, asked.logprobs, loaded)
        constraint = await constraint_of(asked)
        sampling = constrained(sampling, constraint)
        if asked.echo:
            sampling = replace(sampling, prompt_logprobs=asked.logprobs)
        generation = generation_of("cmpl-", prompts, asked, sampling, request, arrived=arrived)
        generation = replace(generation, prompt_only=asked.most_tokens == 0)
        # Of a prompt that was cut, what the model read is known by its tokens alone.
        said = asked.prompts if keep_last is None else prompts
        echoed = await echoed_prompts(loaded.encoder, said, prompts) if asked.echo else ()
        form = CompletionForm(
            spell=None if asked.logprobs is None else loaded.encoder.token_bytes,
            echo=tuple(each for each in echoed for _ in range(generation.n)),
        )
        answer = Answer(Tally(generation), loaded.generator, form, asked.model, constraint)
        return await _send(answer, request, asked)

    async def list_models(self, _: web.Request) -> web.Response:
        """GET /v1/models."""
        return json_response({"object": "list", "data": [self._describe_model()]})

    async def get_model(self, request: web.Request) -> web.Response:
        """GET /v1/models/{model}; a hub id has a slash in it."""
        self._model.check_name(request.match_info["model"])
        return json_response(self._describe_model())

    async def healthz(self, _: web.Request) -> web.Response:
        """GET /healthz: the process answers."""
        return json_response({"status": "ok"})

    async def readyz(self, request: web.Request) -> web.Response:
        """GET /readyz: the model can generate, or why it cannot."""
        if request.app[STOPPING].is_set():
            stopping = {"status": "stopping", "reasons": ["the server was told to stop"]}
            return json_response(stopping, status=503)
        reasons = self._model.unready_reasons()
        if reasons:
            return json_response({"status": "unavailable", "reasons": reasons}, status=503)
        return json_response({"status": "ready", "reasons": []})

    async def metrics(self, _: web.Request) -> web.Response:
        """GET /metrics."""
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    def _describe_model(self) -> dict[str, Any]:
        return {
            "id": self._model.name,
            "object": "model",
            "created": self._model.created,
            "owned_by": "refrain",
        }


async def _send(
    answer: Answer, request: web.Request, asked: CompletionFields
) -> web.StreamResponse:
    if asked.stream:
        return await answer.stream(request, asked.stream_options or StreamOptions())
    return await answer.whole()
