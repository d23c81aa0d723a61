"""What a gateway key may do, over HTTP: its models, its end."""

import time
from hashlib import sha256

import pytest

from gateway.server.auth import Access


def line(name, key, *attributes):
    return " ".join((name, sha256(key.encode()).hexdigest(), *attributes)) + "\n"


def bearing(key="gk-shop"):
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def keys(tmp_path):
    return tmp_path / "keys"


@pytest.mark.parametrize("more", [{}, {"X-Unusual": "a", "Expect": "100-continue"}])
async def test_a_key_of_some_models_gets_no_other(start_gateway, upstream, keys, more):
    keys.write_text(line("shop", "gk-shop", "models=gpt-4o*,m") + line("desk", "gk-desk"))
    gateway = await start_gateway(gateway_keys=keys)
    headers = {**bearing(), **more}
    assert (await gateway.ask(headers=headers)).status == 200
    refused = await gateway.ask(headers=headers, model="o3")
    assert refused.status == 403
    assert refused.cache == "refrain; detail=model-not-allowed"
    error = refused.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["param"], error["code"]) == ("model", "model_not_allowed")
    assert "gpt-4o*, m" in error["message"]
    assert upstream.calls == 1
    assert (await gateway.ask(headers=bearing("gk-desk"), model="o3")).status == 200


async def test_a_key_of_some_models_may_only_read_on_other_paths(start_gateway, upstream, keys):
    keys.write_text(line("shop", "gk-shop", "models=m") + line("desk", "gk-desk"))
    gateway = await start_gateway(gateway_keys=keys)
    assert (await gateway.get("/v1/models?a=b", headers=bearing())).status == 201
    assert (await gateway.post("/v1/audio/speech", b"{}", headers=bearing())).status == 403
    assert len(upstream.requests) == 1
    desk = bearing("gk-desk")
    assert (await gateway.post("/v1/audio/speech", b"{}", headers=desk)).status == 201


async def test_an_expired_key_is_refused_for_hits_too(start_gateway, keys, monkeypatch):
    end = time.time() + 3600
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end))
    keys.write_text(line("shop", "gk-shop", f"expires={stamp}"))
    now = [time.time()]
    monkeypatch.setattr(Access, "__init__", _with_clock(lambda: now[0]))
    gateway = await start_gateway(gateway_keys=keys)
    for _ in range(3):
        assert (await gateway.ask(headers=bearing())).status == 200
    # The hot path has a clock of its own: here the key is looked at by the parser's way.
    now[0] = end
    refused = await gateway.ask(headers={**bearing(), "x-other": "a"})
    assert refused.status == 401
    assert refused.json["error"]["message"] == "This API key has expired."
    assert refused.cache == "refrain; detail=unauthorized"


def _with_clock(clock, begin=Access.__init__):
    return lambda self, keys, denied: begin(self, keys, denied, clock)
