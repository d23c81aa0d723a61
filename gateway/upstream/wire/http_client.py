"""Any OpenAI-compatible server over HTTP, with every wait bounded and every fault named.

Laws:
- Requests carry the name of this installation in ``Via``, so that a loop is recognised.
- An error that a client gets names no upstream and no address. The log names both, and what an
  operator can do.
- A proxy sees no request over TLS. It gets ``CONNECT``, and TLS begins behind it.
"""

import asyncio
import errno
import logging
import os
import secrets
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache, partial
from http import HTTPStatus
from typing import Any, NamedTuple, cast
from urllib.parse import quote, unquote_plus, urlencode

from aiohttp import (
    ClientConnectionError,
    ClientConnectorCertificateError,
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientConnectorSSLError,
    ClientProxyConnectionError,
    ClientRequest,
    ClientTimeout,
    ConnectionTimeoutError,
    TCPConnector,
)
from aiohttp.http import HttpProcessingError
from yarl import URL

from gateway.protocol.errors import UpstreamError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.http.headers import Fields, without
from gateway.protocol.request import LARGE_BYTES
from gateway.telemetry.observation import Place
from gateway.upstream.request import OF_A_TRACE, Outgoing, Served, UpstreamReply, with_key
from gateway.upstream.wire.coding import EndlessReplyError, inflated
from gateway.upstream.wire.connection import FAULTS, HttpReply, OneReply
from gateway.upstream.wire.failure_log import FailureLog
from gateway.upstream.wire.first_token import HELD_BYTES
from gateway.upstream.wire.translated import (
    MESSAGES,
    RefusedReply,
    Translated,
    TranslatedReply,
    Untranslatable,
    translate,
)
from gateway.upstream.wire.verdict import Fault, fault_in, refusal

log = logging.getLogger(__name__)

VARIABLE = "REFRAIN_INSTANCE"
"""Carries the name from parent to child."""


@cache
def instance() -> str:
    """Return the name of this installation: what the parent says, or a new one."""
    return os.environ.get(VARIABLE) or secrets.token_hex(6)


@cache
def via() -> str:
    """Return the member that requests to upstreams have in ``Via`` (RFC 9110, 7.6.3)."""
    return f"1.1 refrain-{instance()}"


def has_passed_here(via_header: str) -> bool:
    """Tell whether a ``Via`` names this installation: the request is in a loop."""
    return via() in via_header


_HAS_EXPIRED = 10
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED."""

_TLS_RECORDS = ("\\x15\\x03", "\\x16\\x03")
"""How a TLS record begins, as a parser's message quotes it."""


_CONTROL = bytes([*range(0x09), *range(0x0B, 0x20), 0x7F])
"""No line of a head may hold these."""

_NO_LENGTH = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods of requests that are expected to have no body."""


_SERVER_ERROR = HTTPStatus.INTERNAL_SERVER_ERROR


class Listing(NamedTuple):
    """The models that an upstream lists: the list as it is, and the names under which it serves."""

    models: Sequence[Mapping[str, Any]]
    names: frozenset[str]


class HttpUpstream:
    """Sends requests to ``base_url``, whose path stands in the place of ``/v1``.

    ``connect_seconds`` bounds connecting. ``read_seconds`` bounds sending and the wait for the
    whole head, and each read of the body. If they are given, a stream has its own bounds:
    ``first_token_seconds`` until its first token, and ``between_tokens_seconds`` for each read
    after that. Clients' credentials are passed on unless ``own_credential`` is set: then
    ``api_key`` takes their place in the header of ``auth``, or nothing. Each request has the fixed
    ``query`` and ``headers``, in place of the client's of the same names. ``rename`` has its own
    names of models that clients call otherwise. ``proxy`` is an HTTP proxy on the way, perhaps with
    user and password. ``connect_to`` is the IP address to connect to, in place of the URL's host,
    which stays in ``Host`` and is the name that the certificate must have.

    Unless ``api`` is ``anthropic``, requests to ``/v1/messages`` become chat completions.
    ``asks_usage`` requests the usage of their streams. ``preset`` names it in traces.
    """

    def __init__(
        self,
        base_url: str,
        *,
        name: str | None = None,
        connect_seconds: float = 10.0,
        read_seconds: float = 600.0,
        first_token_seconds: float | None = None,
        between_tokens_seconds: float | None = None,
        own_credential: bool = False,
        api_key: str | None = None,
        auth: str = "bearer",
        query: Mapping[str, str] | None = None,
        headers: Fields = (),
        rename: Mapping[str, str] | None = None,
        proxy: str | None = None,
        connect_to: str | None = None,
        api: str = "openai",
        preset: str | None = None,
        asks_usage: bool = True,
    ) -> None:
        self.name = name or base_url
        """Its part of cache keys: a given name, else the URL (which holds no credentials)."""
        self.url = URL(base_url)
        self.in_use = 0
        """Requests under way, of any kind."""
        self.served = Served(self.name, passes_credentials=not own_credential)
        self.failures = FailureLog(self.name)
        self.own_account = own_credential
        """Whether it gets no credential of a client."""
        self.listing: Listing | None = None
        """The models that it lists, None if that is not known."""
        self._api_key, self._auth = api_key, auth
        self._query = dict(query or {})
        self._translates, self._asks_usage = api != "anthropic", asks_usage
        self._headers = headers
        self._rename = dict(rename or {})
        self._header_names = tuple(name.lower() for name, _ in headers)
        self.own_credential = own_credential and api_key is not None
        """Whether the upstream gets a key of the gateway's, and none of the clients'."""
        self._first_token = first_token_seconds or read_seconds
        self.between_tokens = between_tokens_seconds or read_seconds
        self._times_streams = bool(first_token_seconds or between_tokens_seconds)
        self.connect_seconds, self.read_seconds = connect_seconds, read_seconds
        self.longest_read = max(read_seconds, self._first_token, self.between_tokens)
        self._origin = URL(base_url, encoded=True)
        self._path = self._origin.raw_path.removesuffix("/")
        self._root = self._path.removesuffix("/v1")
        """Before a path that is not below ``/v1``, such as the path of a probe."""
        given = None if proxy is None else URL(proxy)
        self._proxy = None if given is None else given.with_user(None)
        self._proxy_fields = () if given is None else _proxy_fields(given)
        self._host = f"Host: {self._origin.host_port_subcomponent}"
        self._tls_name = None
        if connect_to is not None:
            self._tls_name = self._origin.host
            self.url = self._origin = self._origin.with_host(connect_to)
        self._traced_as = Place(
            self.name, self.url.host or "", self.url.port or 0, preset=preset, api=api
        )
        self._through = ""
        """Before each path if a proxy reads the request, which wants the whole URL."""
        if self._proxy is not None and self._origin.scheme == "http":
            self._through = f"http://{self._origin.host_port_subcomponent}"
        self.timeout = ClientTimeout(total=None, connect=connect_seconds)
        self.connector: OneReplyConnector | None = None

    async def open(self) -> None:
        """Make the connection pool; belongs to the running loop."""
        # Shorter than the 5 s after which uvicorn and others close an idle connection: a POST sent
        # into that moment is lost, and may not be sent again.
        self.connector = OneReplyConnector(limit=0, keepalive_timeout=4.0)
        loop = asyncio.get_running_loop()
        to_proxy = dict(self._proxy_fields) if self._proxy is not None else None
        self.place = ClientRequest(
            "GET",
            self._origin,
            proxy=self._proxy,
            proxy_headers=to_proxy,
            server_hostname=self._tls_name,
            loop=loop,
        )

    async def close(self) -> None:
        """Close all connections."""
        if self.connector is not None:
            await self.connector.close()

    def send(self, outgoing: Outgoing) -> AbstractAsyncContextManager[UpstreamReply]:
        """POST; see the port. A failure leaves a line in the log."""
        model = self._rename.get(outgoing.model)
        is_message = outgoing.target.startswith(MESSAGES)
        if not (model is not None or is_message):
            return self._post(outgoing, outgoing.target, outgoing.fields, outgoing.raw)
        change: Callable[[], bytes | Translated | Untranslatable]
        change = partial(outgoing.sent, model, signed_only=is_message)
        if is_message and self._translates:
            change = partial(translate, outgoing, model=model, asks_usage=self._asks_usage)
        if len(outgoing.raw) > LARGE_BYTES:
            return self._send_large(outgoing, change)
        return self._send_changed(outgoing, change())

    @asynccontextmanager
    async def _send_large(
        self, outgoing: Outgoing, change: Callable[[], bytes | Translated | Untranslatable]
    ) -> AsyncIterator[UpstreamReply]:
        changed = await asyncio.to_thread(change)
        async with self._send_changed(outgoing, changed) as reply:
            yield reply

    def _send_changed(
        self, outgoing: Outgoing, changed: bytes | Translated | Untranslatable
    ) -> AbstractAsyncContextManager[UpstreamReply]:
        if isinstance(changed, bytes):
            return self._post(outgoing, outgoing.target, outgoing.fields, changed)
        if isinstance(changed, Untranslatable):
            return RefusedReply(self.served, changed.error)
        post = self._post(outgoing, changed.target, changed.fields, changed.raw)
        return TranslatedReply(post, changed)

    def _post(self, outgoing: Outgoing, target: str, fields: Fields, raw: bytes) -> HttpReply:
        attempt = None
        if outgoing.attempt is not None:
            attempt = outgoing.attempt(self._traced_as)
            attempt.model = self._rename.get(outgoing.model)
            if attempt.fields:
                fields = (*without(fields, *OF_A_TRACE), *attempt.fields)
        request = self._head("POST", target, fields, f"Content-Length: {len(raw)}") + raw
        by = None
        if outgoing.streamed and self._times_streams:
            by = asyncio.get_running_loop().time() + self._first_token
        return HttpReply(
            self,
            "POST",
            request,
            first_token_by=by,
            attempt=attempt,
            judged=True,
            pages=not target.startswith("/v1/"),  # tokens are estimated where there is no such path
            model=self._rename.get(outgoing.model, outgoing.model),
        )

    def request(
        self,
        method: str,
        path_qs: str,
        headers: Sequence[tuple[str, str]],
        body: AsyncIterator[bytes] | None,
        *,
        decode: bool = True,
        logged: Callable[[], bool] = lambda: False,
        judged: bool = False,
        upgrades: bool = False,
    ) -> HttpReply:
        """Send any request. The context raises UpstreamError; redirects are not followed.

        ``logged`` tells whether a request without a reply leaves a line in the log. ``judged``
        tells that the reply is for a client: one that is no answer is a fault. If it ``upgrades``,
        101 is an answer.
        """
        method = method.upper()
        given = (value for name, value in headers if name.lower() == "content-length")
        length = next(map(int, given), None)
        framing = []
        if length is None and body is not None:
            framing = ["Transfer-Encoding: chunked"]
        elif length is None and method not in _NO_LENGTH:
            framing = ["Content-Length: 0"]
        head = self._head(method, path_qs, headers, *framing)
        accepts = ",".join(value for name, value in headers if name.lower() == "accept")
        return HttpReply(
            self,
            method,
            head,
            body,
            length,
            decodes=decode,
            logs=logged,
            judged=judged,
            upgrades=upgrades,
            pages="text/html" in accepts or path_qs.partition("?")[0].endswith("/content"),
        )

    async def judge(self, reply: HttpReply) -> None:
        """Read the beginning of a reply that is no stream. Raises UpstreamError if it is no answer.

        What breaks off there breaks off for its reader.
        """
        status, kind, is_call = reply.status, reply.content_type, reply.logs is None
        is_due = self.own_account and HTTPStatus.BAD_REQUEST <= status < _SERVER_ERROR
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            is_json = self.own_account and kind == "application/json"
            may_be_odd = is_call and kind != "text/event-stream"
            is_due = (may_be_odd or kind == "text/html" or is_json) and not reply.pages
        if not is_due:
            return
        parts, size, whole = list[bytes](), 0, False
        try:
            while size <= HELD_BYTES and not whole:
                parts.append(await reply.read())
                size, whole = size + len(parts[-1]), not parts[-1]
        except UpstreamError as error:
            reply.late = error
        body = reply.held = b"".join(parts)
        fault = fault_in(
            status,
            kind,
            body if reply.decodes else inflated(body, HELD_BYTES),
            whole=whole,
            call=is_call,
            own=self.own_account,
            lists_model=self.listing is not None and reply.model in self.listing.names,
        )
        if fault is not None:
            raise _no_answer(fault)

    def refused(self) -> UpstreamError:
        """Return the fault of a stream that begins with a refusal of the gateway."""
        return _no_answer(refusal("in a stream"))

    def _head(
        self, method: str, target: str, fields: Iterable[tuple[str, str]], *framing: str
    ) -> bytes:
        """Return the head of a request. Raises ValueError for control characters in it."""
        if self.own_account:
            fields = with_key(fields, self._api_key, self._auth)
        if self._headers:
            fields = (*without(fields, *self._header_names), *self._headers)
        target = target.partition("#")[0] if "#" in target else target
        if self._through:
            fields = (*fields, *self._proxy_fields)
        if self._query:
            target = with_query(target, self._query)
        below = target.startswith("/v1/")
        path = self._path + target[3:] if below else self._root + target
        start = f"{method} {self._through}{path} HTTP/1.1"
        lines = [start, self._host, *map(": ".join, fields), f"Via: {via()}", *framing]
        head = "\n".join((*lines, "", "")).encode(errors="surrogateescape")
        if head.count(b"\n") != len(lines) + 1 or len(head.translate(None, _CONTROL)) != len(head):
            raise ValueError("a part of the request has control characters")
        return head.replace(b"\n", b"\r\n")

    def fault_of(self, error: BaseException, bound: str = "read_timeout") -> UpstreamError:
        """Return what a failed call is for clients; ``detail`` is what the log says.

        ``bound`` is the setting that bounds the wait.
        """
        url = self.url
        place = f"{url.host}:{url.port}"
        match error:
            case ConnectionTimeoutError() | TimeoutError():
                sent = not isinstance(error, ConnectionTimeoutError)
                detail = f"no connection to {place} within connect_timeout"
                if sent:
                    detail = f"{place} sent nothing within {bound}; does it hang, or need longer?"
                message = "The upstream did not answer in time."
                return UpstreamError(
                    504, message, Reason.UPSTREAM_TIMEOUT, sent=sent, detail=detail
                )
            case ClientConnectorError() | ClientConnectorCertificateError():
                message = "The upstream could not be reached."
                host = url.host
                if isinstance(error, ClientProxyConnectionError) and self._proxy is not None:
                    place = f"the proxy {self._proxy.host}:{self._proxy.port}"
                elif isinstance(error, ClientConnectorDNSError):
                    host = error.host  # may be the proxy's
                detail = _unreachable(error, host, place)
                reason = Reason.UPSTREAM_UNREACHABLE
                return UpstreamError(502, message, reason, sent=False, detail=detail)
            case ClientConnectionError() | OSError():
                message = "The upstream closed the connection."
                detail = f"{place} closed the connection before its reply was complete"
                return UpstreamError(502, message, Reason.UPSTREAM_BROKE, detail=detail)
            case _:
                message = "The upstream sent a reply that could not be read."
                detail = f"{place} sent a reply that is not valid HTTP ({type(error).__name__})"
                text = error.message if isinstance(error, HttpProcessingError) else ""
                if url.scheme == "http" and any(record in text for record in _TLS_RECORDS):
                    detail = f"{place} speaks TLS; is https:// meant?"
                elif isinstance(error, EndlessReplyError):
                    detail = f"{place} {error}"
                reason = Reason.UPSTREAM_BROKE
                return UpstreamError(502, message, reason, answered=True, detail=detail)


def _no_answer(fault: Fault) -> UpstreamError:
    return UpstreamError(
        502,
        fault.message,
        fault.reason,
        answered=True,
        detail=fault.text,
        of_model=fault.of_model,
    )


def with_query(target: str, fixed: Mapping[str, str]) -> str:
    """Return a target with a fixed query, and without the client's fields of these names."""
    path, _, query = target.partition("?")
    fields = [each for each in query.split("&") if each]
    kept = [each for each in fields if unquote_plus(each.partition("=")[0]) not in fixed]
    return f"{path}?{'&'.join((*kept, urlencode(fixed, quote_via=quote)))}"


def _unreachable(error: BaseException, host: str | None, place: str) -> str:
    match error:
        case ClientConnectorDNSError():
            return f"the host name {host} is not known; is it spelt correctly?"
        case ClientConnectorCertificateError(certificate_error=broken) if (
            getattr(broken, "verify_code", None) == _HAS_EXPIRED
        ):
            return f"the certificate of {place} has expired; it has to be renewed there"
        case ClientConnectorCertificateError():
            return f"the certificate of {place} is not trusted; is its authority installed?"
        case ClientConnectorSSLError():
            return f"{place} speaks no TLS that is understood here; is http:// meant?"
        case ClientConnectorError(os_error=OSError(errno=errno.ECONNREFUSED)):
            return f"nothing listens on {place}; is the server started?"
        case ClientConnectorError(os_error=OSError(strerror=str(text))):
            return f"no connection to {place}: {text}"
        case _:
            return f"no connection to {place}"


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


def _proxy_fields(proxy: URL) -> Fields:
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
