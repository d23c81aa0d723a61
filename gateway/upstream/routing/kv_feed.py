"""Follows ``GET /kv_events`` of the upstreams that have it; see ``core.kv_news``.

Law: nobody waits for it, and its faults are no fault of the upstream: without it, what an upstream
holds is believed as it is of any other.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus

from gateway.protocol.errors import UpstreamError
from gateway.protocol.streaming import sse
from gateway.upstream.http.client import HttpUpstream
from gateway.upstream.routing.kv_news import Emptied, Full, KvReader

log = logging.getLogger(__name__)

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
SILENCE = 60.0
"""Of a connection that is left for it: the engine sends a word of comment more often."""
_MOST_BYTES = 2**20
"""Of one event; a part of a snapshot has some 140,000."""


class KvFeed:
    """Reads the events of each upstream, and tells what is new of which."""

    def __init__(
        self,
        upstreams: Mapping[str, HttpUpstream],
        tell: Callable[[str, Emptied | Full], None],
    ) -> None:
        self._upstreams = upstreams
        self._tell = tell

    async def run(self) -> None:
        """Follow all of them until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name in self._upstreams:
                group.create_task(self._keep_following(name))

    async def _keep_following(self, name: str) -> None:
        reader, pause = KvReader(), FIRST_PAUSE
        while True:
            before = reader.position
            try:
                why = await self._follow(name, reader)
            except (UpstreamError, ValueError) as error:  # of which neither quotes a prompt
                why = str(error)
            reader.disconnected()
            pause = FIRST_PAUSE if reader.position != before else min(2 * pause, LONGEST_PAUSE)
            log.info("KV events of %s: %s; again in %.0f s", name, why, pause)
            await asyncio.sleep(pause)

    async def _follow(self, name: str, reader: KvReader) -> str:
        """Read one connection to its end; return why it ended. Raises UpstreamError, ValueError."""
        upstream = self._upstreams[name]
        headers = [("Accept", "text/event-stream")]
        if reader.position:
            headers.append(("Last-Event-ID", reader.position))
        async with upstream.request("GET", "/kv_events", headers, None) as response:
            if response.status != HTTPStatus.OK:
                return f"status {response.status}"
            decoder = sse.Decoder(max_event_bytes=_MOST_BYTES)
            chunks = upstream.body(response)
            while True:
                try:
                    async with asyncio.timeout(SILENCE):
                        chunk = await anext(chunks, b"")
                except TimeoutError:
                    return f"nothing came for {SILENCE:.0f} s"
                if not chunk:
                    return "the stream ended"
                for event in decoder.feed(chunk):
                    if (news := reader.take(event)) is not None:
                        self._tell(name, news)
