import pytest
from example_requests import chat, user

from gateway.protocol.tokens import ATTACHMENT_TOKENS, prompt_tokens
from policies.decision import Endpoint


def image(url):
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (chat({"role": "", "content": "a" * 400}), 100),
        (chat({"role": "user", "content": "a" * 396}), 100),
        (chat({"role": "user", "content": "a" * 397}), 101),
        (chat({"role": "", "content": "\u00e9" * 400}), 200),
        (chat({"role": "", "content": "\ud800" * 4}), 3),
        (chat(user([image("data:image/png;base64," + "A" * 100_000)])), ATTACHMENT_TOKENS + 1),
        (chat(user([{"type": "input_audio", "input_audio": {"data": "A" * 9999}}])), 766),
        (chat(user(["text"] * 4), user("x" * 8)), 8),
        # Neither names nor neutral fields are read by the model.
        (chat({"role": "", "content": "a" * 4}, user="u" * 400, metadata={"a": "b" * 400}), 1),
    ],
)
def test_a_chat_is_estimated_by_its_bytes(body, tokens):
    assert prompt_tokens(Endpoint.CHAT, body) == tokens


def test_tools_and_system_prompt_count():
    bare = prompt_tokens(Endpoint.CHAT, chat())
    tools = [{"type": "function", "function": {"name": "f", "description": "d" * 400}}]
    assert prompt_tokens(Endpoint.CHAT, chat(tools=tools)) >= bare + 100


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("a" * 40, 10),
        ([1, 2, 3], 3),
        ([[1], [2, 3]], 3),
        (["a" * 40, "b" * 40], 20),
        ([], 0),
    ],
)
def test_token_numbers_are_counted_and_texts_estimated(prompt, tokens):
    assert prompt_tokens(Endpoint.COMPLETIONS, {"model": "m", "prompt": prompt}) == tokens
    assert prompt_tokens(Endpoint.EMBEDDINGS, {"model": "m", "input": prompt}) == tokens


def test_what_is_nested_deeply_is_counted_without_recursion():
    deep = "a" * 4
    for _ in range(5_000):
        deep = [deep]
    assert prompt_tokens(Endpoint.CHAT, chat(user(deep))) == 2
