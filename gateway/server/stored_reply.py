"""The reply to a request that the upstream does not see: a stored answer, or that there is none."""

import orjson

from gateway.cache.lookup import Hit
from gateway.protocol import exact_json
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.errors import RequestError
from gateway.protocol.http.cache_status import Reason, hit_fields, refused_header
from gateway.protocol.http.messages import Reply, body_of
from gateway.protocol.request import CacheRequest
from gateway.server.context import RequestContext
from gateway.telemetry import request_id
from gateway.telemetry.observation import Outcome
from policies.freshness import NOTHING_ASKED

Answer = tuple[Reply, Outcome]

JSON_TYPE = "application/json"
SSE_TYPE = "text/event-stream; charset=utf-8"


def render_hit(request: CacheRequest, hit: Hit, context: RequestContext | None = None) -> Answer:
    """Return the stored answer in the form that the request asks for.

    With a ``context``, the hit may be sure for a while: see ``Reply.fresh_until``.
    """
    fresh_until = None if context is None else _fresh_until(context, hit)
    spec, plain, status = SPECS[request.endpoint], hit.entry.result, hit.status
    if spec.render is not None and not hit.parts:
        plain = spec.render(request.body, hit.entry.key, plain)
    content_type, body = JSON_TYPE, body_of(hit.parts) if hit.parts else plain
    if spec.streaming is not None and request.streamed:
        result = exact_json.loads(plain)
        body = spec.streaming.render(result, include_usage=request.wants_usage)
        content_type = SSE_TYPE
    headers = hit_fields(content_type, status, hit.age, hit.entry.key)
    reason = status.reason if status.stale is None else status.stale
    return Reply(200, headers, body, fresh_until=fresh_until), Outcome("hit", reason, hit)


def refuse(endpoint: str) -> Answer:
    """Return status 504 for a request that accepts only a stored answer, if there is none."""
    error = RequestError(
        504,
        "No stored answer fits, and the request asked for a stored answer only.",
        kind="cache_error",
        code=Reason.ONLY_IF_CACHED.value,
    )
    fields = (("Content-Type", JSON_TYPE), ("Cache-Status", refused_header(Reason.ONLY_IF_CACHED)))
    body = orjson.dumps(error.body(endpoint, request_id.current()))
    return Reply(504, fields, body), Outcome("refused", Reason.ONLY_IF_CACHED)


def _fresh_until(context: RequestContext, hit: Hit) -> float | None:
    """Return until when the same request gets this hit again, None where that is not sure.

    It is sure of a fresh entry that the exact lookup found first, if the request asked for nothing.
    """
    plan, status = hit.plan, hit.status
    if (
        plan is None
        or plan.decision is not context.decision
        or plan.directives is not NOTHING_ASKED
        or status.reason is not Reason.EXACT
        or status.stale is not None
        or hit.to_compare is not None
    ):
        return None
    return plan.fresh_until(hit.entry)
