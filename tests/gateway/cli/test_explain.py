"""``refrain policy explain``: why a request would hit, miss or bypass, on real stores."""

import asyncio
import hashlib
import io
import json

import orjson
import pytest
from aiohttp import web

from gateway.app import default_policy
from gateway.cache.stores.sqlite.store import SqliteStore
from gateway.cli.main import main
from gateway.server.admin.recorded_request import InvalidFieldError, as_json, parse_recorded
from policies.decision import Endpoint

POLICY = """
version: 1
tenants:
  acme: {api_key_sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae}
rules:
  - name: acme-desk
    match: {tenant: acme, header: {x-desk: [health, legal]}}
    semantic: off
  - name: orders
    match: {model: gpt-*, content: {keywords: [my order], regex: 'order \\d+'}}
    exact: off
    semantic: off
  - name: users
    match: {model: users}
    scope: user
  - name: agent
    match: {model: agent}
    prefix: {volatile: [timestamps], documents: {begin: <d>, end: </d>}}
  - name: hinted
    match: {model: claude-*}
    hints: {breakpoints: system, min_tokens: 1, cache_key: on, retention: 24h}
  - name: short
    match: {model: short}
    max_prompt_tokens: 5
  - name: cool
    match: {model: cool}
    max_temperature: 0.3
default: {exact: on, semantic: on, freshness: 1h, scope: tenant, pii: bypass, tags: [all]}
"""
QUESTION = "How do I reset my password?"


def chat(content=QUESTION, **fields):
    return {"model": "m", "messages": [{"role": "user", "content": content}], **fields}


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


@pytest.fixture
def explain(policy, tmp_path, capsys):
    """Run the command on a request; returns the JSON it prints."""

    def run(request, *arguments, code=0):
        file = tmp_path / "request.json"
        file.write_bytes(request if isinstance(request, bytes) else orjson.dumps(request))
        options = ["--json", *map(str, arguments), str(file)]
        if "--gateway" not in arguments:
            options = ["--policy", str(policy), *options]
        assert main(["policy", "explain", *options]) == code
        out, err = capsys.readouterr()
        return json.loads(out) if code == 0 else err

    return run


def rules(told):
    return {each["rule"]: [failed["key"] for failed in each["failed"]] for each in told["rules"]}


def test_the_rule_that_decides_and_what_each_earlier_one_lacked(explain):
    told = explain(chat(model="gpt-4o"))
    assert rules(told) == {
        "acme-desk": ["tenant", "header.x-desk"],
        "orders": ["content.keywords", "content.regex"],
        "users": ["model"],
        "agent": ["model"],
        "hinted": ["model"],
        "short": ["model"],
        "cool": ["model"],
        "default": [],
    }
    assert told["rules"][2]["failed"] == [{"key": "model", "wanted": ["users"], "got": "gpt-4o"}]
    assert told["decision"]["rule"] == "default"
    assert told["decision"]["settings"]["tags"] == ["all"]
    assert told["outcome"] == {"would": "lookup"}


def test_a_rule_that_matches_ends_the_list(explain):
    headers = {"Authorization": "Bearer foo", "X-Desk": "legal"}
    told = explain({"endpoint": "/v1/chat/completions", "headers": headers, "body": chat()})
    assert rules(told) == {"acme-desk": []}
    why_not = {"reason": "policy", "why_not": "the policy switches semantic off"}
    assert told["semantic"] == {"eligible": False, **why_not}
    assert "foo" not in json.dumps(told)


def test_a_stored_prompt_needs_no_model(explain):
    body = {"prompt": {"id": "pmpt_1"}, "store": False}
    told = explain({"endpoint": "/v1/responses", "body": body})
    assert told["request"]["model"] == ""
    assert told["outcome"]["reason"] == "stored-prompt"


@pytest.mark.parametrize(
    ("request_", "would", "reason"),
    [
        (chat("Where is my order? order 5", model="gpt-4o"), "bypass", "policy"),
        (chat(store=True), "bypass", "store-true"),
        (chat(model="users"), "bypass", "no-user"),
        (chat(model="users", user="ada"), "lookup", None),
        (chat(model="cool", temperature=1), "bypass", "temperature"),
        (chat(model="cool"), "lookup", None),
        (chat(model="short"), "refused", "prompt-too-long"),
        (chat("Mail ada@example.com"), "bypass", "pii"),
        ({"headers": {"Cache-Control": "no-store"}, "body": chat()}, "bypass", "no-store"),
        (chat(messages=[]), "invalid", None),
    ],
)
def test_without_a_store_what_the_policy_alone_settles(explain, request_, would, reason):
    outcome = explain(request_)["outcome"]
    assert (outcome["would"], outcome.get("reason")) == (would, reason)


AGENT = {
    "model": "agent",
    "messages": [
        {"role": "system", "content": "You are the assistant of a shop. It is 09:30:15. <d>"},
        {"role": "user", "content": QUESTION},
    ],
}


def test_what_would_be_rewritten_is_told_as_a_diff_of_bytes(explain):
    told = explain(AGENT)["rewrite"]
    assert told["changes"] == ["volatile"]
    assert told["declined"] == [{"rewrite": "documents", "why": "unbalanced-markers"}]
    assert told["more"] is False
    value, block = told["diff"]
    raw = orjson.dumps(AGENT)
    assert raw[value["at"] :].startswith(b"09:30:15")
    assert (value["went"], value["came"]) == ("09:30:15", "[timestamp-1]")
    assert raw[block["at"] :].startswith(b'{"role":"user"')
    assert block["went"] == ""
    assert block["came"].endswith('[timestamp-1] = 09:30:15"},')
    assert explain(chat())["rewrite"] == {
        "changes": [],
        "declined": [],
        "diff": [],
        "more": False,
    }


def test_a_diff_for_people(policy, tmp_path, capsys):
    file = tmp_path / "request.json"
    file.write_bytes(orjson.dumps(AGENT))
    assert main(["policy", "explain", "--policy", str(policy), str(file)]) == 0
    out = capsys.readouterr().out
    lines = out[out.index("What would be rewritten") :].splitlines()
    assert lines[1:6] == [
        "  rules             volatile",
        "  documents         left as it is: unbalanced-markers",
        '  byte 96           istant of a shop. It is …. <d>"},{"role":"user","',
        "                    - 09:30:15",
        "                    + [timestamp-1]",
    ]


def test_tools_in_another_order_do_not_fill_the_terminal(policy, tmp_path, capsys):
    tools = [
        {"type": "function", "function": {"name": name, "description": f"{name} helps. " * 200}}
        for name in "ba"
    ]
    sorting = policy.read_text().replace("prefix: {", "prefix: {tools: sorted, ")
    policy.write_text(sorting)
    request = tmp_path / "request.json"
    request.write_bytes(orjson.dumps({**chat(), "model": "agent", "tools": tools}))
    assert main(["policy", "explain", "--policy", str(policy), str(request)]) == 0
    out = capsys.readouterr().out
    assert "more characters" in out
    assert max(map(len, out.splitlines())) < 700


@pytest.mark.parametrize("arguments", [["explain", "--policy"], ["replay", "--policy"]])
def test_a_policy_in_place_of_a_request_is_told_to_be_yaml(arguments, tmp_path, capsys):
    file = tmp_path / "policy.yaml"
    file.write_bytes(default_policy().read_bytes())
    assert main(["policy", *arguments, str(file), str(file)]) == 2
    told = capsys.readouterr().err
    assert told.count(f"{file}: this is YAML, and ") == 1
    assert told.count("\n") == 1


def test_a_line_of_a_decision_log_is_a_request_too():
    line = {
        "endpoint": "/v1/responses",
        "rule": "default",
        "request": {"model": "m", "input": "Hi"},
    }
    told = parse_recorded(orjson.dumps(line))
    assert (told.endpoint, told.body, told.inferred) == (Endpoint.RESPONSES, line["request"], False)
    assert parse_recorded(orjson.dumps({"request": chat()})).endpoint is Endpoint.CHAT


def test_what_the_upstream_would_be_told_of_the_stable_prefix_is_told_apart(explain):
    body = {**AGENT, "model": "claude-sonnet-4-5", "prompt_cache_key": "mine"}
    told = explain(body)
    assert told["rewrite"]["changes"] == []
    assert told["hints"]["changes"] == ["breakpoints", "retention"]
    assert [each["came"] for each in told["hints"]["diff"]] == [
        '[{"type":"text","text":',
        ',"cache_control":{"type":"ephemeral"}}]',
        ',"prompt_cache_retention":"24h"',
    ]
    assert "hints" not in explain(AGENT)


def test_personal_data_is_named_by_kind_and_place_and_never_quoted(explain):
    body = chat("Mail ada@example.com or call +1 415 555 2671")
    body["messages"].insert(0, {"role": "system", "content": "You are grace@example.com"})
    told = explain(body)
    assert told["pii"]["findings"] == [
        {"kind": "email", "where": "messages[0].content", "start": 8, "end": 25},
        {"kind": "email", "where": "messages[1].content", "start": 5, "end": 20},
        {"kind": "phone", "where": "messages[1].content", "start": 29, "end": 44},
    ]
    for secret in ("ada@", "grace@", "415 555"):
        assert secret not in json.dumps(told)


@pytest.mark.parametrize(
    ("request_", "where", "end"),
    [
        (chat(user="ada@example.com"), "user", 15),
        (chat(metadata={"by": "ada@example.com"}), "metadata.by", 15),
        (chat(metadata={"ada@example.com": 1}), "metadata.(a name)", 15),
        (chat(model="ada@example.com"), "model", 15),
        (chat(user="averyveryverylongname2@example.com"), "user", 34),
        (chat("ada&#64;example.com"), "messages[0].content", 19),
        (
            {"endpoint": "/v1/chat/completions?a=ada%40example.com", "body": chat()},
            "query string",
            0,
        ),
    ],
)
def test_what_is_sent_beside_the_prompt_is_named_too(explain, request_, where, end):
    told = explain(request_)
    assert told["pii"]["findings"] == [{"kind": "email", "where": where, "start": 0, "end": end}]
    assert (told["outcome"]["would"], told["outcome"]["reason"]) == ("bypass", "pii")
    assert "ada@" not in json.dumps(told["pii"])


@pytest.mark.parametrize(
    ("body", "kind", "where"),
    [
        (
            chat([{"type": "text", "text": "a@exam"}, {"type": "text", "text": "ple.com"}]),
            "email",
            "texts put together or unescaped",
        ),
        ({"model": "m", "prompt": [1, 2]}, "unreadable", "prompt, as token numbers"),
    ],
)
def test_what_is_found_in_no_single_text_is_told(explain, body, kind, where):
    told = explain(body)
    assert told["pii"]["findings"] == [{"kind": kind, "where": where, "start": 0, "end": 0}]
    assert (told["outcome"]["would"], told["outcome"]["reason"]) == ("bypass", "pii")


@pytest.mark.parametrize(
    ("body", "reason", "why_not"),
    [
        (
            chat(tools=[{"type": "function", "function": {"name": "f"}}]),
            "tools",
            "may be an action",
        ),
        ({"model": "m", "prompt": "a"}, "endpoint", "only chat completions"),
        (chat(messages=[{"role": "assistant", "content": "a"}]), "last-turn", "is not the user's"),
        (chat([{"type": "image_url", "image_url": {"url": "x"}}]), "not-text", "than plain text"),
        (chat("  "), "empty-text", "the last message is empty"),
        (chat("Will it rain today?"), "time", "depends on when it is asked"),
    ],
)
def test_why_a_request_is_not_looked_up_by_meaning(explain, body, reason, why_not):
    semantic = explain(body)["semantic"]
    assert (semantic["eligible"], semantic["reason"]) == (False, reason)
    assert why_not in semantic["why_not"]


@pytest.fixture
async def stored(start_gateway, policy):
    """A gateway with one answer, which goes on running."""
    gateway = await start_gateway(policy=policy)
    await gateway.ask(QUESTION, temperature=0.2)
    await gateway.settle()
    return gateway


async def in_thread(explain, *arguments):
    return await asyncio.to_thread(explain, *arguments)


@pytest.mark.parametrize("where", ["--data-dir", "--gateway"])
async def test_a_hit_with_its_age_and_lifetime(stored, explain, where):
    place = stored.data_dir if where == "--data-dir" else stored.url
    told = await in_thread(explain, chat(temperature=0.2), where, place)
    outcome = told["outcome"]
    assert (outcome["would"], outcome["reason"]) == ("hit", "exact")
    assert outcome["entry"]["rule"] == "default"
    assert 3590 <= outcome["ttl"] <= 3600
    assert outcome["cache_status"].startswith("refrain; hit; ttl=")
    reply = await stored.ask(QUESTION, temperature=0.2)
    assert reply.headers["Refrain-Entry"] == outcome["entry"]["key"] == told["identity"]["key"]


@pytest.mark.parametrize("where", ["--data-dir", "--gateway"])
@pytest.mark.parametrize(
    ("body", "differences"),
    [
        (chat("Hi", temperature=0.2), [("messages[0]", "differs")]),
        (chat(temperature=0.3), [("temperature", "differs")]),
        (chat(), [("temperature", "only stored")]),
        (chat(temperature=0.2, seed=1), [("seed", "only asked")]),
        (chat(temperature=0.2, model="other"), [("model", "differs")]),
    ],
)
async def test_a_miss_names_what_differs_from_the_nearest_entry(
    stored, explain, where, body, differences
):
    place = stored.data_dir if where == "--data-dir" else stored.url
    told = await in_thread(explain, body, where, place)
    assert told["outcome"]["would"] == "miss"
    near = told["nearest"]
    assert [(each["field"], each["how"]) for each in near["differences"]] == differences
    assert (near["entries"], near["of_this_scope"]) == (1, 1)


async def embed(_request, body):
    data = [
        {"object": "embedding", "index": place, "embedding": [1.0]}
        for place, _ in enumerate(body["input"])
    ]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return web.json_response({"object": "list", "data": data, "model": "m", "usage": usage})


async def test_each_item_of_a_batch_of_embeddings_is_looked_up(stored, explain, upstream):
    upstream.answer = embed
    body = {"model": "m", "input": ["a", "b", "c"], "encoding_format": "float"}
    await stored.post("/v1/embeddings", orjson.dumps({**body, "input": ["a", "b"]}))
    told = await in_thread(explain, body, "--gateway", stored.url)
    assert told["outcome"]["would"] == "miss"
    assert told["items"] == {"asked": 3, "stored": 2}
    told = await in_thread(explain, {**body, "input": ["b"]}, "--gateway", stored.url)
    assert told["outcome"]["would"] == "hit"


async def test_another_tenants_entries_are_counted_and_nothing_else_is_told(stored, explain):
    asked = {"headers": {"Authorization": "Bearer other"}, "body": chat(temperature=0.2)}
    told = await in_thread(explain, asked, "--gateway", stored.url)
    assert told["nearest"] == {"entries": 1, "of_this_scope": 0, "entry": None}


async def test_a_generation_that_was_raised_is_named(stored, explain, policy):
    policy.write_text(POLICY.replace("version: 1", "version: 1\ngeneration: 2"))
    told = await in_thread(explain, chat(temperature=0.2), "--data-dir", stored.data_dir)
    assert told["nearest"]["differences"] == [{"field": "generation", "how": "differs"}]


async def test_what_is_stale_or_refused_is_not_compared_with_itself(stored, explain, policy):
    asked = {"headers": {"Cache-Control": "no-cache"}, "body": chat(temperature=0.2)}
    told = await in_thread(explain, asked, "--gateway", stored.url)
    assert (told["outcome"]["forwarded"], told["outcome"]["reason"]) == ("request", "no-cache")
    assert "nearest" not in told
    policy.write_text(POLICY.replace("freshness: 1h", "freshness: 1s"))
    told = await in_thread(explain, chat(temperature=0.2), "--data-dir", stored.data_dir)
    while told["outcome"]["would"] == "hit":  # until the second is over
        told = await in_thread(explain, chat(temperature=0.2), "--data-dir", stored.data_dir)
    assert told["outcome"]["forwarded"] == "stale"
    assert "nearest" not in told


async def test_an_explanation_stores_nothing_and_asks_no_upstream(stored, explain, upstream):
    asked = len(upstream.requests)
    for _ in range(2):
        told = await in_thread(explain, chat("Never asked"), "--gateway", stored.url)
        assert told["outcome"]["would"] == "miss"
    assert len(upstream.requests) == asked


async def test_an_explanation_evicts_nothing(stored, explain, monkeypatch):
    for number in range(60):  # the answers repeat the questions
        await stored.ask(f"Question {number}? " * 2000)
    await stored.settle()
    monkeypatch.setenv("REFRAIN_STORE_BYTES", str(1 << 20))
    await in_thread(explain, chat(), "--data-dir", stored.data_dir)
    store = SqliteStore(stored.data_dir / "entries.sqlite3", max_bytes=1 << 30)
    entries = (await store.walk(None, 100)).entries
    await store.close()
    assert len(entries) == 61


async def test_what_is_no_request_is_told_over_http(stored):
    for asked, param in (({"x": 1}, "body"), ({"endpoint": "/v1/x", "body": {}}, "endpoint")):
        reply = await stored.post("/admin/explain", orjson.dumps(asked))
        assert (reply.status, reply.json["error"]["param"]) == (400, param)


def test_an_empty_folder_stays_empty(explain, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "there is no store here" in explain(chat(), "--data-dir", empty, code=2)
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (b"{", "request.json: expected a request body as JSON"),
        (b'{"a": 1, "a": 2}', "more than once"),
        ({"a": 1}, "request.json: expected a body with messages, prompt, input or query"),
        ({"body": 1}, "request.json: body: expected an object"),
        ({"body": {}, "x": 1}, "x: expected one of the members endpoint, headers, body"),
        ({"endpoint": "/v1/x", "body": {}}, "endpoint: expected one of /v1/chat/completions"),
        ({"headers": {"a": 1}, "body": chat()}, "headers.a: expected a text of one line"),
        ({"headers": {"a": "b\r\nc"}, "body": chat()}, "headers.a: expected a text of one line"),
    ],
)
def test_what_is_no_request_is_told(explain, request_, message):
    assert message in explain(request_, code=2)


def test_a_gateway_that_is_not_there_is_told(explain):
    assert "cannot be asked" in explain(chat(), "--gateway", "http://127.0.0.1:1", code=1)


def test_a_request_cannot_speak_to_the_terminal(policy, tmp_path, capsys):
    file = tmp_path / "request.json"
    escape = "\x1b]0;owned\x07"
    body = chat(model=escape, **{escape: "ada@example.com"})
    file.write_bytes(orjson.dumps({"headers": {"x-desk": escape}, "body": body}))
    assert main(["policy", "explain", "--policy", str(policy), str(file)]) == 2  # no header
    file.write_bytes(orjson.dumps(body))
    assert main(["policy", "explain", "--policy", str(policy), str(file)]) == 0
    out = capsys.readouterr().out
    assert "owned" in out
    assert not {"\x1b", "\x07"} & set(out)


async def test_the_holder_of_a_gateway_key_is_known_offline_too(
    start_gateway, policy, tmp_path, explain
):
    keys = tmp_path / "keys"
    keys.write_text(f"shop {hashlib.sha256(b'rk-shop').hexdigest()}\n")
    gateway = await start_gateway(policy=policy, gateway_keys=keys)
    headers = {"Authorization": "Bearer rk-shop"}
    await gateway.ask(QUESTION, headers=headers)
    await gateway.settle()
    config = tmp_path / "refrain.yaml"
    config.write_text(f"gateway_keys: {keys}\ndata_dir: {gateway.data_dir}\n")
    asked = {"headers": headers, "body": chat()}
    told = await in_thread(explain, asked, "--config", config)
    assert (told["request"]["tenant"], told["outcome"]["would"]) == ("holder shop", "hit")
    told = await in_thread(explain, chat(), "--config", config)
    assert told["outcome"]["would"] == "invalid"


async def test_a_miss_for_people_names_the_field_in_the_first_line(
    stored, policy, tmp_path, capsys
):
    file = tmp_path / "request.json"
    file.write_bytes(orjson.dumps(chat(temperature=0.9)))
    arguments = ["policy", "explain", "--gateway", stored.url, str(file)]
    assert await asyncio.to_thread(main, arguments) == 0
    text = capsys.readouterr().out
    assert text.startswith(
        "MISS  the upstream is asked: the nearest entry differs in temperature\n"
    )
    assert "  temperature       differs\n" in text
    assert "  exact             no entry\n" in text


def test_a_request_from_standard_input_for_people(policy, capsys, monkeypatch):
    body = orjson.dumps(chat("Mail ada@example.com", model="gpt-4o"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(body)))
    assert main(["policy", "explain", "--policy", str(policy), "-"]) == 0
    text = capsys.readouterr().out.replace(str(policy), "policy.yaml")
    assert text.startswith("BYPASS  pii: it holds personal data or secrets\n")
    assert "✗ orders     content.keywords not in the last user message: my order\n" in text
    assert "✓ default    decides\n" in text
    assert "email in messages[0].content, characters 5 to 20" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) < 110


@pytest.mark.parametrize(
    ("body", "endpoint"),
    [
        ({"messages": []}, Endpoint.CHAT),
        ({"prompt": "a"}, Endpoint.COMPLETIONS),
        ({"input": "a", "model": "text-embedding-3"}, Endpoint.EMBEDDINGS),
        ({"input": "a", "dimensions": 3}, Endpoint.EMBEDDINGS),
        ({"input": "a", "model": "gpt-4o"}, Endpoint.RESPONSES),
    ],
)
def test_the_endpoint_is_told_by_the_fields(body, endpoint):
    inquiry = parse_recorded(orjson.dumps(body))
    assert (inquiry.endpoint, inquiry.inferred) == (endpoint, True)


def test_an_inquiry_goes_over_the_wire_unchanged():
    raw = orjson.dumps(
        {"endpoint": "/v1/completions?v=1", "headers": {"X-A": "b"}, "body": {"prompt": "a"}}
    )
    inquiry = parse_recorded(raw)
    assert (inquiry.query, dict(inquiry.headers)) == ("v=1", {"x-a": "b"})
    assert parse_recorded(orjson.dumps(as_json(inquiry))) == inquiry


def test_any_bytes_are_an_inquiry_or_an_error():
    for raw in (b"", b"[]", b"null", b"\xff", b'{"body": {}}', b'{"headers": [], "body": {}}'):
        with pytest.raises(InvalidFieldError):
            parse_recorded(raw)
