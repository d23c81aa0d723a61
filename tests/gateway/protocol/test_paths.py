"""Paths of the API: each spelling is a cached endpoint, another path, or refused with a hint."""

import pytest

from gateway.protocol.errors import ClientError
from gateway.protocol.http.paths import read_path
from policies.decision import Endpoint

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("raw", "path", "model"),
    [
        (CHAT, CHAT, ""),
        (f"{CHAT}/", CHAT, ""),
        ("/v1//chat///completions//", CHAT, ""),
        ("/v1/responses/compact", "/v1/responses/compact", ""),
        ("/v1/files/", "/v1/files", ""),
        ("/openai/responses", "/v1/responses", ""),
        ("/openai/models", "/v1/models", ""),
        ("/openai/v1/chat/completions", CHAT, ""),
        ("/openai/v1/files/f-1/content", "/v1/files/f-1/content", ""),
        ("/openai/deployments/gpt%2D4/chat/completions", CHAT, "gpt-4"),
        ("/openai/deployments/d/images/generations", "/v1/images/generations", "d"),
        ("/openai/deployments/d/audio/transcriptions/", "/v1/audio/transcriptions", "d"),
        ("/v1/engines/d/completions", "/v1/completions", "d"),
        ("/v1/models/meta%2Fllama", "/v1/models/meta%2Fllama", "meta/llama"),
        ("/v1/models/llama3:latest", "/v1/models/llama3:latest", "llama3:latest"),
        ("/v1/models/g:generateContent", "/v1/models/g:generateContent", "g"),
    ],
)
def test_a_path_is_read(raw, path, model):
    read = read_path(raw)
    assert (read.path, read.model) == (path, model)


def test_a_model_in_a_path_is_renamed():
    assert read_path("/v1/models/a").naming("b/c") == "/v1/models/b/c"
    assert read_path("/v1/models/a:generateContent").naming("b") == "/v1/models/b:generateContent"
    assert read_path("/v1/files/a").naming("b") == "/v1/files/a"


@pytest.mark.parametrize(
    "raw",
    [
        f"{CHAT};a",
        f"{CHAT};a/",
        f"{CHAT}%20",
        f"{CHAT}%00",
        f"{CHAT}%0a",
        f"{CHAT}%3Fa",
        f"{CHAT}%23",
        f"{CHAT}.",
        f"{CHAT}|",
        f"{CHAT}%E2%80%8B",
        "/v1/%63hat/completions",
        "/openai/V1/chat/completions",
        "/v1/Chat/completions",
        "/v1/chat/COMPLETIONS",
        "/v1/chat%2Fcompletions",
        "/v1/chat%252Fcompletions",
        "/v1/chat%5ccompletions",
        "/v1/chat\\completions",
        "/v1/%EF%BD%83hat/completions",
        "/v1/./chat/completions",
        "/v1/chat/%2e/completions",
        "/v1/x/../chat/completions",
        "/v1/x/%252e%252e/chat/completions",
        "/v1/..;a/x",
        "/openai/Responses",
        "/openai/deployments/d/Chat/completions",
        "/openai/deployments//chat/completions",
    ],
)
def test_a_spelling_that_upstreams_may_fold_is_unknown(raw):
    with pytest.raises(ClientError) as refused:
        read_path(raw)
    assert (refused.value.status, refused.value.code) == (404, "unknown_url")


@pytest.mark.parametrize(
    ("raw", "hint"),
    [
        ("/chat/completions", "Is /v1/chat/completions meant? The base_url of OpenAI's clients"),
        ("/embeddings", "Is /v1/embeddings meant?"),
        ("/models", "Is /v1/models meant?"),
        ("/v1/v1/chat/completions", "Is /v1/chat/completions meant? The base_url ends in one /v1"),
        ("/v1/v1/models", "Is /v1/models meant?"),
        ("/v1/v1/messages", "The base_url of Anthropic's clients has no /v1"),
        ("/v1/", "It is the base_url"),
        ("/v1/Chat/completions", "Is /v1/chat/completions meant?"),
        *((each.removeprefix("/v1"), f"Is {each} meant?") for each in Endpoint),
    ],
)
def test_a_wrong_base_url_is_told(raw, hint):
    with pytest.raises(ClientError, match="Unknown request URL") as refused:
        read_path(raw)
    assert hint in refused.value.message
