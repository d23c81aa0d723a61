"""What only its maker can read is found in requests and answers, and nothing else is."""

from typing import Any

import pytest

from gateway.protocol.anthropic.calls import with_extra
from gateway.protocol.endpoints.maker_state import (
    MOST_VALUES,
    MOST_VISITED,
    made_state,
    named_state,
)

SIGNED_ID = with_extra("call_1", {"thought_signature": "A"})
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("body", "values"),
    [
        ({"messages": [{"role": "user", "content": "signature: file_id"}]}, []),
        ({"input": [{"type": "reasoning", "encrypted_content": "A", "id": "rs"}]}, ["A", "rs"]),
        ({"input": [{"type": "compaction", "encrypted_content": "A"}]}, ["A"]),
        ({"input": [{"type": "item_reference", "id": "A"}, {"id": "B"}]}, ["B", "A"]),
        ({"input": [{"role": "assistant", "id": "msg_1", "content": "x"}]}, []),
        ({"input": [{"type": "message", "id": "m", "role": "user", "content": "x"}]}, []),
        ({"messages": [{"content": [{"type": "thinking", "signature": "A"}]}]}, ["A"]),
        ({"messages": [{"content": [{"type": "thinking", "signature": ""}]}]}, []),
        ({"messages": [{"content": [{"type": "redacted_thinking", "data": "A"}]}]}, ["A"]),
        ({"messages": [{"content": [{"type": "base64", "data": "an image"}]}]}, []),
        ({"messages": [{"content": [{"source": {"type": "file", "file_id": "A"}}]}]}, ["A"]),
        ({"messages": [{"content": [{"type": "container_upload", "file_id": "A"}]}]}, ["A"]),
        ({"messages": [{"content": [{"type": "tool_use", "id": SIGNED_ID}]}]}, [SIGNED_ID]),
        ({"messages": [], "container": "A"}, ["A"]),
        ({"messages": [], "container": {"id": "A", "skills": []}}, ["A"]),
        (
            {"messages": [{"tool_calls": [{**CALL, "thought_signature": "A"}]}]},
            ["A"],
        ),
        (
            {"messages": [{"extra_content": {"google": {"thought_signature": "A"}}}]},
            ["A"],
        ),
        (
            {"messages": [{"provider_specific_fields": {"thought_signatures": ["A", "B"]}}]},
            ["B", "A"],
        ),
        (
            {"messages": [{"reasoning_details": [{"type": "reasoning.encrypted", "data": "A"}]}]},
            ["A"],
        ),
        ({"messages": [{"reasoning_details": [{"text": "a", "signature": "A"}]}]}, ["A"]),
        ({"messages": [{"attachments": [{"file_id": "A", "tools": []}]}]}, ["A"]),
        ({"tools": [{"type": "file_search", "vector_store_ids": ["A"]}], "input": "x"}, ["A"]),
        ({"tools": [{"container": {"type": "auto", "file_ids": ["A"]}}], "input": "x"}, ["A"]),
        ({"input_file_id": "A", "endpoint": "/v1/responses"}, ["A"]),
        ({"training_file": "A", "model": "m"}, ["A"]),
        # Fields of a program's own tools and schemas are no state.
        ({"tools": [{"input_schema": {"properties": {"signature": "a"}}}], "messages": []}, []),
        ({"tools": [{"function": {"parameters": {"file_id": "a"}}}], "messages": []}, []),
        ({"messages": [{"content": [{"type": "tool_use", "input": {"file_id": "a"}}]}]}, []),
        ({"messages": [], "metadata": {"file_id": "a"}}, []),
        ({"messages": [{"content": [{"type": ["redacted_thinking"], "data": "a"}]}]}, []),
        ({"input": [{"type": {}, "id": "a"}, {"type": None, "id": ["a"]}, []]}, []),
        ({"input": "x", "tools": None, "signature": 5, "file_ids": [1, None]}, []),
    ],
)
def test_the_state_in_a_request(body: dict[str, Any], values: list[str]):
    assert named_state(body) == values


def test_the_newest_state_comes_first_and_is_all_that_counts():
    turns = [{"content": [{"signature": f"{n}"}]} for n in range(1000)]
    found = named_state({"messages": turns})
    assert found == [f"{n}" for n in range(999, 999 - MOST_VALUES, -1)]


def test_a_search_of_a_huge_body_ends():
    numbers = {"content": [0] * MOST_VISITED}
    assert named_state({"messages": [{"signature": "A"}, numbers]}) == []
    assert named_state({"messages": [numbers, {"signature": "A"}]}) == ["A"]


def test_a_body_that_is_nested_deeply_is_searched():
    body: dict[str, Any] = {"signature": "A"}
    for _ in range(100_000):
        body = {"content": [body]}
    assert named_state(body) == ["A"]


@pytest.mark.parametrize("keeps", [False, True])
def test_ids_belong_to_an_answer_that_is_kept(keeps: bool):
    item = {"type": "reasoning", "id": "rs_1", "encrypted_content": "A"}
    response = {"id": "resp_1", "object": "response", "output": [item]}
    ids = ["resp_1", "rs_1"] if keeps else []
    assert made_state(response, keeps=keeps) == ["A", *ids]
    event = {"type": "response.completed", "response": response}
    assert made_state(event, keeps=keeps) == ["A", *ids]
    text, call = {"type": "message", "id": "msg_1"}, {"type": "function_call", "id": "fc_1"}
    response["output"] = [item, text, item, call]
    ids = ["resp_1", "rs_1", "rs_1", "fc_1"] if keeps else []
    assert made_state(response, keeps=keeps) == ["A", "A", *ids]


def test_lists_of_objects_and_what_is_made_of_parts_have_their_ids():
    files = {"object": "list", "data": [{"id": "file-1"}, {"id": "file-2"}, "odd"]}
    assert made_state(files, keeps=True) == ["file-1", "file-2"]
    upload = {"id": "upload_1", "object": "upload", "file": {"id": "file-1"}}
    assert made_state(upload, keeps=True) == ["upload_1", "file-1"]
    batch = {"id": "batch_1", "output_file_id": "file-2", "error_file_id": None}
    assert made_state(batch, keeps=True) == ["file-2", "batch_1"]
