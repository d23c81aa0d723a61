"""From what a client wrote to the tokens the engine is given, off the event loop where it is long.

Every refusal that depends on the model is made here: no template, tokens outside of the
vocabulary, a prompt that leaves no room in the context.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from backend.ports import PromptEncoder
from backend.server.errors import ApiError
from backend.server.schema import AnyMessage

ON_LOOP_CHARACTERS = 2_000
"""Encoding this much takes a millisecond or two; a hop to a thread and back costs 0.1 ms."""

_CHARACTERS_OF_A_MESSAGE = 50  # what a template adds, and costs, for each

T = TypeVar("T")

# Templates of older models know nothing of the developer role, which took the place of system.
_TEMPLATE_ROLES = {"developer": "system"}


async def chat_prompt(
    encoder: PromptEncoder, messages: Sequence[AnyMessage], *, max_model_len: int
) -> tuple[int, ...]:
    """Return the tokens of a conversation, up to where the answer begins. Raises ApiError."""
    plain = [_for_template(message) for message in messages]

    def encode() -> tuple[int, ...]:
        try:
            text = encoder.apply_chat_template(plain)
        except ValueError as error:
            raise ApiError(400, str(error), param="messages", code="invalid_messages") from None
        return tuple(encoder.encode(text))

    size = sum(len(message["content"]) + _CHARACTERS_OF_A_MESSAGE for message in plain)
    tokens = await _compute(encode, size)
    _check_room(tokens, "messages", max_model_len)
    return tokens


async def completion_prompts(
    encoder: PromptEncoder, prompts: Sequence[str | tuple[int, ...]], *, max_model_len: int
) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each prompt. Raises ApiError."""

    def encode() -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(encoder.encode(prompt, add_special_tokens=True))
            if isinstance(prompt, str)
            else _in_vocabulary(prompt, encoder.vocab_size)
            for prompt in prompts
        )

    encoded = await _compute(encode, sum(map(len, prompts)))
    for tokens in encoded:
        if not tokens:
            raise ApiError(
                400,
                "Invalid 'prompt': empty string. Expected at least one token.",
                param="prompt",
                code="empty_string",
            )
        _check_room(tokens, "prompt", max_model_len)
    return encoded


def _for_template(message: AnyMessage) -> dict[str, str]:
    plain = {
        "role": _TEMPLATE_ROLES.get(message.role, message.role),
        "content": message.text(),
    }
    if message.name is not None:
        plain["name"] = message.name
    return plain


async def _compute(work: Callable[[], T], characters: int) -> T:
    if characters <= ON_LOOP_CHARACTERS:
        return work()
    return await asyncio.to_thread(work)


def _in_vocabulary(tokens: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
    largest = max(tokens)
    if largest >= vocab_size:
        raise ApiError(
            400,
            f"Invalid 'prompt': token {largest} is not in the vocabulary of {vocab_size} tokens.",
            param="prompt",
            code="invalid_value",
        )
    return tokens


def _check_room(tokens: tuple[int, ...], param: str, max_model_len: int) -> None:
    if len(tokens) < max_model_len:
        return
    raise ApiError(
        400,
        f"This model's maximum context length is {max_model_len} tokens, of which at least one is "
        f"the answer's. However, your {param} resulted in {len(tokens)} tokens. "
        f"Please reduce the length of the {param}.",
        param=param,
        code="context_length_exceeded",
    )
