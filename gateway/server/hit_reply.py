"""Replies that need no upstream: a hit on either wire, and the refusal of ``only-if-cached``."""

from typing import Any

import orjson

from gateway.cache.lookup import Hit
from gateway.protocol import exact_json
from gateway.protocol.cache_status import RefusedStatus
from gateway.protocol.endpoint import Endpoint
from gateway.protocol.endpoints.table import SPECS
from gateway.protocol.errors import RequestError
from gateway.protocol.messages import Reply
from gateway.protocol.reasons import Reason
from gateway.telemetry.observation import Observation

JSON_TYPE = ("Content-Type", "application/json")
SSE_TYPE = ("Content-Type", "text/event-stream; charset=utf-8")


def render_hit(endpoint: Endpoint, body: dict[str, Any], hit: Hit, seen: Observation) -> Reply:
    """Return the stored answer in the form that the request asks for."""
    status = hit.status
    seen.outcome = "hit"
    seen.reason = status.reason if status.stale is None else status.stale
    seen.entry, seen.key, seen.similarity = hit.entry, hit.entry.key, status.similarity
    seen.score, seen.threshold = status.score, status.threshold
    seen.status = 200
    headers = (
        ("Cache-Status", status.header()),
        ("Age", str(hit.age)),
        ("Refrain-Entry", hit.entry.key.hex()),
    )
    spec, plain = SPECS[endpoint], hit.entry.result
    if spec.render is not None:
        plain = spec.render(body, hit.entry.key, plain)
    if spec.streaming is None or not seen.streamed:
        return Reply(200, (JSON_TYPE, *headers), plain)
    options = body.get("stream_options") or {}
    stream = spec.streaming.render(
        exact_json.loads(plain), include_usage=options.get("include_usage") is True
    )
    return Reply(200, (SSE_TYPE, *headers), stream)


def refuse(seen: Observation) -> Reply:
    """Return the 504 of a request that wants a stored answer only, where there is none."""
    seen.outcome = "refused"
    seen.reason = Reason.ONLY_IF_CACHED
    seen.status = 504
    error = RequestError(
        504,
        "No stored answer fits, and the request asked for a stored answer only.",
        kind="cache_error",
        code=Reason.ONLY_IF_CACHED.value,
    )
    header = RefusedStatus(Reason.ONLY_IF_CACHED).header()
    return Reply(504, (JSON_TYPE, ("Cache-Status", header)), orjson.dumps(error.body()))
