"""A running gateway as the operator's commands see it, over HTTP."""

import os
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import ClientConnectorError, ClientError, ClientSession

from gateway.cli.warm_file import Known


class CallError(Exception):
    """The gateway could not be asked, or refused; the message is for the operator."""


class Gateway:
    """A running gateway as the operator's commands see it."""

    def __init__(self, session: ClientSession, url: str, environment: Mapping[str, str]) -> None:
        self._session = session
        self._url = url.rstrip("/").removesuffix("/v1")
        self._token = environment.get("REFRAIN_ADMIN_TOKEN")
        self.api_key = environment.get("OPENAI_API_KEY")

    async def admin(self, action: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for an operator's action. Raises CallError."""
        return await self._admin("POST", action, orjson.dumps(asked))

    async def look(self, page: str) -> dict[str, Any]:
        """Ask for something to look at. Raises CallError."""
        return await self._admin("GET", page, None)

    async def _admin(self, method: str, name: str, raw: bytes | None) -> dict[str, Any]:
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        status, _, reply = await self._sent(method, f"/admin/{name}", raw, headers)
        if status != HTTPStatus.OK or not reply:
            raise CallError(self._told(status, reply))
        return reply

    async def ask(self, known: Known) -> str:
        """Send a request as its client would; return what Cache-Status says. Raises CallError."""
        raw = orjson.dumps(known.request)
        status, cache, reply = await self._sent(
            "POST", known.endpoint.value, raw, self.tenant_headers
        )
        if status != HTTPStatus.OK:
            raise CallError(self._told(status, reply))
        return cache

    @property
    def tenant_headers(self) -> dict[str, str]:
        """Headers of the tenant whose entries these are."""
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}

    async def _sent(
        self, method: str, path: str, raw: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, str, dict[str, Any]]:
        sent = {"Content-Type": "application/json", **headers}
        url = self._url + path
        try:
            async with self._session.request(method, url, data=raw, headers=sent) as reply:
                read = await reply.read()
        except (ClientError, TimeoutError, OSError) as error:
            raise CallError(f"{self._url} cannot be asked: {_why(error)}") from None
        try:
            parsed = orjson.loads(read)
        except orjson.JSONDecodeError:
            parsed = {}
        told = parsed if isinstance(parsed, dict) else {}
        return reply.status, reply.headers.get("Cache-Status", ""), told

    def _told(self, status: int, reply: dict[str, Any]) -> str:
        match reply:
            case {"error": {"message": str(message)}}:
                return f"{status}: {message}"
            case _:
                return f"{self._url} answers {status} and not as a gateway does: is it one?"


def _why(error: Exception) -> str:
    match error:
        case ClientConnectorError(os_error=OSError(errno=int(number))) if number > 0:
            return f"{os.strerror(number)}; is the gateway running?"
        case _:
            return str(error) or type(error).__name__
