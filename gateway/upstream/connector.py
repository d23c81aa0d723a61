"""The pool of connections to one upstream, and the way through an HTTP proxy.

Law: a proxy sees no request over TLS. It gets ``CONNECT``, and TLS begins behind it.
"""

import errno
from base64 import b64encode
from functools import partial
from http import HTTPStatus
from typing import Any, cast

from aiohttp import (
    ClientProxyConnectionError,
    ClientRequest,
    ClientTimeout,
    TCPConnector,
)
from yarl import URL

from gateway.protocol.headers import Fields
from gateway.upstream.connection import FAULTS, OneReply


class OneReplyConnector(TCPConnector):
    """A connection pool of ``OneReply``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = cast("Any", partial(OneReply, self._loop))

    async def _create_proxy_connection(
        self,
        req: ClientRequest,
        traces: list[Any],
        timeout: ClientTimeout,  # noqa: ASYNC109 - the library's
    ) -> Any:
        """Connect to the proxy, and through it by CONNECT if the upstream speaks TLS.

        Raises ClientConnectorError: nothing of a request was sent.
        """
        proxy = cast("URL", req.proxy)
        place = ClientRequest("GET", proxy, loop=self._loop)
        transport, protocol = await self._create_direct_connection(
            place, traces, timeout, client_error=ClientProxyConnectionError
        )
        if not req.is_ssl():
            return transport, protocol
        tunnel = cast("OneReply", protocol)
        try:
            await _open_tunnel(tunnel, req)
        except BaseException:
            transport.close()
            raise
        return await self._start_tls_connection(transport, req=req, timeout=timeout)


def proxy_fields(proxy: URL) -> Fields:
    """Return the header with the user and the password that a proxy's URL holds."""
    if proxy.user is None:
        return ()
    pair = f"{proxy.user}:{proxy.password or ''}".encode()
    return (("Proxy-Authorization", f"Basic {b64encode(pair).decode()}"),)


async def _open_tunnel(tunnel: OneReply, req: ClientRequest) -> None:
    """Have the proxy connect to a request's upstream. Raises ClientProxyConnectionError."""
    place = f"{req.url.host_subcomponent}:{req.url.port}"
    fields = (req.proxy_headers or {}).items()
    lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}", *map(": ".join, fields)]
    try:
        tunnel.begin("\r\n".join((*lines, "", "")).encode())
        status = (await tunnel.head(None)).code
    except FAULTS as error:
        fault = OSError(errno.EPROTO, "it broke the connection off")
        raise ClientProxyConnectionError(req.connection_key, fault) from error
    if status != HTTPStatus.OK or not tunnel.is_connected():
        fault = OSError(errno.EPROTO, f"it answered with status {status}")
        raise ClientProxyConnectionError(req.connection_key, fault)
