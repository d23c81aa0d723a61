"""A real OTLP/HTTP receiver: keeps what it is sent, as a collector would parse it."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from running_gateway import start_app

Metrics = dict[str, list[tuple[dict[str, Any], Any]]]

KINDS = {1: "INTERNAL", 2: "SERVER", 3: "CLIENT"}


@dataclass(frozen=True)
class ReceivedSpan:
    """One span with its attributes and those of its resource."""

    raw: Any
    attributes: dict[str, Any]
    resource: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.raw.name)

    @property
    def kind(self) -> str:
        return KINDS[self.raw.kind]

    @property
    def ids(self) -> tuple[str, str, str]:
        """Trace, span and parent."""
        return self.raw.trace_id.hex(), self.raw.span_id.hex(), self.raw.parent_span_id.hex()

    @property
    def failed(self) -> bool:
        return bool(self.raw.status.code == 2)

    @property
    def links(self) -> list[str]:
        return [link.span_id.hex() for link in self.raw.links]


@dataclass
class OtlpReceiver:
    """Answers as ``answer`` says, with status 200 by default."""

    url: str = ""
    bodies: list[tuple[str, bytes]] = field(default_factory=list)
    headers: list[Any] = field(default_factory=list)
    answer: Callable[[], Awaitable[web.Response]] | None = None
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.Response:
        raw = await request.read()
        if request.headers.get("Content-Encoding") == "gzip":
            raw = gzip.decompress(raw)
        self.headers.append(request.headers)
        self.came.set()
        if self.answer is not None:
            return await self.answer()
        self.bodies.append((request.path, raw))
        return web.Response()

    @property
    def spans(self) -> list[ReceivedSpan]:
        """All spans, in order of their begin."""
        spans = []
        for path, body in self.bodies:
            if path != "/v1/traces":
                continue
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                resource = values(group.resource.attributes)
                spans += [
                    ReceivedSpan(span, values(span.attributes), resource)
                    for scope in group.scope_spans
                    for span in scope.spans
                ]
        return sorted(spans, key=lambda span: span.raw.start_time_unix_nano)

    def named(self, *names: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name in names]

    @property
    def metrics(self) -> Metrics:
        """Attributes and points of each metric of the last export."""
        return [metrics for _, metrics in self._exports()][-1] if self.bodies else {}

    @property
    def metrics_of_processes(self) -> dict[str, Metrics]:
        """The same of each process, by its ``service.instance.id``."""
        return {resource["service.instance.id"]: found for resource, found in self._exports()}

    def _exports(self) -> Iterator[tuple[dict[str, Any], Metrics]]:
        for path, body in self.bodies:
            if path != "/v1/metrics":
                continue
            for group in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                found = {
                    metric.name: [
                        (values(point.attributes), point)
                        for point in getattr(metric, metric.WhichOneof("data")).data_points
                    ]
                    for scope in group.scope_metrics
                    for metric in scope.metrics
                }
                yield values(group.resource.attributes), found


def values(attributes: Any) -> dict[str, Any]:
    """Attributes as Python's values."""

    def read(value: Any) -> Any:
        kind = value.WhichOneof("value")
        if kind == "array_value":
            return [read(item) for item in value.array_value.values]
        return getattr(value, kind)

    return {item.key: read(item.value) for item in attributes}


@asynccontextmanager
async def receiver() -> AsyncIterator[OtlpReceiver]:
    """A receiver on a free port."""
    one = OtlpReceiver()
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/traces", one.handle)
    app.router.add_post("/v1/metrics", one.handle)
    runner, one.url = await start_app(app)
    yield one
    await runner.cleanup()
