"""Thinking that nobody signed is left out where signatures are read; all else stays."""

from typing import Any

import pytest

from gateway.protocol.anthropic.thinking import without_unsigned_thinking

TEXT = {"type": "text", "text": "Yes."}
SIGNED = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
UNSIGNED = {"type": "thinking", "thinking": "Hm.", "signature": ""}
ASKED = {"role": "user", "content": "Is it?"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
RESULT = {
    "role": "user",
    "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "7"}],
}
ENABLED = {"type": "enabled", "budget_tokens": 1024}


def said(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


@pytest.mark.parametrize(
    "block",
    [
        UNSIGNED,
        {"type": "thinking", "thinking": "Hm."},
        {"type": "thinking", "thinking": "Hm.", "signature": None},
        {"type": "redacted_thinking", "data": ""},
    ],
)
def test_unsigned_thinking_is_left_out_of_each_turn(block: dict[str, Any]):
    turns = [ASKED, said(block, TEXT), ASKED, said(SIGNED, block, TEXT), ASKED]
    body = {"model": "m", "messages": turns, "thinking": ENABLED}
    assert without_unsigned_thinking(body) == {
        **body,
        "messages": [ASKED, said(TEXT), ASKED, said(SIGNED, TEXT), ASKED],
    }


def test_a_turn_that_was_only_thought_goes():
    assert without_unsigned_thinking({"messages": [ASKED, said(UNSIGNED), ASKED]}) == {
        "messages": [ASKED, ASKED]
    }


@pytest.mark.parametrize(
    "messages",
    [
        [ASKED],
        [ASKED, said(SIGNED, TEXT), ASKED],
        [ASKED, {"role": "assistant", "content": "thinking"}],
        [said({"type": "redacted_thinking", "data": "d"}), "odd", {"content": ["odd", 5]}],
        "odd",
        None,
    ],
)
def test_a_request_without_any_stays(messages: Any):
    assert without_unsigned_thinking({"messages": messages}) is None


@pytest.mark.parametrize(
    ("turn", "thinking", "stays"),
    [
        (said(UNSIGNED, CALL), ENABLED, False),
        (said(UNSIGNED, TEXT, CALL), ENABLED, False),
        (said(UNSIGNED, SIGNED, CALL), ENABLED, True),
        (said(UNSIGNED, CALL), {"type": "adaptive"}, True),
        (said(UNSIGNED, TEXT), ENABLED, True),
    ],
)
def test_who_cannot_begin_with_thinking_is_not_asked_to(
    turn: dict[str, Any], thinking: dict[str, Any], stays: bool
):
    body = {"messages": [ASKED, turn, RESULT], "thinking": thinking}
    changed = without_unsigned_thinking(body)
    assert changed is not None
    assert ("thinking" in changed) is stays
