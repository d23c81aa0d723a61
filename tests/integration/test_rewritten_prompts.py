"""Prompts rewritten on their way to the real engine: what its prefix cache makes of them."""

import orjson
import pytest

pytest_plugins = ["running_backend"]

POLICY = (
    "version: 1\ndefault: {exact: on, semantic: off, freshness: 1h, scope: tenant, pii: bypass, "
    "prefix: {volatile: [timestamps]}}\n"
)
STABLE = "You are the assistant of a shop. Answer briefly, and only what you know. " * 3


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


async def cached_tokens(gateway, *, key, stream=False):
    """Ask two questions, as at two times; of each the prompt's tokens and those that were there."""
    found = []
    for second in (1, 2):
        now = f"2026-11-22T01:03:4{second}.123Z"
        body = {
            "model": "tiny",
            "messages": [
                {"role": "system", "content": f"It is {now}. {STABLE}"},
                {"role": "user", "content": f"What is number {second}?"},
            ],
            "temperature": 0,
            "max_tokens": 2,
            "stream": stream,
        }
        if stream:
            body["stream_options"] = {"include_usage": True}
        headers = {"Authorization": f"Bearer {key}"}
        reply = await gateway.post("/v1/chat/completions", orjson.dumps(body), headers=headers)
        assert reply.status == 200
        usage = (reply.events[-1] if stream else reply.json)["usage"]
        found.append((usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
    return found


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_a_time_in_the_system_prompt_costs_the_prefix_unless_it_is_moved(
    start_real_server, start_gateway, policy, stream
):
    engine = await start_real_server()
    upstream = (f"{engine.url}/v1",)
    as_sent = await start_gateway(upstream=upstream)
    (_, _), (tokens, cached) = await cached_tokens(as_sent, key="a", stream=stream)
    assert cached < 0.2 * tokens
    rewriting = await start_gateway(upstream=upstream, policy=policy)
    (_, first), (tokens, cached) = await cached_tokens(rewriting, key="b", stream=stream)
    assert first == 0
    assert cached >= len(STABLE) // 16 * 16
    assert cached > 0.5 * tokens
