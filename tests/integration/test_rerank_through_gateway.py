"""A real reranker behind the real gateway: keys, models, budgets, and the cache of /v1/rerank."""

from hashlib import sha256

import orjson
import pytest

from backend.app import create_app
from backend.settings import Settings

pytest_plugins = ["running_backend", "tiny_encoders"]


@pytest.fixture
async def gateway(serve_application, start_gateway, rerankers, tmp_path):
    settings = Settings(str(rerankers / "bert"), served_model_name="tiny", device="cpu")
    engine = await serve_application(create_app(settings))
    await engine.model.load()
    keys = (f"{name} {sha256(name.encode()).hexdigest()} " for name in ("shop", "poor"))
    (tmp_path / "keys").write_text("models=alias budget=100tokens/day\n".join((*keys, "")))
    one = {"url": f"{engine.url}/v1", "auth": "none", "rename": {"alias": "tiny"}, "probe": "off"}
    return await start_gateway(upstream=(), upstreams=[one], gateway_keys=tmp_path / "keys")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/rerank", {"query": "a b", "documents": ["c d", "e f g"]}),
        ("/v1/score", {"text_1": "a b", "text_2": ["c d", "e f g"]}),
    ],
)
async def test_keys_models_and_budgets_hold_for_both_paths(gateway, path, fields):
    async def ask(who, **changes):
        body = orjson.dumps({"model": "alias", **fields, **changes})
        return await gateway.post(path, body, headers={"Authorization": f"Bearer {who}"})

    reply = await ask("shop")
    assert reply.status == 200
    found = reply.json.get("results") or reply.json["data"]
    assert {each["index"] for each in found} == {0, 1}
    assert reply.json["usage"]["total_tokens"] == 15
    again = await ask("shop")
    assert again.json["usage"] == reply.json["usage"]
    assert ("hit" in again.cache) == (path == "/v1/rerank")
    assert (await ask("nobody")).status == 401
    assert (await ask("shop", model="other")).status == 403
    assert (await ask("shop", **dict.fromkeys(fields))).status == 400
    spent = [
        (await ask("poor", user=str(n), **{"top_n": n} if "query" in fields else {})).status
        for n in range(9)
    ]
    assert set(spent[:3]) == {200}
    assert spent[-1] == 429
