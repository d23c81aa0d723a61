"""What operators see: metrics as Prometheus scrapes them."""

from typing import Any

import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from running_gateway import RunningGateway
from scripted_upstream import ScriptedUpstream


async def samples(gateway: RunningGateway) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    page = (await gateway.get("/metrics")).raw.decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def counted(seen: dict[Any, float], name: str, **labels: str) -> float:
    return sum(
        value
        for (sample, pairs), value in seen.items()
        if sample == name and labels.items() <= dict(pairs).items()
    )


async def test_requests_are_counted_by_outcome_rule_and_reason(
    gateway: RunningGateway, upstream: ScriptedUpstream
):
    await gateway.ask()
    await gateway.settle()
    for _ in range(3):
        await gateway.ask()
    await gateway.ask(store=True)
    await gateway.post("/v1/chat/completions", b"{")
    await gateway.get("/v1/models")

    seen = await samples(gateway)
    total = "refrain_requests_total"
    chat = {"endpoint": "/v1/chat/completions"}
    assert counted(seen, total, **chat, outcome="miss", rule="default") == 1
    assert counted(seen, total, **chat, outcome="hit", reason="exact", rule="default") == 3
    assert counted(seen, total, **chat, outcome="bypass", reason="store-true") == 1
    assert counted(seen, total, **chat, outcome="invalid") == 1
    assert counted(seen, total, endpoint="/v1/*", outcome="pass") == 1
    assert counted(seen, "refrain_time_to_first_token_seconds_count", outcome="hit") == 3
    assert counted(seen, "refrain_request_seconds_count", outcome="miss") == 1
    assert counted(seen, "refrain_upstream_seconds_count") == 3
    assert counted(seen, "refrain_entries") == 1
    assert counted(seen, "refrain_entry_bytes") > 100


@pytest.mark.parametrize(
    ("status", "outcome", "reason"),
    [
        (500, "error", "upstream-status"),
        (503, "error", "upstream-status"),
        (429, "error", "upstream-limited"),
        (400, "miss", ""),
        (401, "miss", ""),
    ],
)
async def test_an_upstreams_own_error_counts_as_an_error_unless_it_is_the_clients(
    gateway: RunningGateway, upstream: ScriptedUpstream, status: int, outcome: str, reason: str
):
    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=status)

    upstream.answer = answer
    for streamed in (False, True):
        reply = await gateway.ask(stream=streamed)
        assert (reply.status, reply.cache) == (
            status,
            "refrain; fwd=miss; detail=upstream-status",
        )
    seen = await samples(gateway)
    assert counted(seen, "refrain_requests_total", outcome=outcome, reason=reason) == 2
    assert counted(seen, "refrain_declined_total", reason="upstream-status") == 2
