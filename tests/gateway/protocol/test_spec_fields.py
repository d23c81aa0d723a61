"""Which fields keep a request from being looked up, and which are left out of its key."""

import pytest

from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.http.cache_status import Reason
from policies.decision import Endpoint

CHAT, COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS
EMBEDDINGS, RESPONSES = Endpoint.EMBEDDINGS, Endpoint.RESPONSES
FUNCTION = {"type": "function", "name": "f", "parameters": {}}
CUSTOM = {"type": "custom", "name": "c"}


@pytest.mark.parametrize(
    ("endpoint", "fields", "reason"),
    [
        (CHAT, {"store": True}, Reason.STORE_TRUE),
        (COMPLETIONS, {"store": True}, Reason.STORE_TRUE),
        (CHAT, {"web_search_options": {}}, Reason.WEB_SEARCH),
        (CHAT, {"model": "gpt-4o-mini-search-preview-2025-03-11"}, Reason.WEB_SEARCH),
        (CHAT, {"model": "vendor/gpt-5-search-api"}, Reason.WEB_SEARCH),
        (CHAT, {"tools": [{"type": "web_search"}]}, Reason.WEB_SEARCH),
        (CHAT, {"tools": [FUNCTION, {"type": "code_interpreter"}]}, Reason.HOSTED_TOOLS),
        (CHAT, {"tools": [{"googleSearch": {}}]}, Reason.HOSTED_TOOLS),
        (CHAT, {"tools": [{"type": None}]}, Reason.HOSTED_TOOLS),
        (CHAT, {"tools": [{"type": ["function"]}]}, Reason.HOSTED_TOOLS),
        (CHAT, {"tools": ["web_search"]}, Reason.HOSTED_TOOLS),
        (RESPONSES, {"model": "o3-deep-research"}, Reason.WEB_SEARCH),
        (RESPONSES, {"store": None}, Reason.STORE_TRUE),
        (RESPONSES, {"store": True}, Reason.STORE_TRUE),
        (RESPONSES, {"background": True}, Reason.BACKGROUND),
        (RESPONSES, {"conversation": "conv_1"}, Reason.CONVERSATION),
        (RESPONSES, {"conversation": {"id": "conv_1"}}, Reason.CONVERSATION),
        (RESPONSES, {"previous_response_id": "resp_1"}, Reason.PREVIOUS_RESPONSE),
        (RESPONSES, {"prompt": {"id": "pmpt_1", "version": "2"}}, Reason.STORED_PROMPT),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, Reason.CONVERSATION),
        (RESPONSES, {"input": [{"id": "x"}]}, Reason.CONVERSATION),
        (RESPONSES, {"input": [{"type": None, "id": "x"}]}, Reason.CONVERSATION),
        (
            RESPONSES,
            {"input": [{"type": "additional_tools", "tools": [{"type": "mcp"}]}]},
            Reason.HOSTED_TOOLS,
        ),
        *(
            (RESPONSES, {"tools": [CUSTOM, {"type": kind}]}, Reason.HOSTED_TOOLS)
            for kind in (
                "file_search",
                "computer",
                "computer_use_preview",
                "mcp",
                "code_interpreter",
                "programmatic_tool_calling",
                "image_generation",
                "local_shell",
                "shell",
                "namespace",
                "tool_search",
                "apply_patch",
                "of_tomorrow",
            )
        ),
        *(
            (RESPONSES, {"tools": [FUNCTION, {"type": kind}]}, Reason.WEB_SEARCH)
            for kind in (
                "web_search",
                "web_search_2025_08_26",
                "web_search_preview",
                "web_search_preview_2025_03_11",
            )
        ),
    ],
)
def test_a_request_whose_answer_depends_on_more_than_its_body_bypasses(endpoint, fields, reason):
    assert SPECS[endpoint].bypass_reason({"model": "m", "store": False, **fields}) is reason


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        (CHAT, {}),
        (CHAT, {"store": None}),
        (CHAT, {"web_search_options": None, "tools": None}),
        (CHAT, {"tools": []}),
        (CHAT, {"tools": [FUNCTION, CUSTOM]}),
        (COMPLETIONS, {}),
        (EMBEDDINGS, {}),
        (RESPONSES, {"input": "x"}),
        (RESPONSES, {"background": False, "conversation": None, "previous_response_id": None}),
        (RESPONSES, {"prompt": None, "tools": [FUNCTION, CUSTOM]}),
        (
            RESPONSES,
            {
                "input": [
                    {"role": "user", "content": "x"},
                    {"type": "function_call_output", "call_id": "c", "output": "y"},
                    {"type": "additional_tools", "role": "developer", "tools": [FUNCTION]},
                ]
            },
        ),
    ],
)
def test_any_other_request_is_looked_up(endpoint, fields):
    assert SPECS[endpoint].bypass_reason({"model": "m", "store": False, **fields}) is None


def test_a_response_is_kept_upstream_unless_the_request_says_no():
    assert SPECS[RESPONSES].bypass_reason({"model": "m", "input": "x"}) is Reason.STORE_TRUE


def test_each_endpoint_has_a_record():
    assert set(SPECS) == set(Endpoint)


def test_what_decides_the_answer_is_neutral_nowhere():
    for spec in SPECS.values():
        assert spec.fields["model"].keyed
        assert not spec.neutral & {"messages", "input", "prompt", "tools", "seed"}
