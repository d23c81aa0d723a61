"""/v1/messages through the real gateway, in front of servers of either form."""

import hashlib

import orjson
import pytest
from aiohttp import web
from messages_api import TOOL, USAGE, WORDS, as_anthropic, as_openai, ask, message

from gateway.protocol.endpoints.messages import StreamedMessage
from running_gateway import start_app
from scripted_upstream import chunk, completion

COUNT = "/v1/messages/count_tokens"


@pytest.fixture(params=["anthropic", "openai"])
async def served(request, upstream, start_gateway):
    """A gateway in front of a server of one form, and the path of that server."""
    api = request.param
    upstream.answer = as_anthropic if api == "anthropic" else as_openai
    listed = [{"url": f"{upstream.url}/v1", "api": api, "probe": "off"}]
    gateway = await start_gateway(upstream=(), upstreams=listed)
    return gateway, "/v1/messages" if api == "anthropic" else "/v1/chat/completions"


@pytest.fixture
async def translating(upstream, start_gateway):
    """A gateway in front of one server of chat completions, without a pool."""
    upstream.answer = as_openai
    return await start_gateway()


@pytest.fixture
async def native(upstream, start_gateway):
    upstream.answer = as_anthropic
    listed = [{"url": f"{upstream.url}/v1", "api": "anthropic", "probe": "off"}]
    return await start_gateway(upstream=(), upstreams=listed)


def assembled(asked):
    assert asked.headers["Content-Type"].startswith("text/event-stream")
    answer = StreamedMessage(assemble=True, max_bytes=10**6)
    answer.feed(asked.raw)
    return answer.result()


def told(asked):
    """Return an answer in its plain form."""
    streamed = asked.headers["Content-Type"].startswith("text/event-stream")
    return assembled(asked) if streamed else asked.json


@pytest.mark.parametrize("tools", [[], [TOOL]], ids=["text", "call"])
@pytest.mark.parametrize("first", [False, True], ids=["plain", "stream"])
async def test_one_entry_serves_both_wires(served, upstream, first, tools):
    gateway, path = served
    missed = await ask(gateway, stream=first, tools=tools)
    assert missed.cache.startswith("refrain; fwd=miss")
    assert upstream.requests[0].path == path
    whole = told(missed)
    assert whole["content"][0] == {"type": "text", "text": "".join(WORDS)}
    assert whole["stop_reason"] == ("tool_use" if tools else "end_turn")
    assert whole["usage"]["cache_read_input_tokens"] == 4
    assert whole["usage"]["input_tokens"] == 5
    if tools:
        assert whole["content"][1]["input"] == {"city": "Paris"}
    for stream in (False, True):
        hit = await ask(gateway, stream=stream, tools=tools)
        assert "hit" in hit.cache
        assert told(hit) == whole
    assert upstream.calls == 1


async def test_a_native_server_gets_the_clients_bytes(native, upstream):
    raw = b'{"messages": [{"content": "Hi", "role":"user"}], "model":"m", "max_tokens": 1e1 }'
    headers = {"anthropic-version": "2023-06-01", "x-api-key": "k"}
    await native.post("/v1/messages?beta=true", raw, headers=headers)
    [request] = upstream.requests
    assert upstream.raw == [raw]
    assert request.path_qs == "/v1/messages?beta=true"
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert request.headers["x-api-key"] == "k"


async def test_a_native_server_gets_the_gateways_key_as_it_reads_it(
    upstream, start_gateway, tmp_path
):
    (tmp_path / "key").write_text("own-key-of-the-gateway")
    (tmp_path / "key").chmod(0o600)
    digest = hashlib.sha256(b"theirs").hexdigest()
    (tmp_path / "keys").write_text(f"someone {digest}\n")
    upstream.answer = as_anthropic
    listed = [
        {"url": f"{upstream.url}/v1", "api": "anthropic", "api_key_file": tmp_path / "key"},
    ]
    gateway = await start_gateway(upstream=(), upstreams=listed, gateway_keys=tmp_path / "keys")
    reply = await ask(gateway, headers={"Authorization": "Bearer theirs"})
    assert reply.status == 200
    sent = upstream.requests[-1].headers
    assert sent["x-api-key"] == "own-key-of-the-gateway"
    assert "Authorization" not in sent


async def test_keywords_of_schemas_are_sent_in_one_order_and_properties_and_marks_stay(
    native, upstream
):
    tool = {**TOOL, "cache_control": {"type": "ephemeral"}}
    tool["input_schema"] = {"type": "object", "properties": {"b": {}, "a": {}}}
    reply = await ask(native, tools=[tool])
    sent = upstream.bodies[0]["tools"][0]["input_schema"]
    assert list(sent) == ["properties", "type"]
    assert list(sent["properties"]) == ["b", "a"]
    assert upstream.bodies[0]["tools"][0]["cache_control"] == {"type": "ephemeral"}
    assert "schema-keys" in reply.headers["X-Refrain-Rewrite"]


async def test_hints_mark_the_system_prompt(upstream, start_gateway, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\n"
        "default:\n"
        "  exact: on\n"
        "  semantic: off\n"
        "  freshness: 1h\n"
        "  scope: tenant\n"
        "  pii: bypass\n"
        "  hints: {breakpoints: system, min_tokens: 1}\n"
    )
    upstream.answer = as_anthropic
    listed = [{"url": f"{upstream.url}/v1", "api": "anthropic", "probe": "off"}]
    gateway = await start_gateway(upstream=(), upstreams=listed, policy=policy)
    reply = await ask(gateway, system="Be brief and kind to everyone.")
    assert reply.status == 200
    [block] = upstream.bodies[0]["system"]
    assert block["cache_control"] == {"type": "ephemeral"}
    assert "prompt_cache_key" not in upstream.bodies[0]


async def test_the_version_of_the_api_is_part_of_the_key(served, upstream):
    gateway, _ = served
    for version in ("2023-06-01", "2024-01-01", "2023-06-01"):
        await ask(gateway, headers={"anthropic-version": version})
    await ask(gateway, headers={"anthropic-version": "2023-06-01", "anthropic-beta": "b"})
    assert upstream.calls == 3


async def test_an_end_user_is_named_by_metadata(served, upstream, start_gateway):
    gateway, _ = served
    for user in ("a", "b"):  # it changes no answer
        await ask(gateway, metadata={"user_id": user})
    assert upstream.calls == 1


async def test_what_is_translated_holds_nothing_of_anthropic(translating, upstream):
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01", "anthropic-beta": "b"}
    reply = await ask(
        translating, path="/v1/messages?beta=true", headers=headers, system="s", stream=True
    )
    assert reply.status == 200
    [request] = upstream.requests
    assert request.path_qs == "/v1/chat/completions"
    assert request.headers["Authorization"] == "Bearer k"
    assert not [name for name in request.headers if name.lower().startswith(("anthropic", "x-api"))]
    assert upstream.bodies == [
        {
            "model": "claude-x",
            "max_tokens": 64,
            "stream": True,
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": "How do I reset my password?"},
            ],
            "stream_options": {"include_usage": True},
        }
    ]


@pytest.mark.parametrize("options", [None, {"include_usage": False}])
async def test_no_client_hides_what_a_request_uses(translating, upstream, options):
    reply = await ask(translating, stream=True, n=50, best_of=50, stream_options=options)
    assert reply.status == 200
    [body] = upstream.bodies
    assert body["stream_options"] == {"include_usage": True}
    assert body.keys().isdisjoint({"n", "best_of"})


async def test_a_server_that_takes_no_stream_options_gets_none(upstream, start_gateway):
    upstream.answer = as_openai
    gateway = await start_gateway(upstream_accepts=())
    usage = told(await ask(gateway, stream=True))["usage"]
    assert usage == {"input_tokens": 8, "output_tokens": 3, "estimated": True}
    assert "stream_options" not in upstream.bodies[0]


async def test_a_server_that_refuses_stream_options_gets_the_request_without_them(
    translating, upstream, caplog
):
    async def strict(request, body):
        if "stream_options" in body:
            return web.json_response({"detail": "extra field"}, status=422)
        return await as_openai(request, body)

    upstream.answer = strict
    answered = await ask(translating, stream=True)
    assert told(answered)["content"][0]["text"] == "".join(WORDS)
    first, second = upstream.bodies
    assert second == {name: first[name] for name in first if name != "stream_options"}
    assert "it refuses stream_options" in caplog.text


async def test_a_server_that_refuses_an_effort_and_a_prefill_gets_the_request_without_them(
    translating, upstream, caplog
):
    async def strict(request, body):
        if "reasoning_effort" in body or "continue_final_message" in body:
            return web.json_response({"error": {"message": "unknown field"}}, status=400)
        return await as_openai(request, body)

    upstream.answer = strict
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hel"}]
    answered = await ask(translating, messages=turns, output_config={"effort": "low"})
    assert answered.status == 200
    first, second = upstream.bodies
    assert (first["reasoning_effort"], first["continue_final_message"]) == ("low", True)
    assert second["messages"] == turns
    assert not {"reasoning_effort", "continue_final_message", "add_generation_prompt"} & set(second)
    assert "add_generation_prompt, continue_final_message, reasoning_effort" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
async def test_an_upstream_without_usage_uses_up_a_budget_of_tokens(
    upstream, start_gateway, tmp_path, stream
):
    async def silent(request, body):
        reply = {"role": "assistant", "content": "word " * 400}
        if not body.get("stream"):
            choice = {"index": 0, "message": reply, "finish_reason": "stop"}
            return web.json_response({**completion("", choices=[choice]), "usage": None})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for word in ["word "] * 400:
            await response.write(chunk(delta={"content": word}))
        await response.write(chunk(finish_reason="stop") + b"data: [DONE]\n\n")
        return response

    upstream.answer = silent
    digest = hashlib.sha256(b"theirs").hexdigest()
    (tmp_path / "keys").write_text(f"someone {digest} budget=300tokens/day\n")
    gateway = await start_gateway(gateway_keys=tmp_path / "keys", upstream_accepts=())
    headers = {"Authorization": "Bearer theirs", "Cache-Control": "no-store"}
    statuses = [(await ask(gateway, stream=stream, headers=headers)).status for _ in range(2)]
    assert statuses == [200, 429]


@pytest.mark.parametrize("path", ["/v1/messages", COUNT])
async def test_what_cannot_be_translated_goes_to_an_upstream_that_needs_no_translation(
    upstream, start_gateway, path
):
    async def answer(request, body):
        native = request.path.startswith("/v1/messages")
        return await (as_anthropic if native else as_openai)(request, body)

    upstream.answer = answer
    listed = [
        {"name": "gpu", "url": f"{upstream.url}/v1", "probe": "off"},
        {
            "name": "cloud",
            "url": f"{upstream.url}/v1",
            "api": "anthropic",
            "tier": 2,
            "probe": "off",
        },
    ]
    gateway = await start_gateway(upstream=(), upstreams=listed)
    tool = {"type": "web_search_20250305", "name": "web_search"}
    answered = await ask(gateway, path=path, tools=[tool])
    assert answered.status == 200
    assert answered.headers["X-Refrain-Upstream"] == "cloud"
    assert [request.path for request in upstream.requests] == [path]


async def test_what_cannot_be_translated_gets_the_fault_of_the_only_upstream_that_takes_it(
    upstream, start_gateway
):
    upstream.answer = as_openai
    listed = [
        {"name": "gpu", "url": f"{upstream.url}/v1", "probe": "off"},
        {"name": "cloud", "url": "http://127.0.0.1:9/v1", "api": "anthropic", "probe": "off"},
    ]
    gateway = await start_gateway(upstream=(), upstreams=listed)
    tool = {"type": "web_search_20250305", "name": "web_search"}
    failed = await ask(gateway, tools=[tool])
    assert failed.status == 502
    assert not upstream.calls


async def test_only_servers_of_chat_completions_get_a_salt(upstream, start_gateway):
    async def answer(request, body):
        native = request.path.startswith("/v1/messages")
        return await (as_anthropic if native else as_openai)(request, body)

    upstream.answer = answer
    for api in ("anthropic", "openai"):
        listed = [{"url": f"{upstream.url}/v1", "api": api, "probe": "off"}]
        gateway = await start_gateway(upstream=(), upstreams=listed, upstream_cache_salt=True)
        for key in ("a", "b"):
            headers = {"Authorization": f"Bearer {key}", "Cache-Control": "no-store"}
            assert (await ask(gateway, headers=headers)).status == 200
    *native, one, other = upstream.bodies
    assert not any("cache_salt" in body for body in native)
    assert one["cache_salt"] != other["cache_salt"]
    assert len(one["cache_salt"]) == 64


async def test_an_upstream_gets_its_own_name_of_the_model(upstream, start_gateway):
    upstream.answer = as_openai
    listed = [{"url": f"{upstream.url}/v1", "rename": {"claude-x": "qwen3"}, "probe": "off"}]
    gateway = await start_gateway(upstream=(), upstreams=listed)
    assert (await ask(gateway)).status == 200
    assert upstream.bodies[0]["model"] == "qwen3"


@pytest.mark.parametrize(
    ("fields", "status", "kind"),
    [
        ({"messages": []}, 400, "invalid_request_error"),
        ({"messages": None}, 400, "invalid_request_error"),
    ],
)
async def test_errors_of_the_gateway_have_anthropics_form(served, fields, status, kind):
    gateway, _ = served
    refused = await ask(gateway, headers={"x-request-id": "r-1"}, **fields)
    assert refused.status == status
    assert refused.json["type"] == "error"
    assert refused.json["error"]["type"] == kind
    assert refused.json["request_id"] == "r-1"
    assert set(refused.json) == {"type", "error", "request_id"}


async def test_an_unknown_key_is_refused_in_anthropics_form(upstream, start_gateway, tmp_path):
    (tmp_path / "keys").write_text("")
    gateway = await start_gateway(gateway_keys=tmp_path / "keys")
    for path in ("/v1/messages", COUNT, "/v1/messages/batches"):
        refused = await ask(gateway, path=path, headers={"x-api-key": "k"})
        assert refused.status == 401
        assert refused.json["error"]["type"] == "authentication_error"


async def test_a_refusal_by_the_head_has_anthropics_form(served):
    gateway, _ = served
    refused = await ask(gateway, headers={"Content-Encoding": "zip"})
    assert (refused.status, refused.json["type"]) == (415, "error")


async def test_a_hit_that_is_not_there_is_an_error_in_anthropics_form(served):
    gateway, _ = served
    refused = await ask(gateway, headers={"Cache-Control": "only-if-cached"})
    assert refused.status == 504
    assert refused.json["error"]["type"] == "timeout_error"


async def test_no_answer_is_an_error_in_anthropics_form(start_gateway):
    gateway = await start_gateway(upstream=("http://127.0.0.1:9/v1",))
    failed = await ask(gateway)
    assert failed.status == 502
    assert failed.json["error"]["type"] == "api_error"


async def test_an_error_of_a_server_of_chat_completions_is_translated(translating, upstream):
    async def refuse(request, body):
        return web.json_response({"error": {"message": "no such model"}}, status=404)

    upstream.answer = refuse
    failed = await ask(translating)
    assert failed.status == 404
    assert failed.json["error"] == {"type": "not_found_error", "message": "no such model"}


async def test_an_error_of_a_native_server_passes_unchanged(native, upstream):
    error = b'{"type":"error", "error":{"type":"not_found_error","message":"model: x"}}'

    async def refuse(request, body):
        return web.Response(body=error, status=404, content_type="application/json")

    upstream.answer = refuse
    assert (await ask(native)).raw == error


async def test_what_cannot_be_translated_is_named_and_not_sent(translating, upstream):
    tool = {"type": "web_search_20250305", "name": "web_search"}
    refused = await ask(translating, tools=[tool])
    assert refused.status == 400
    assert "tools[0]" in refused.json["error"]["message"]
    assert not upstream.calls


@pytest.mark.parametrize("stream", [False, True])
async def test_arguments_that_are_no_json_are_never_stored(translating, upstream, stream):
    function = {"name": "weather", "arguments": '{"city":'}
    call = {"index": 0, "id": "c", "type": "function", "function": function}

    async def broken(request, body):
        if not body.get("stream"):
            said = {"role": "assistant", "content": None, "tool_calls": [call]}
            choice = {"index": 0, "message": said, "finish_reason": "tool_calls"}
            return web.json_response(completion("", choices=[choice]))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in (chunk(delta={"tool_calls": [call]}), chunk(finish_reason="tool_calls")):
            await response.write(event)
        await response.write(b"data: [DONE]\n\n")
        return response

    upstream.answer = broken
    first = await ask(translating, tools=[TOOL], stream=stream)
    assert first.status == 200
    assert b'{\\"city\\":' in first.raw
    await ask(translating, tools=[TOOL], stream=stream)
    assert upstream.calls == 2


async def test_a_stream_that_breaks_off_ends_with_an_error_event(translating, upstream):
    async def broken(request, body):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chunk(delta={"content": "Hel"}))
        return response

    upstream.answer = broken
    failed = await ask(translating, stream=True)
    last = failed.raw.strip().rpartition(b"\n\n")[2].split(b"\n")
    assert last[0] == b"event: error"
    error = orjson.loads(last[1].removeprefix(b"data: "))
    assert error["error"]["type"] == "api_error"
    await ask(translating, stream=True)
    assert upstream.calls == 2


async def test_a_busy_native_server_is_replaced_by_another(upstream, start_gateway):
    async def busy(request, body):
        if request.path == "/v1/messages":
            return web.json_response(
                {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
                status=529,
            )
        return await as_openai(request, body)

    upstream.answer = busy
    listed = [
        {"name": "a", "url": f"{upstream.url}/v1", "api": "anthropic", "probe": "off"},
        {"name": "b", "url": f"{upstream.url}/v1", "tier": 2, "probe": "off"},
    ]
    gateway = await start_gateway(upstream=(), upstreams=listed)
    answered = await ask(gateway)
    assert answered.json["content"][0]["text"] == "".join(WORDS)
    assert "a=upstream-limited" in answered.headers["X-Refrain-Upstream"]


async def test_the_upstream_is_chosen_by_model(upstream, start_gateway):
    upstream.answer = as_anthropic
    listed = [
        {"name": "gpu", "url": "http://127.0.0.1:9/v1", "models": ["qwen*"], "probe": "off"},
        {
            "name": "cloud",
            "url": f"{upstream.url}/v1",
            "api": "anthropic",
            "models": ["claude*"],
            "probe": "off",
        },
    ]
    gateway = await start_gateway(upstream=(), upstreams=listed)
    assert (await ask(gateway)).headers["X-Refrain-Upstream"] == "cloud"
    assert (await ask(gateway, path=COUNT)).json == {"input_tokens": 11}


async def test_a_native_count_is_the_servers_and_is_found_again(native, upstream):
    assert (await ask(native, path=COUNT)).json == {"input_tokens": 11}
    again = await ask(native, path=COUNT)
    assert "hit" in again.cache
    assert upstream.calls == 1


@pytest.fixture
async def tokenizing():
    """A server that counts tokens: what it was asked, its next answer, and its address."""
    asked, answers = [], [web.json_response({"count": 17, "tokens": []})]

    async def tokenize(request):
        asked.append(await request.json())
        return answers.pop()

    app = web.Application()
    app.router.add_post("/tokenize", tokenize)
    runner, url = await start_app(app)
    yield asked, answers, url
    await runner.cleanup()


async def test_a_count_is_that_of_the_servers_tokenizer(start_gateway, tokenizing):
    asked, _, url = tokenizing
    gateway = await start_gateway(upstream=(f"{url}/v1",))
    counted = await ask(gateway, path=COUNT, system="s", tools=[TOOL])
    assert counted.json == {"input_tokens": 17}
    assert [sorted(body) for body in asked] == [["messages", "model", "tools"]]
    assert (await ask(gateway, path=COUNT, system="s", tools=[TOOL])).json == counted.json
    assert len(asked) == 1


@pytest.mark.parametrize("status", [400, 404, 501])
async def test_a_count_without_a_tokenizer_is_an_estimate_and_says_so(
    start_gateway, tokenizing, status
):
    _, answers, url = tokenizing
    answers[:] = [web.json_response({"error": "no"}, status=status)]
    gateway = await start_gateway(upstream=(f"{url}/v1",))
    counted = await ask(gateway, path=COUNT)
    assert counted.status == 200
    assert counted.json["estimated"] is True
    assert 4 < counted.json["input_tokens"] < 20
    assert "stored" not in counted.cache


@pytest.mark.parametrize("status", [401, 429, 500])
async def test_an_error_of_the_tokenizers_server_is_told(start_gateway, tokenizing, status):
    _, answers, url = tokenizing
    answers[:] = [web.json_response({"error": "no"}, status=status)]
    gateway = await start_gateway(upstream=(f"{url}/v1",))
    counted = await ask(gateway, path=COUNT)
    assert (counted.status, counted.json["error"]["message"]) == (status, "no")


async def test_a_repeated_request_is_answered_by_its_bytes(native, upstream):
    replies = [await ask(native) for _ in range(4)]
    assert len({reply.raw for reply in replies[1:]}) == 1
    assert all(reply.cache.endswith("detail=exact") for reply in replies[1:])
    assert upstream.calls == 1


def test_the_fake_servers_say_the_same():
    assert message()["usage"]["input_tokens"] == USAGE["prompt_tokens"] - 4


async def test_bytes_that_are_repeated_are_no_hit_for_another_version_of_the_api(native, upstream):
    for beta in ("a", "a", "a", "b"):
        answered = await ask(native, headers={"anthropic-beta": beta})
        assert answered.status == 200
    assert "fwd=miss" in answered.cache
    assert [request.headers["anthropic-beta"] for request in upstream.requests] == ["a", "b"]


async def test_thinking_that_was_translated_never_reaches_a_server_that_signs(
    upstream, start_gateway
):
    unsigned = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    signed = {"type": "thinking", "thinking": "Hm.", "signature": "theirs"}
    text, asked = {"type": "text", "text": "Yes."}, {"role": "user", "content": "Is it?"}
    turns = [asked, {"role": "assistant", "content": [unsigned, signed, text]}, asked]
    kept = [asked, {"role": "assistant", "content": [signed, text]}, asked]

    async def strict(request, body):
        if not request.path.startswith("/v1/messages"):
            return web.json_response({"error": {"message": "down"}}, status=503)
        assert body["messages"] == kept
        counts = request.path.endswith("count_tokens")
        return web.json_response({"input_tokens": 3} if counts else message(text))

    upstream.answer = strict
    url = f"{upstream.url}/v1"
    chat, native = {"name": "chat", "url": url}, {"name": "native", "url": url, "api": "anthropic"}
    for listed in ([{**chat, "tier": 1}, {**native, "tier": 2}], [native]):
        gateway = await start_gateway(upstream=(), upstreams=listed)
        body = {"model": "m", "max_tokens": 9, "messages": turns, "temperature": len(listed) / 10}
        reply = await gateway.post("/v1/messages", orjson.dumps(body))
        assert reply.status == 200, reply.raw
        counted = await gateway.post("/v1/messages/count_tokens", orjson.dumps(body))
        assert counted.json == {"input_tokens": 3}
