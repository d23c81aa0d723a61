"""Paths that pass through: their models are read, routed, renamed and limited."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from hashlib import sha256
from typing import Any

import orjson
import pytest
from aiohttp import FormData, web
from faulty_upstreams import pool

from running_gateway import RunningGateway, StartGateway, start_app
from scripted_upstream import ScriptedUpstream

ASKED = [{"role": "user", "content": "x"}]
CHAT = "/v1/chat/completions"
SPEECH = "/v1/audio/speech"
TRANSCRIPTIONS = "/v1/audio/transcriptions"


def line(name: str, *attributes: str) -> str:
    return " ".join((name, sha256(f"gk-{name}".encode()).hexdigest(), *attributes)) + "\n"


def bearing(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer gk-{name}"}


def body_of(**fields: Any) -> bytes:
    return orjson.dumps({"input": "x", **fields})


def form_of(*fields: tuple[str, str], file: bytes = b"RIFF", first: str = "") -> tuple[Any, str]:
    """Return a form and its type; the file comes before or behind the other fields."""
    parts = [f'--B\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}' for n, v in fields]
    head = '--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    parts.insert(0 if first == "file" else len(parts), head + file.decode())
    return ("\r\n".join(parts) + "\r\n--B--\r\n").encode(), "multipart/form-data; boundary=B"


async def post_form(gateway: RunningGateway, path: str, form: Any, who: str = "") -> Any:
    data, kind = form
    headers = {"Content-Type": kind, **(bearing(who) if who else {})}
    return await gateway.post(path, data, headers=headers)


@pytest.fixture
async def two(start_gateway: StartGateway) -> AsyncIterator[tuple[RunningGateway, list[Any]]]:
    """A gateway before two upstreams; the second has the models for sounds and pictures."""
    seen: list[tuple[str, str, bytes, str | None]] = []

    async def start(stack: AsyncExitStack, name: str) -> dict[str, Any]:
        async def answer(request: web.Request) -> web.Response:
            raw, length = await request.read(), request.headers.get("Content-Length")
            seen.append((name, request.path_qs, raw, length))
            return web.json_response({"at": name})

        async def models(_: web.Request) -> web.Response:
            return web.json_response({"object": "list", "data": [{"id": "whisper-large"}]})

        app = web.Application(client_max_size=2**26)
        app.router.add_get("/v1/models", models)
        app.router.add_route("*", "/{tail:.*}", answer)
        runner, url = await start_app(app)
        stack.push_async_callback(runner.cleanup)
        return {"url": f"{url}/v1"}

    async with AsyncExitStack() as stack:
        first, second = [await start(stack, name) for name in "ab"]
        second["rename"] = {"whisper-1": "whisper-large", "tts/alias": "tts-real"}
        declared = {"a": ["chat*"], "b": ["tts*", "gpt-image*", "whisper-large", "g"]}
        gateway = await pool(start_gateway, first, second, models=declared, max_body_bytes=2**19)
        yield gateway, seen


@pytest.mark.parametrize("path", [SPEECH, "/v1/images/generations", "/v1/responses/compact"])
async def test_a_request_goes_to_the_upstream_of_its_model(two, path):
    gateway, seen = two
    assert (await gateway.post(path, body_of(model="tts-1"))).json == {"at": "b"}
    assert (await gateway.post(path, body_of(model="chat-1"))).json == {"at": "a"}
    raw = b'{ "model" : "tts/alias", "input": "tts/alias" }'
    assert (await gateway.post(path, raw)).json == {"at": "b"}
    assert seen[-1][1:3] == (path, raw.replace(b'"tts/alias",', b'"tts-real",'))


@pytest.mark.parametrize("first", ["file", "model"])
@pytest.mark.parametrize("size", [10, 400_000])
async def test_the_model_of_a_form_is_routed_and_renamed(two, first, size):
    gateway, seen = two
    data, kind = form_of(("model", "whisper-1"), ("language", "en"), file=b"R" * size, first=first)
    assert (await post_form(gateway, TRANSCRIPTIONS, (data, kind))).json == {"at": "b"}
    _, _, raw, length = seen[-1]
    assert raw == data.replace(b"whisper-1", b"whisper-large")
    assert length == str(len(raw))


async def test_a_large_upload_streams_on_behind_its_model(two):
    gateway, seen = two
    form = form_of(("model", "whisper-1"), file=b"R" * 900_000)
    assert (await post_form(gateway, TRANSCRIPTIONS, form)).json == {"at": "b"}
    late = form_of(("model", "whisper-1"), file=b"R" * 900_000, first="file")
    assert (await post_form(gateway, TRANSCRIPTIONS, late)).status == 200
    large = form_of(("purpose", "assistants"), file=b"R" * 900_000)
    assert (await post_form(gateway, "/v1/files", large)).json == {"at": "a"}
    assert [raw for *_, raw, _ in seen[1:]] == [late[0], large[0]]
    assert (await gateway.post(SPEECH, body_of(x="R" * 900_000))).status == 413


async def test_forms_of_a_real_client_in_chunks(two):
    gateway, seen = two
    form = FormData()
    form.add_field("file", b"R" * 100_000, filename="a.mp3")
    form.add_field("model", "whisper-1")
    async with gateway.session.post(gateway.url + TRANSCRIPTIONS, data=form, chunked=True) as reply:
        assert await reply.json() == {"at": "b"}
    assert b"\r\n\r\nwhisper-large\r\n" in seen[-1][2]


async def test_what_cannot_be_read_passes_as_it_came(two):
    gateway, seen = two
    for data, kind in (
        (b"{broken", "application/json"),
        (b'{"model": "tts-1", "model": "chat-1"}', "application/json"),
        (b"x=1&model=tts-1", "application/x-www-form-urlencoded"),
        (b"--B\r\nno form", "multipart/form-data; boundary=B"),
    ):
        reply = await gateway.post("/v1/elsewhere", data, headers={"Content-Type": kind})
        assert (reply.json, seen[-1][2]) == ({"at": "a"}, data)


async def test_a_model_that_no_upstream_declares_is_unknown(two):
    gateway, seen = two
    reply = await gateway.post(SPEECH, body_of(model="nobodys"))
    assert (reply.status, reply.json["error"]["code"]) == (404, "model_not_found")
    assert not seen


async def test_a_model_of_the_path_is_routed_and_an_alias_is_described(two):
    gateway, _ = two
    assert (await gateway.post("/v1/models/g:generateContent", b"{}")).json == {"at": "b"}
    assert (await gateway.get("/v1/models/chat-1")).json == {"at": "a"}
    for alias in ("whisper-1", "tts/alias", "tts%2Falias"):
        told = await gateway.get(f"/v1/models/{alias}")
        assert (told.status, told.json["id"]) == (200, alias.replace("%2F", "/"))


async def test_an_alias_is_described_whatever_the_list_is(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    gateway = await pool(start_gateway, {"url": f"{upstream.url}/v1", "rename": {"fast": "m"}})
    told = await gateway.get("/v1/models/fast")
    assert (told.status, told.json["id"], told.json["object"]) == (200, "fast", "model")


@pytest.mark.parametrize("rest", ["images/generations", "audio/speech", "moderations"])
async def test_a_deployments_other_paths_are_those_of_the_api(two, rest):
    gateway, seen = two
    path = f"/openai/deployments/tts-9/{rest}?api-version=1"
    assert (await gateway.post(path, b'{"input": "x"}')).json == {"at": "b"}
    assert seen[-1][1:3] == (f"/v1/{rest}?api-version=1", b'{"input": "x","model":"tts-9"}')


async def test_a_deployments_form_gets_its_model(two):
    gateway, seen = two
    data, kind = form_of(("language", "en"))
    path = "/openai/deployments/whisper-1/audio/transcriptions"
    assert (await post_form(gateway, path, (data, kind))).json == {"at": "b"}
    _, path, raw, length = seen[-1]
    head = b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-large\r\n'
    assert (path, raw, length) == (TRANSCRIPTIONS, head + data, str(len(raw)))


@pytest.mark.parametrize("path", ["/openai/responses?api-version=1", "/openai/v1/chat/completions"])
async def test_azures_paths_of_the_cache_are_cached(
    start_gateway: StartGateway, upstream: ScriptedUpstream, path: str
):
    gateway = await start_gateway()
    cached = path.replace("/openai/", "/v1/").replace("/v1/v1/", "/v1/")
    body = orjson.dumps(
        {"model": "m", "input": "hi", "messages": [{"role": "user", "content": "hi"}]}
    )
    await gateway.post(path, body)
    assert upstream.requests[-1].path_qs == cached
    assert (await gateway.get("/openai/models?api-version=1")).json[
        "path"
    ] == "/v1/models?api-version=1"
    for spelt in (path, cached, cached.replace("/v1/", "/v1//"), cached.replace("?", "/?")):
        if "chat" in path:
            assert "hit" in (await gateway.post(spelt, body)).cache


async def test_wrong_base_urls_are_told_and_not_forwarded(
    start_gateway: StartGateway, upstream: ScriptedUpstream
):
    gateway = await start_gateway()
    for path in ("/chat/completions", "/v1/v1/chat/completions", "/v1/Chat/completions", "/v1"):
        reply = await gateway.post(path, b"{}")
        assert (reply.status, reply.json["error"]["code"]) == (404, "unknown_url")
        assert "/v1/chat/completions" in reply.json["error"]["message"]
    assert not upstream.requests


@pytest.fixture
async def keyed(start_gateway: StartGateway, tmp_path: Any) -> RunningGateway:
    """A gateway with keys of every kind."""
    keys, prices = tmp_path / "keys", tmp_path / "prices.csv"
    prices.write_text("model,input,output,cached_input\nm,1000,1000,\nmini,1,1,\n")
    keys.write_text(
        line("models", "models=m,w-*")
        + line("tokens", "budget=1ktokens/day")
        + line("dollars", "budget=1USD/day")
        + line("closed", "models=m", "account=closed")
        + line("free")
    )
    return await start_gateway(gateway_keys=keys, prices=prices)


ALLOWED = {
    "speech": (SPEECH, body_of(model="m")),
    "pictures": ("/v1/images/generations", body_of(model="m", prompt="x")),
    "moderations": ("/v1/moderations", body_of(model="m")),
    "compact": ("/v1/responses/compact", body_of(model="m")),
    "counting": ("/v1/responses/input_tokens", body_of(model="m")),
    "a batch": ("/v1/batches", body_of(input_file_id="f")),
    "an own list": ("/v1/responses/compact", body_of(model="m", fallbacks=[])),
    "unheard of": ("/v1/new/path", body_of(model="m")),
}


@pytest.mark.parametrize("who", ["models", "tokens", "dollars", "closed"])
@pytest.mark.parametrize(("path", "body"), ALLOWED.values(), ids=ALLOWED.keys())
async def test_a_restricted_key_may_use_other_paths(
    keyed: RunningGateway, who: str, path: str, body: bytes
):
    reply = await keyed.post(path, body, headers=bearing(who))
    is_closed = who == "closed" and path in ("/v1/batches", "/v1/new/path")
    assert reply.status == (403 if is_closed else 201)


REFUSED = {
    "another model": (SPEECH, body_of(model="o3"), 403),
    "no model": (SPEECH, body_of(), 403),
    "a number": (SPEECH, body_of(model=5), 403),
    "another case": (SPEECH, body_of(model="m", Model="o3"), 403),
    "a list": ("/v1/responses/compact", body_of(model="m", models=["o3"]), 403),
    "fallbacks": (SPEECH, body_of(model="m", fallbacks=[{"m": ["o3"]}]), 403),
    "a tool": ("/v1/responses/compact", body_of(model="m", tools=[{"model": "o3"}]), 403),
    "the query": (f"{SPEECH}?model=o3", body_of(model="m"), 403),
    "the path": ("/v1/models/o3:generateContent", b"{}", 403),
    "a deployment": ("/openai/deployments/o3/audio/speech", body_of(), 403),
    "messages of a batch": (
        "/v1/messages/batches",
        orjson.dumps({"requests": [{"params": {"model": "m"}}, {"params": {"model": "o3"}}]}),
        403,
    ),
    "twice": (SPEECH, b'{"model": "m", "model": "o3"}', 400),
    "no JSON": (SPEECH, b"model=m", 400),
    "UTF-16": (SPEECH, '{"model": "m"}'.encode("utf-16"), 400),
    "an upload of a batch": ("/v1/uploads", body_of(purpose="batch"), 400),
    "cached, another case": (CHAT, body_of(model="m", Model="o3", messages=ASKED), 403),
    "cached, a list": (CHAT, body_of(model="m", models=["o3"], messages=ASKED), 403),
    "cached, odd": (CHAT, body_of(model="m", models=["o3"], user=5, messages=ASKED), 403),
    "cached, the query": ("/v1/chat/completions?model=o3", body_of(model="m", messages=ASKED), 403),
    "cached, a deployment": (f"/openai/deployments/o3{CHAT[3:]}", body_of(messages=ASKED), 403),
}  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status"), REFUSED.values(), ids=REFUSED.keys())
async def test_a_list_of_models_cannot_be_walked_around(
    keyed: RunningGateway, upstream: ScriptedUpstream, path: str, body: bytes, status: int
):
    reply = await keyed.post(path, body, headers=bearing("models"))
    assert reply.status == status
    assert not upstream.requests
    assert (await keyed.post(path, body, headers=bearing("free"))).status != 403


@pytest.mark.parametrize("path", [SPEECH, CHAT])
async def test_a_header_names_models_too(
    keyed: RunningGateway, upstream: ScriptedUpstream, path: str
):
    body, sent = body_of(model="m", messages=ASKED), {"Helicone-Model-Override": "o3"}
    reply = await keyed.post(path, body, headers={**bearing("models"), **sent})
    assert (reply.status, len(upstream.requests)) == (403, 0)
    assert (await keyed.post(path, body, headers=bearing("models"))).status in (200, 201)


@pytest.mark.parametrize("path", [SPEECH, CHAT])
@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain; charset=utf-7"])
async def test_a_body_that_was_read_as_json_is_sent_as_json(
    keyed: RunningGateway, upstream: ScriptedUpstream, path: str, kind: str
):
    body = body_of(model="m", messages=[{"role": "user", "content": "&model=o3&"}])
    for who in ("models", "free"):
        await keyed.post(path, body, headers={**bearing(who), "Content-Type": kind})
    sent = [request.headers.getall("Content-Type") for request in upstream.requests]
    assert sent == [["application/json"], [kind]]


async def test_no_header_gives_a_request_another_method(
    keyed: RunningGateway, upstream: ScriptedUpstream
):
    for who in ("models", "free"):
        headers = {**bearing(who), "X-HTTP-Method-Override": "POST"}
        await keyed.get(SPEECH, headers=headers)
    sent = ["X-HTTP-Method-Override" in request.headers for request in upstream.requests]
    assert sent == [False, True]


FORMS = {
    "allowed": (form_of(("model", "m")), 201),
    "a file first": (form_of(("model", "w-1"), first="file"), 201),
    "another": (form_of(("model", "o3")), 403),
    "twice": (form_of(("model", "m"), ("model", "o3")), 403),
    "behind the file": (form_of(("model", "m"), ("Model", "o3"), first="file"), 403),
    "a list": (form_of(("model", "m"), ("models[]", "o3")), 403),
    "none": (form_of(("language", "en")), 403),
    "no form": ((b"model=m", "multipart/form-data; boundary=B"), 400),
    "no boundary": ((form_of(("model", "m"))[0], "multipart/form-data"), 400),
    "another type": ((form_of(("model", "m"))[0], "application/json"), 400),
    "half a form": ((form_of(("model", "m"))[0][:-6], "multipart/form-data; boundary=B"), 400),
}


@pytest.mark.parametrize(("form", "status"), FORMS.values(), ids=FORMS.keys())
async def test_a_form_cannot_walk_around_a_list_of_models(
    keyed: RunningGateway, upstream: ScriptedUpstream, form: Any, status: int
):
    assert (await post_form(keyed, TRANSCRIPTIONS, form, "models")).status == status
    assert len(upstream.requests) == (status == 201)


@pytest.mark.parametrize(
    ("model", "purpose", "status"),
    [
        ("m", "batch", 201),
        ("o3", "batch", 403),
        ("o3", "user_data", 403),
        ("m", "user_data", 201),
        ("", "user_data", 201),
        ("", "batch", 400),
    ],
)
async def test_the_file_of_a_batch_is_read(
    keyed: RunningGateway, model: str, purpose: str, status: int
):
    row = {"custom_id": "1", "body": {"model": model} if model else {}}
    form = form_of(("purpose", purpose), file=orjson.dumps(row) + b"\n")
    assert (await post_form(keyed, "/v1/files", form, "models")).status == status


async def test_dollars_are_for_one_model_of_a_known_price(keyed: RunningGateway):
    mine = bearing("dollars")
    several = body_of(model="mini", models=["mini", "m"], messages=ASKED)
    assert (await keyed.post("/v1/chat/completions", several, headers=mine)).status == 403
    assert (await keyed.post(SPEECH, body_of(model="tts-1"), headers=mine)).status == 403
    assert (await keyed.post(SPEECH, body_of(model="mini"), headers=mine)).status == 201


def left(reply: Any) -> int:
    return int(reply.headers["x-ratelimit-remaining-tokens"])


USAGE = orjson.dumps({"input_tokens": 100, "output_tokens": 200})
REPLIES = {
    "plain": ("application/json", b'{"usage": %b}' % USAGE, 300),
    "behind a picture": (
        "application/json",
        b'{"b64_json": "%b", "usage": %b}' % (b"A" * 300_000, USAGE),
        300,
    ),
    "a stream": (
        "text/event-stream",
        b'data: {"type": "x"}\n\ndata: {"type": "done", "usage": %b}\n\n' % USAGE,
        300,
    ),
    "none": ("audio/mpeg", b"sound", 251),
    "a text that looks like it": ("application/json", b'{"text": "\\"usage\\": {}"}', 251),
}


@pytest.mark.parametrize(("kind", "raw", "tokens"), REPLIES.values(), ids=REPLIES.keys())
async def test_tokens_are_those_of_the_reply_or_estimated(
    start_gateway: StartGateway, tmp_path: Any, kind: str, raw: bytes, tokens: int
):
    async def answer(request: web.Request) -> web.Response:
        assert request.headers["Accept-Encoding"] == "identity"
        return web.Response(body=raw, content_type=kind)

    app = web.Application()
    app.router.add_post("/{tail:.*}", answer)
    runner, url = await start_app(app)
    (tmp_path / "keys").write_text(line("tokens", "tpm=100k"))
    gateway = await start_gateway(upstream=(f"{url}/v1",), gateway_keys=tmp_path / "keys")
    mine = bearing("tokens")
    body = body_of(model="m", input="x" * 1_000)
    told = await gateway.post(SPEECH, body, headers=mine)
    assert told.raw == raw
    assert left(await gateway.get("/v1/files/x/../x", headers=mine)) == 100_000 - tokens
    await runner.cleanup()
