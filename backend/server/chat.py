"""POST /v1/chat/completions: its request, its handler, and its reply with reasoning and calls."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from aiohttp import web
from pydantic import Field, model_validator

from backend.scheduler.request import FinishReason, TextForm, TokenLogprobs
from backend.server.body import read_request
from backend.server.pipeline import Generation, answer, new_generation, sampling_params
from backend.server.prompts import chat_prompt
from backend.server.protocol import combination, only
from backend.server.protocol.generation import CompletionFields, GenerationFields, ResponseFormat
from backend.server.protocol.messages import (
    DEFAULT_TEMPLATE,
    AnyMessage,
    Function,
    ModeOr,
    NamedChoice,
    TemplateFields,
    TemplateOptions,
    ToolChoice,
    Tools,
    check_choice,
    check_order,
)
from backend.server.replies import (
    ChoicesReply,
    FinishedChoice,
    Object,
    Reply,
    TokenBytes,
    chat_logprobs,
)
from backend.server.served_model import LoadedModel, ServedModel
from backend.server.structured import Constraint, constraint_of
from backend.server.tool_parsers import AnswerFormat, answer_format, tool_use
from backend.server.tool_parsers.reasoning import ReasoningParser
from backend.server.tool_parsers.streaming_json import (
    CallArguments,
    CallStart,
    Content,
    Event,
    Reasoning,
    ToolCallParser,
    gather,
)

REASONING = "reasoning_content"
"""DeepSeek's name, which SGLang and most clients share."""


class ChatRequest(CompletionFields, TemplateFields):
    """POST /v1/chat/completions."""

    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    messages: Annotated[list[AnyMessage], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    tools: Tools | None = None
    tool_choice: ModeOr[NamedChoice] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    # The template writes the special tokens.
    add_special_tokens: Annotated[Any, only(False)] = None
    functions: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only("none", "auto")] = None
    modalities: Annotated[Any, only(["text"])] = None
    audio: Annotated[Any, only()] = None
    verbosity: Annotated[Any, only("medium")] = None
    web_search_options: Annotated[Any, only()] = None
    moderation: Annotated[Any, only()] = None

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> Self:
        # 0 asks for nothing, so clients that always send it are let through.
        if self.top_logprobs and not self.logprobs:
            problem = "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled."
            raise combination(problem, "top_logprobs")
        return self

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            problem = "'max_tokens' and 'max_completion_tokens' cannot be set at the same time."
            raise combination(problem, "max_tokens")
        self.check_min_tokens(self.most_tokens)
        return self

    @model_validator(mode="after")
    def _calls_belong_together(self) -> Self:
        check_order(self.messages)
        check_choice(self.callable_functions, self.choice)
        return self

    @property
    def callable_functions(self) -> list[Function]:
        """What may be called."""
        return [tool.function for tool in self.tools or ()]

    @property
    def choice(self) -> ToolChoice:
        """Which of them."""
        choice = self.tool_choice
        return choice.function if isinstance(choice, NamedChoice) else choice

    @property
    def most_tokens(self) -> int | None:
        """The limit, under whichever name."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        """How many of the likeliest to report beside the chosen token; None: not even that."""
        return (self.top_logprobs or 0) if self.logprobs else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What chat and responses ask for, in chat's words; ``…_at`` is where a client says it."""

    messages: Sequence[AnyMessage]
    functions: Sequence[Function]
    choice: ToolChoice
    parallel: bool | None
    response_format: ResponseFormat | None
    max_tokens: int | None
    logprobs: int | None
    template: TemplateOptions = DEFAULT_TEMPLATE
    keep_last: int | None = None
    prefix: str = "chatcmpl-"
    messages_at: str = "messages"
    format_at: str = "response_format"
    parameters_at: str = "function.parameters"


ReplyTo = Callable[[Generation, AnswerFormat, TokenBytes | None], Reply]
"""How an endpoint replies; the last is given where log probabilities are wanted."""


async def generation_of(
    request: web.Request,
    body: GenerationFields,
    loaded: LoadedModel,
    chat: Conversation,
    *,
    arrived: float,
) -> tuple[Generation, AnswerFormat, Constraint | None]:
    """Return what follows a conversation, still to be generated. Raises ApiError."""
    tools = tool_use(
        chat.functions,
        chat.choice,
        chat.parallel,
        loaded.tool_format,
        parameters_at=chat.parameters_at,
    )
    reasoning = loaded.reasoning_format
    constraint = await constraint_of(
        body, chat.response_format, tools, reasoning, param=chat.format_at
    )
    prompt = await chat_prompt(
        loaded.encoder,
        chat.messages,
        max_model_len=loaded.max_model_len,
        template=chat.template,
        keep_last=chat.keep_last,
        tools=() if tools is None else tools.functions,
        reasoning=reasoning,
        param=chat.messages_at,
    )
    grammar = None if constraint is None else constraint.grammar
    form = answer_format(tools, reasoning, prompt.end, grammar)
    if constraint is not None:
        constraint = constraint.behind_reasoning(form)
    sampling = sampling_params(
        body, loaded, constraint, max_tokens=chat.max_tokens, logprobs=chat.logprobs
    )
    generation = new_generation(
        chat.prefix,
        (prompt.tokens,),
        body,
        sampling,
        request,
        arrived=arrived,
        text=TextForm(form.markup, form.span, chat.template.continue_final_message),
        adapter=loaded.adapter,
    )
    return generation, form, constraint


async def answer_conversation(
    request: web.Request,
    body: GenerationFields,
    loaded: LoadedModel,
    chat: Conversation,
    reply_to: ReplyTo,
    *,
    arrived: float,
) -> web.StreamResponse:
    """Generate what follows a conversation, and write the reply. Raises ApiError."""
    generation, form, constraint = await generation_of(request, body, loaded, chat, arrived=arrived)
    token_bytes = None if chat.logprobs is None else loaded.encoder.token_bytes
    reply = reply_to(generation, form, token_bytes)
    return await answer(request, generation, loaded.generator, reply, constraint)


async def chat_completions(model: ServedModel, request: web.Request) -> web.StreamResponse:
    """Answer POST /v1/chat/completions."""
    arrived = time.monotonic()
    body = await read_request(request, ChatRequest)
    loaded = model.require(body.model)
    chat = Conversation(
        messages=body.messages,
        functions=body.callable_functions,
        choice=body.choice,
        parallel=body.parallel_tool_calls,
        response_format=body.response_format,
        max_tokens=body.most_tokens,
        logprobs=body.wanted_logprobs,
        template=body.template,
        keep_last=body.max_prompt_tokens(loaded.max_model_len),
    )

    def reply_to(
        generation: Generation, form: AnswerFormat, token_bytes: TokenBytes | None
    ) -> ChatReply:
        return ChatReply(generation.id, body, form, token_bytes)

    return await answer_conversation(request, body, loaded, chat, reply_to, arrived=arrived)


@dataclass(slots=True)
class _Streamed:
    """One streamed choice: its text so far, as the parser has it."""

    parser: ToolCallParser | None
    called: bool = False
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """They belong to text that is held back."""


class ChatReply(ChoicesReply):
    """OpenAI's objects for chat, with reasoning and calls where the text is read."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(
        self,
        reply_id: str,
        body: ChatRequest,
        form: AnswerFormat,
        token_bytes: TokenBytes | None,
    ) -> None:
        super().__init__(reply_id, body, token_bytes)
        self._format = form
        self._streamed: dict[int, _Streamed] = {}

    def choice(self, index: int, choice: FinishedChoice) -> Object:
        message: Object = {
            "role": "assistant",
            "content": choice.text,
            "refusal": None,
            "annotations": [],
        }
        reason = choice.finish_reason.value
        if (parser := self._format.parser(eager=self._format.demanded)) is not None:
            events = [*parser.push(choice.text), *parser.finish()]
            message["content"], calls = gather(events)
            reasoning = "".join(each.text for each in events if isinstance(each, Reasoning))
            unanswered = isinstance(parser, ReasoningParser) and parser.is_reasoning
            if reasoning or calls or unanswered:
                message["content"] = message["content"] or None
            if reasoning:
                message[REASONING] = reasoning
            if calls:
                message["tool_calls"] = [_call(call.name, call.arguments) for call in calls]
                reason = _reason_of_calls(choice.finish_reason)
        logprobs = chat_logprobs(choice.logprobs, self._token_bytes) if self._token_bytes else None
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def opening(self, index: int, prompt: Sequence[TokenLogprobs]) -> list[Object]:
        del prompt
        self._streamed[index] = _Streamed(self._format.parser(eager=True))
        return [_chunk(index, {"role": "assistant", "content": "", "refusal": None}, None)]

    def text(self, index: int, text: str, logprobs: Sequence[TokenLogprobs]) -> list[Object]:
        choice = self._streamed[index]
        if choice.parser is None and self._token_bytes is None:
            return [_chunk(index, {"content": text}, None)]
        choice.logprobs += logprobs
        events = [Content(text)] if choice.parser is None else choice.parser.push(text)
        return [self._chunk_of(index, choice, _delta(choice, event)) for event in events]

    def ending(self, index: int, reason: FinishReason) -> list[Object]:
        choice = self._streamed.pop(index)
        if choice.parser is None:
            return [_chunk(index, {}, reason.value)]
        events = choice.parser.finish()
        chunks = [self._chunk_of(index, choice, _delta(choice, event)) for event in events]
        last = self._chunk_of(index, choice, {})
        last["finish_reason"] = _reason_of_calls(reason) if choice.called else reason.value
        return [*chunks, last]

    def _chunk_of(self, index: int, choice: _Streamed, delta: Object) -> Object:
        chunk = _chunk(index, delta, None)
        if self._token_bytes is not None:
            chunk["logprobs"] = chat_logprobs(choice.logprobs, self._token_bytes)
        choice.logprobs = []
        return chunk


def _chunk(index: int, delta: Object, reason: str | None) -> Object:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}


def _delta(choice: _Streamed, event: Event) -> Object:
    match event:
        case Reasoning(text):
            return {REASONING: text}
        case Content(text):
            return {"content": text}
        case CallStart(number, name):
            choice.called = True
            return {"tool_calls": [{"index": number} | _call(name, "")]}
        case CallArguments(number, text):
            return {"tool_calls": [{"index": number, "function": {"arguments": text}}]}


def _call(name: str, arguments: str) -> Object:
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _reason_of_calls(reason: FinishReason) -> str:
    return "tool_calls" if reason is FinishReason.STOP else reason.value
