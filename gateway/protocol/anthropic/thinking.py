"""Thinking blocks without a signature: of translated answers, or of clients that drop fields.

Servers of Anthropic's API refuse them, so such a server gets the conversation without them.
"""

from collections.abc import Mapping
from typing import Any


def without_unsigned_thinking(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a request without its unsigned thinking; None if it has none.

    A message with nothing else is left out. If thinking is enabled, a turn that calls tools must
    begin with it. So if the last turn calls tools and has lost its own, ``thinking`` goes too.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        return None
    kept: list[Any] = []
    cut: dict[str, Any] | None = None
    changed = False
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        blocks = content if isinstance(content, list) else []
        signed = [block for block in blocks if not _is_unsigned(block)]
        if len(signed) == len(blocks):
            kept.append(message)
            continue
        changed = True
        if signed:
            cut = {**message, "content": signed}
            kept.append(cut)
    if not changed:
        return None
    result = {**body, "messages": kept}
    if cut is not None and _awaits_thinking(body, kept, cut):
        del result["thinking"]
    return result


def _is_unsigned(block: Any) -> bool:
    match block:
        case {"type": "thinking"}:
            return not block.get("signature")
        case {"type": "redacted_thinking"}:
            return not block.get("data")
        case _:
            return False


def _awaits_thinking(body: Mapping[str, Any], kept: list[Any], cut: Mapping[str, Any]) -> bool:
    """Tell whether the turn that was cut last calls tools, and has to begin with thinking."""
    thinking = body.get("thinking")
    if not isinstance(thinking, dict) or thinking.get("type") != "enabled":
        return False
    turns = [each for each in kept if isinstance(each, dict) and each.get("role") == "assistant"]
    if not turns or turns[-1] is not cut:
        return False
    kinds = [block.get("type") for block in cut["content"] if isinstance(block, dict)]
    return "tool_use" in kinds and kinds[0] not in ("thinking", "redacted_thinking")
