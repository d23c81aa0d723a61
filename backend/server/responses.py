"""POST /v1/responses: chat under another name. Nothing is stored, so there is nothing to get.

A plain reply is what the last event of a stream holds, so that it says what a stream does.
Law: nothing of an item is sent before it is announced, and all of it again when it is done.
"""

import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from backend.scheduler.request import FinishReason, SamplingParams, TextDelta, TokenLogprobs
from backend.server.body import read_request
from backend.server.chat import Conversation, answer_conversation
from backend.server.pipeline import Generation
from backend.server.prompts import off_loop
from backend.server.protocol.errors import RATE_LIMIT, ApiError
from backend.server.protocol.messages import TemplateOptions, variables_of
from backend.server.protocol.responses import (
    FunctionTool,
    NamedFunction,
    ResponsesRequest,
    TextFormat,
)
from backend.server.replies import FinishedChoice, Object, TokenBytes, Usage, chat_logprobs
from backend.server.served_model import ServedModel
from backend.server.tool_parsers import AnswerFormat
from backend.server.tool_parsers.reasoning import ReasoningParser
from backend.server.tool_parsers.streaming_json import (
    CallArguments,
    CallStart,
    Content,
    Event,
    Reasoning,
)

ON_LOOP_ITEMS = 500
"""Translating this many takes a millisecond or two."""


async def responses(model: ServedModel, request: web.Request) -> web.StreamResponse:
    """Answer POST /v1/responses."""
    arrived = time.monotonic()
    body = await read_request(request, ResponsesRequest)
    loaded = model.require(body.model)
    is_long = not isinstance(body.input, str) and len(body.input) > ON_LOOP_ITEMS
    chat = Conversation(
        messages=await off_loop(lambda: body.chat_messages, is_long),
        functions=body.tools or (),
        choice=body.tool_choice,
        parallel=body.parallel_tool_calls,
        response_format=body.chat_format,
        max_tokens=body.max_output_tokens,
        logprobs=body.wanted_logprobs,
        template=TemplateOptions(variables=variables_of(body.effort, body.chat_template_kwargs)),
        prefix="resp_",
        messages_at="input",
        format_at="text.format",
        parameters_at="parameters",
    )

    def reply_to(
        generation: Generation, form: AnswerFormat, token_bytes: TokenBytes | None
    ) -> ResponseReply:
        repeated = _repeated(body, generation.first.sampling, generation.id)
        return ResponseReply(repeated, form, token_bytes)

    return await answer_conversation(request, body, loaded, chat, reply_to, arrived=arrived)


def _new_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex


@dataclass(slots=True)
class _Item:
    """What of an item has come, and where it is in the response."""

    place: int
    object: Object
    text: list[str] = field(default_factory=list)
    logprobs: list[Object] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return str(self.object["type"])

    @property
    def where(self) -> Object:
        found = {"item_id": self.object["id"], "output_index": self.place}
        return found if self.kind == "function_call" else found | {"content_index": 0}

    @property
    def part(self) -> Object:
        """The one part of its content."""
        text = "".join(self.text)
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "annotations": [], "logprobs": self.logprobs, "text": text}


class ResponseReply:
    """Implements ``Reply``: takes an answer as it comes; the events' numbers follow one another."""

    typed = True

    def __init__(
        self,
        repeated: Mapping[str, Any],
        form: AnswerFormat,
        token_bytes: TokenBytes | None,
        new_id: Callable[[str], str] = _new_id,
        *,
        eager: bool = True,
    ) -> None:
        """``repeated`` are the fields of the response that are known from the start.

        ``token_bytes`` is given where log probabilities are wanted.
        """
        self._repeated = repeated
        self._format = form
        self._parser = form.parser(eager=eager)
        self._token_bytes = token_bytes
        self._new_id = new_id
        self._output: list[Object] = []
        self._item: _Item | None = None
        self._length = 0
        """Characters of the text before the first call."""
        self._called = False
        self._logprobs: list[TokenLogprobs] = []
        """Those not sent yet."""
        self._number = 0

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> Object:
        form, eager = self._format, self._format.demanded
        reply = ResponseReply(self._repeated, form, self._token_bytes, self._new_id, eager=eager)
        [choice] = choices
        reply._take(choice.text, choice.logprobs)
        *_, last = reply.finish(choices, usage)
        response: Object = last["response"]
        return response

    def begin(self) -> list[Object]:
        begun = {"response": self._response("in_progress")}
        return self._numbered([("response.created", begun), ("response.in_progress", begun)])

    def push(self, delta: TextDelta, usage: Callable[[], Usage], *, first: bool) -> list[Object]:
        del usage, first
        return self._take(delta.text, delta.logprobs)

    def _take(self, text: str, logprobs: Sequence[TokenLogprobs]) -> list[Object]:
        self._logprobs += logprobs
        pieces = [Content(text)] if self._parser is None else self._parser.push(text)
        return self._numbered(self._written(pieces))

    def finish(self, choices: Sequence[FinishedChoice], usage: Usage) -> list[Object]:
        """Return the events of the answer's end, the last of which has the whole response."""
        [choice] = choices
        cut = choice.finish_reason is FinishReason.LENGTH
        status = "incomplete" if cut else "completed"
        events = list(self._written([] if self._parser is None else self._parser.finish()))
        if self._item is None and not self._output:
            events += self._begin_message()
        events += self._end_item(status)
        response = self._response(status) | {
            "completed_at": None if cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": _usage(usage),
        }
        return self._numbered([*events, (f"response.{status}", {"response": response})])

    def fail(self, error: ApiError) -> list[Object]:
        """Return the events of an answer that broke off; the last one clients raise."""
        code = "rate_limit_exceeded" if error.kind == RATE_LIMIT else "server_error"
        response = self._response("failed") | {
            "output": [],
            "error": {"code": code, "message": error.message},
        }
        flat = {"code": error.code, "message": error.message, "param": error.param}
        return self._numbered(
            [("response.failed", {"response": response}), ("error", flat | error.body())]
        )

    def _response(self, status: str) -> Object:
        return {
            **self._repeated,
            "status": status,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "output": [*self._output],
        }

    def _written(self, pieces: Sequence[Event]) -> Iterator[tuple[str, Object]]:
        for piece in pieces:
            match piece:
                case Reasoning(text):
                    item = self._item
                    if item is None:
                        item = yield from self._begin_item(
                            "rs_", "reasoning", summary=[], content=[]
                        )
                    item.text.append(text)
                    yield "response.reasoning_text.delta", item.where | {"delta": text}
                case Content(text):
                    yield from self._say(text)
                case CallStart(_, name):
                    yield from self._end_item("completed")
                    self._called = True
                    call = {"call_id": self._new_id("call_"), "name": name, "arguments": ""}
                    yield from self._begin_item("fc_", "function_call", **call)
                case CallArguments(_, text):
                    if self._item is None:
                        raise RuntimeError("arguments without a call")
                    self._item.text.append(text)
                    where = self._item.where
                    yield "response.function_call_arguments.delta", where | {"delta": text}

    def _say(self, text: str) -> Iterator[tuple[str, Object]]:
        if not self._called:
            self._length += len(text)
        item = self._item
        logprobs = self._ready_logprobs()
        if not (text or logprobs):
            return
        if item is None or item.kind != "message":
            yield from self._end_item("completed")
            item = yield from self._begin_message()
        item.text.append(text)
        item.logprobs += logprobs
        yield "response.output_text.delta", item.where | {"delta": text, "logprobs": logprobs}

    def _begin_message(self) -> Generator[tuple[str, Object], None, _Item]:
        return self._begin_item("msg_", "message", role="assistant", content=[])

    def _begin_item(
        self, prefix: str, kind: str, **fields: Any
    ) -> Generator[tuple[str, Object], None, _Item]:
        announced = {"id": self._new_id(prefix), "type": kind, "status": "in_progress", **fields}
        self._item = item = _Item(len(self._output), announced)
        yield "response.output_item.added", {"output_index": item.place, "item": item.object}
        if kind != "function_call":
            yield "response.content_part.added", item.where | {"part": item.part}
        return item

    def _end_item(self, status: str) -> Iterator[tuple[str, Object]]:
        item, self._item = self._item, None
        if item is None:
            return
        text = "".join(item.text)
        done = item.object | {"status": status}
        if item.kind == "function_call":
            done["arguments"] = text
            whole = {"name": done["name"], "arguments": text}
            yield "response.function_call_arguments.done", item.where | whole
        else:
            done["content"] = [item.part]
            kind = item.part["type"]
            whole = {"text": text} | ({"logprobs": item.logprobs} if kind == "output_text" else {})
            yield f"response.{kind}.done", item.where | whole
            yield "response.content_part.done", item.where | {"part": item.part}
        self._output.append(done)
        yield "response.output_item.done", {"output_index": item.place, "item": done}

    def _ready_logprobs(self) -> list[Object]:
        """Return what is to be sent with the text that has come.

        Where the text is read, that is what belongs to the answer before the first call:
        reasoning, markup and arguments have no place for it.
        """
        if self._token_bytes is None:
            return []
        ready = self._logprobs
        begins = self._parser.answer_at if isinstance(self._parser, ReasoningParser) else 0
        if self._parser is not None:
            ready = [each for each in ready if each.text_offset < begins + self._length]
        self._logprobs = self._logprobs[len(ready) :]
        sent = [each for each in ready if each.text_offset >= begins]
        return list(chat_logprobs(sent, self._token_bytes)["content"])

    def _numbered(self, events: Iterable[tuple[str, Object]]) -> list[Object]:
        numbered = []
        for kind, event in events:
            numbered.append({"type": kind, "sequence_number": self._number, **event})
            self._number += 1
        return numbered


def _usage(usage: Usage) -> Object:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _repeated(body: ResponsesRequest, sampling: SamplingParams, response_id: str) -> Object:
    """Return the fields of a response that repeat its request, defaults filled in.

    ``sampling`` has the model's own advice. Who asks is repeated as null too: a cache fills in
    there who asks for a stored answer. Raises ApiError (400) where a client's schema is
    nested deeper than can be repeated.
    """
    repeated: Object = {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "model": body.model,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": body.effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": False,
        "temperature": sampling.temperature,
        "text": {
            "format": _format(None if body.text is None else body.text.format),
            "verbosity": "medium",
        },
        "tool_choice": _choice(body),
        "tools": [_tool(tool) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "user": body.user,
        "metadata": body.metadata or {},
    }
    try:
        orjson.dumps({"response": repeated})
    except orjson.JSONEncodeError:
        raise ApiError(400, "The request body is nested too deeply.") from None
    return repeated


def _choice(body: ResponsesRequest) -> Any:
    chosen = body.tool_choice
    if isinstance(chosen, NamedFunction):
        return {"type": "function", "name": chosen.name}
    return chosen or "auto"


def _format(wanted: TextFormat | None) -> dict[str, Any]:
    if wanted is None:
        return {"type": "text"}
    if wanted.type != "json_schema":
        return {"type": wanted.type} | ({"schema": wanted.definition} if wanted.definition else {})
    described = {} if wanted.description is None else {"description": wanted.description}
    return {
        "type": "json_schema",
        "name": wanted.name,
        **described,
        "schema": wanted.definition,
        "strict": wanted.strict or False,
    }


def _tool(tool: FunctionTool) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict or False,
    }
