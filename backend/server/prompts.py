"""From what a client wrote to the tokens the engine is given, off the event loop where it is long.

Every refusal that depends on the model is made here: no template, tokens outside of the
vocabulary, a prompt that leaves no room in the context.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeVar

from backend.ports import PromptEncoder
from backend.server.protocol.errors import invalid
from backend.server.protocol.messages import (
    DEFAULT_TEMPLATE,
    AnyMessage,
    AssistantMessage,
    Function,
    TemplateOptions,
    ToolMessage,
)
from backend.server.tool_parsers.reasoning import PromptEnd, ReasoningFormat

ON_LOOP_CHARACTERS = 2_000
"""Encoding this much takes a millisecond or two; a hop to a thread and back costs 0.1 ms."""

TOO_LONG = "context_length_exceeded"
"""The code of the refusal of a prompt that leaves no room."""

_CHARACTERS_OF_A_MESSAGE = 50  # what a template adds, and costs, for each

T = TypeVar("T")
Item = TypeVar("Item")

# Templates of older models know nothing of the developer role, which took the place of system.
_TEMPLATE_ROLES = {"developer": "system"}


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation."""

    tokens: tuple[int, ...]
    end: PromptEnd


async def chat_prompt(
    encoder: PromptEncoder,
    messages: Sequence[AnyMessage],
    *,
    max_model_len: int,
    template: TemplateOptions = DEFAULT_TEMPLATE,
    keep_last: int | None = None,
    tools: Sequence[Function] = (),
    reasoning: ReasoningFormat | None = None,
    param: str = "messages",
) -> ChatPrompt:
    """Return a conversation up to where the answer begins. Raises ApiError.

    ``keep_last`` is how many of them are kept, None for all. ``param`` is where a client says the
    messages. ``reasoning`` is the model's.
    """
    prompt = await render_chat(
        encoder, messages, template=template, tools=tools, reasoning=reasoning, param=param
    )
    tokens = prompt.tokens[-(keep_last or 0) :]
    _check_room(tokens, param, max_model_len)
    return ChatPrompt(tokens, prompt.end)


async def render_chat(
    encoder: PromptEncoder,
    messages: Sequence[AnyMessage],
    *,
    template: TemplateOptions = DEFAULT_TEMPLATE,
    add_special_tokens: bool = False,
    tools: Sequence[Function] = (),
    reasoning: ReasoningFormat | None = None,
    param: str = "messages",
) -> ChatPrompt:
    """Return a conversation, however long. Raises ApiError."""
    last = messages[-1]
    if template.continue_final_message and isinstance(last, AssistantMessage) and last.tool_calls:
        problem = "'continue_final_message' cannot be true where the last message has 'tool_calls'."
        raise invalid(problem, param, "invalid_parameter_combination")

    def encode() -> ChatPrompt:
        plain = [_for_template(message) for message in messages]
        described = [function.for_template() for function in tools]
        try:
            text = encoder.apply_chat_template(
                plain,
                add_generation_prompt=template.add_generation_prompt,
                continue_final_message=template.continue_final_message,
                tools=described or None,
                variables=template.variables,
            )
        except ValueError as error:
            raise invalid(str(error), param, "invalid_messages") from None
        tokens = tuple(encoder.encode(text, add_special_tokens=add_special_tokens))
        continued = len(plain[-1]["content"]) if template.continue_final_message else 0
        end = PromptEnd.PLAIN if reasoning is None else reasoning.prompt_end(text, continued)
        return ChatPrompt(tokens, end)

    return await off_loop(encode, _is_long(messages, tools, template))


def _is_long(
    messages: Sequence[AnyMessage], tools: Sequence[Function], template: TemplateOptions
) -> bool:
    size = _CHARACTERS_OF_A_MESSAGE * (len(messages) + len(tools))
    # To look into many of them takes long enough.
    if size <= ON_LOOP_CHARACTERS:
        size += sum(len(message.text()) for message in messages)
        size += sum(len(repr(function.parameters)) for function in tools)
        size += len(repr(template.variables)) if template.variables else 0
    return size > ON_LOOP_CHARACTERS


async def completion_prompts(
    encoder: PromptEncoder,
    prompts: Sequence[str | tuple[int, ...]],
    *,
    max_model_len: int,
    keep_last: int | None = None,
    add_special_tokens: bool = True,
) -> tuple[tuple[int, ...], ...]:
    """Return the last tokens of each prompt, all where ``keep_last`` is None. Raises ApiError."""

    def check(tokens: tuple[int, ...]) -> None:
        if not tokens:
            problem = "Invalid 'prompt': empty string. Expected at least one token."
            raise invalid(problem, "prompt", "empty_string")
        _check_room(tokens[-(keep_last or 0) :], "prompt", max_model_len)

    encoded = await encode_each(
        encoder, prompts, "prompt", check, add_special_tokens=add_special_tokens
    )
    return tuple(tokens[-(keep_last or 0) :] for tokens in encoded)


async def encode_each(
    encoder: PromptEncoder,
    texts: Sequence[str | tuple[int, ...]],
    param: str,
    check: Callable[[tuple[int, ...]], None],
    *,
    add_special_tokens: bool = True,
) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each; arrays are taken as they are.

    Raises ApiError, and what ``check`` raises of the tokens of one, before the next is looked at.
    """

    def encode(text: str | tuple[int, ...]) -> tuple[int, ...]:
        if isinstance(text, str):
            tokens = tuple(encoder.encode(text, add_special_tokens=add_special_tokens))
        else:
            tokens = refuse_outside_vocabulary(text, encoder.vocab_size, param)
        check(tokens)
        return tokens

    return await each_off_loop(encode, texts, sum(map(len, texts)) > ON_LOOP_CHARACTERS)


def _for_template(message: AnyMessage) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "role": _TEMPLATE_ROLES.get(message.role, message.role),
        "content": message.text(),
    }
    if message.name is not None:
        plain["name"] = message.name
    if isinstance(message, ToolMessage):
        plain["tool_call_id"] = message.tool_call_id
    elif isinstance(message, AssistantMessage):
        if message.tool_calls:
            plain["tool_calls"] = [call.for_template() for call in message.tool_calls]
        if (thought := message.thought) is not None:
            plain["reasoning_content"] = plain["reasoning"] = thought
            # gpt-oss' template, which reads this name, refuses both texts beside a call.
            if not (message.tool_calls and plain["content"]):
                plain["thinking"] = thought
    return plain


async def off_loop(work: Callable[[], T], is_long: bool) -> T:
    """Do ``work`` in a thread if it is long, else at once.

    Whoever leaves takes along what no thread has begun.
    """
    return await asyncio.to_thread(work) if is_long else work()


async def each_off_loop(
    work: Callable[[Item], T], items: Sequence[Item], is_long: bool
) -> tuple[T, ...]:
    """Do ``work`` for each item, as ``off_loop`` does, until nobody waits for it any more."""
    left = threading.Event()

    def work_all() -> tuple[T, ...]:
        return tuple(work(item) for item in takewhile(lambda _: not left.is_set(), items))

    try:
        return await off_loop(work_all, is_long)
    finally:
        left.set()


def refuse_outside_vocabulary(
    tokens: tuple[int, ...], vocab_size: int, param: str
) -> tuple[int, ...]:
    """Return ``tokens``, which are not empty. Raises ApiError (400) naming one that is none."""
    largest = max(tokens)
    if largest >= vocab_size:
        problem = f"token {largest} is not in the vocabulary of {vocab_size} tokens"
        raise invalid(f"Invalid '{param}': {problem}.", param)
    return tokens


def _check_room(tokens: tuple[int, ...], param: str, max_model_len: int) -> None:
    if len(tokens) >= max_model_len:
        message = (
            f"This model's maximum context length is {max_model_len} tokens, of which at least one "
            f"is the answer's. However, your {param} resulted in {len(tokens)} tokens. "
            f"Please reduce the length of the {param}."
        )
        raise invalid(message, param, TOO_LONG)
