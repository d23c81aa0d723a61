"""The real gateway as tests use it: ask, and look at the whole reply."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from aiohttp import ClientSession, web

from gateway.server.http.handlers import refuse
from gateway.server.http.hot_connection import HOT_PATH, new_connection
from gateway.server.http.http_server import Connection, Runner


async def start_app(app: web.Application) -> tuple[web.AppRunner, str]:
    """Serve on a free port of the loopback interface."""
    connection = new_connection(app) if HOT_PATH in app else Connection
    runner = Runner(app, refuse, connection=connection, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


@dataclass
class RunningGateway:
    """The real gateway on a port, and a client session for it."""

    url: str
    session: ClientSession
    data_dir: Path
    stop: Callable[[], Awaitable[None]]

    async def ask(
        self, content: Any = "How do I reset my password?", /, *, headers: Any = None, **body: Any
    ) -> "Asked":
        """Send a chat request; keyword arguments are further fields of its body."""
        request = {"model": "m", "messages": [{"role": "user", "content": content}], **body}
        return await self.post("/v1/chat/completions", orjson.dumps(request), headers=headers)

    async def post(self, path: str, raw: bytes, *, headers: Any = None) -> "Asked":
        """Send bytes and read the whole reply."""
        sent = {"Content-Type": "application/json", **(headers or {})}
        async with self.session.post(self.url + path, data=raw, headers=sent) as reply:
            return Asked(reply.status, reply.headers, await reply.read())

    async def get(self, path: str, *, headers: Any = None) -> "Asked":
        """Read a page."""
        async with self.session.get(self.url + path, headers=headers) as reply:
            return Asked(reply.status, reply.headers, await reply.read())

    async def settle(self) -> None:
        """Wait until the disk has all answers: an operator's list comes after them."""
        assert (await self.get("/admin/entries")).status == 200


@dataclass
class Asked:
    """A reply read to its end."""

    status: int
    headers: Any
    raw: bytes

    @property
    def json(self) -> Any:
        """The parsed body."""
        return orjson.loads(self.raw)

    @property
    def cache(self) -> str:
        """The Cache-Status header."""
        return self.headers.get("Cache-Status", "")

    @property
    def text(self) -> str:
        """The answer's text, plain or streamed."""
        if self.headers["Content-Type"].startswith("text/event-stream"):
            return "".join(
                choice["delta"].get("content") or ""
                for event in self.events
                for choice in event["choices"]
            )
        return str(self.json["choices"][0]["message"]["content"])

    @property
    def events(self) -> list[Any]:
        """The parsed events of a stream, ``[DONE]`` left out."""
        parts = self.raw.decode().split("\n\n")
        data = [part.removeprefix("data: ") for part in parts if part]
        return [orjson.loads(item) for item in data if item != "[DONE]"]


StartGateway = Callable[..., Awaitable[RunningGateway]]
