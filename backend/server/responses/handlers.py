"""POST /v1/responses: chat under another name. Nothing is kept, so there is nothing to get."""

import time

from aiohttp import web

from backend.server.body import read_request
from backend.server.engine_request import constrained, generation_of, sampling_of
from backend.server.generation import Tally
from backend.server.prompts import chat_prompt, off_loop
from backend.server.protocol.messages import TemplateOptions
from backend.server.protocol.responses import ResponsesRequest
from backend.server.responses.answering import ResponseAnswer
from backend.server.responses.repeated import check_printable, repeated
from backend.server.served_model import ServedModel
from backend.server.structured import constraint_of
from backend.server.tool_parsers import answer_format, tool_use

ON_LOOP_ITEMS = 500
"""Translating this many takes a millisecond or two."""


class ResponsesHandlers:
    """HTTP handlers for one served model."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    async def responses(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/responses."""
        arrived = time.monotonic()
        asked = await read_request(request, ResponsesRequest)
        self._model.check_name(asked.model)
        loaded = self._model.require()
        tools = tool_use(
            asked.chat_tools,
            asked.chat_tool_choice,
            asked.parallel_tool_calls,
            loaded.tool_format,
            parameters_at="parameters",
        )
        constraint = await constraint_of(asked, asked.chat_format, tools, param="text.format")
        messages = await off_loop(lambda: asked.chat_messages, asked.num_items > ON_LOOP_ITEMS)
        prompt = await chat_prompt(
            loaded.encoder,
            messages,
            max_model_len=loaded.generator.max_model_len,
            template=TemplateOptions(variables=asked.chat_template_kwargs or {}),
            tools=() if tools is None else tools.functions,
            param="input",
        )
        sampling = sampling_of(asked, asked.max_output_tokens, asked.wanted_logprobs, loaded)
        sampling = constrained(sampling, constraint)
        generation = generation_of(
            "resp_", (prompt.tokens,), asked, sampling, request, arrived=arrived
        )
        told = repeated(asked, sampling, generation.id, int(time.time()))
        check_printable(told)
        answer = ResponseAnswer(
            Tally(generation),
            loaded.generator,
            told,
            answer_format(tools, loaded.reasoning_format, prompt.end, sampling.grammar),
            None if asked.wanted_logprobs is None else loaded.encoder.token_bytes,
            constraint,
        )
        return await (answer.stream(request) if asked.stream else answer.whole())
