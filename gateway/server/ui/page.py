"""The operator's page at ``/ui``: its files, login and logout.

Laws. The page itself holds no figures: all of them come from ``/admin``, whose rules hold. Nothing
is loaded from elsewhere, and no script or style stands in the HTML: the policy of content forbids
both. The path of a file has the digest of all files, so browsers may keep each for good.
"""

import hashlib
import html
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable
from urllib.parse import parse_qs

from aiohttp import web

from gateway.protocol.http.headers import fold_fields
from gateway.server.admin.access import AdminAccess, Refusal, admin_refusal
from gateway.server.admin.api import peer_of
from gateway.server.admin.session import COOKIE, SESSION_SECONDS
from gateway.server.http.handlers import not_found
from gateway.server.http.http_server import read_body

log = logging.getLogger(__name__)

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_KEEP = "public, max-age=31536000, immutable"
_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
_MAX_FORM_BYTES = 4096

_AGAIN = '<meta http-equiv="refresh" content="0; url=/ui">'
"""After a link on another site, a browser sends the cookie with the next request only."""


@dataclass(frozen=True)
class OperatorPage:
    """HTTP handlers of the page; ``add_routes`` is their table."""

    access: AdminAccess

    def add_routes(self, app: web.Application) -> None:
        router = app.router
        router.add_get("/", self._root)
        router.add_get("/ui", self._page)
        router.add_get("/ui/", self._root)
        router.add_get("/ui/static/{digest}/{name:.+}", self._file)
        router.add_post("/ui/login", self._login)
        router.add_post("/ui/logout", self._logout)

    @cached_property
    def _files(self) -> Mapping[str, bytes]:
        return dict(_read_all(files("gateway.server.ui") / "static"))

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256()
        for name, data in sorted(self._files.items()):
            digest.update(f"{name}:{len(data)}:".encode() + data)
        return digest.hexdigest()[:16]

    async def _root(self, request: web.Request) -> web.Response:
        if "text/html" not in request.headers.get("Accept", ""):
            return await not_found(request)
        return _redirect("/ui", 302)

    async def _page(self, request: web.Request) -> web.Response:
        cookie, access = request.cookies.get(COOKIE), self.access
        if access.sessions is None:
            headers = fold_fields(request.headers.items())
            headers.pop("sec-fetch-site", None)  # a link from elsewhere may lead here
            refused = admin_refusal(None, headers, peer_of(request))
            if refused is not None:
                return self._html(refused[0], "closed.html", message=refused[1])
            return self._html(200, "index.html", csrf="", session="none")
        if cookie is not None and access.has_session(cookie):
            return self._html(200, "index.html", csrf=access.sessions.csrf(cookie), session="token")
        again = _AGAIN if request.headers.get("Sec-Fetch-Site") == "cross-site" else ""
        return self._html(200, "login.html", message="", again=again)

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        data = self._files.get(name)
        if data is None or name.endswith(".html") or request.match_info["digest"] != self._digest:
            return await not_found(request)
        return _response(200, data, name, _KEEP)

    async def _login(self, request: web.Request) -> web.Response:
        sessions, peer = self.access.sessions, peer_of(request)
        if sessions is None:
            return _redirect("/ui", 303)
        if (refused := self.access.too_many(peer)) is not None:
            return self._refused_login(refused, peer)
        given = await _given_token(request)
        # Other logins may have failed while the body came.
        if (refused := self.access.login_refusal(given, peer)) is not None:
            log.warning("ui: a failed login from %s", peer)
            return self._refused_login(refused, peer)
        event = {"event": "operator"}
        log.info("ui: an operator logged in from %s", peer, extra={"fields": event})
        reply = _redirect("/ui", 303)
        cookie = sessions.begin(secrets.token_urlsafe(16), self.access.now())
        _set_cookie(reply, cookie, SESSION_SECONDS, secure=_is_secure(request))
        return reply

    def _refused_login(self, refused: Refusal, peer: str | None) -> web.Response:
        status, message = refused
        reply = self._html(status, "login.html", message=message, again="")
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            reply.headers["Retry-After"] = str(self.access.retry_after(peer))
        return reply

    async def _logout(self, request: web.Request) -> web.Response:
        headers = fold_fields(request.headers.items())
        cookie, peer = request.cookies.get(COOKIE), peer_of(request)
        if (refused := self.access.refusal("POST", headers, cookie, peer)) is not None:
            return self._html(refused[0], "closed.html", message=refused[1])
        reply = _redirect("/ui", 303)
        _set_cookie(reply, "", 0, secure=_is_secure(request))
        return reply

    def _html(self, status: int, name: str, **values: str) -> web.Response:
        """Return a page with values in its places. ``again`` is HTML, all others are text."""
        text = self._files[name].decode().replace("{{static}}", f"/ui/static/{self._digest}")
        for place, value in values.items():
            safe = value if place == "again" else html.escape(value)
            text = text.replace(f"{{{{{place}}}}}", safe)
        return _response(status, text.encode(), name, "no-store")


async def _given_token(request: web.Request) -> str:
    if request.content_type != "application/x-www-form-urlencoded":
        return ""
    if (request.content_length or 0) > _MAX_FORM_BYTES:
        return ""
    body = await read_body(request)
    if len(body) > _MAX_FORM_BYTES:
        return ""
    form = parse_qs(body.decode(errors="replace"), max_num_fields=8)
    return form.get("token", [""])[0].strip()


def _set_cookie(reply: web.Response, value: str, seconds: int, *, secure: bool) -> None:
    """Set the cookie for the page and its API alone: requests below ``/v1`` go to upstreams."""
    for path in ("/ui", "/admin"):
        cookie = f"{COOKIE}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict"
        reply.headers.add("Set-Cookie", cookie + ("; Secure" if secure else ""))


def _is_secure(request: web.Request) -> bool:
    """Tell whether the browser uses TLS, which a proxy in front ends."""
    origin = request.headers.get("Origin", "")
    return origin.startswith("https:") or request.headers.get("X-Forwarded-Proto") == "https"


def _read_all(folder: Traversable, prefix: str = "") -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for each in folder.iterdir():
        if each.is_dir():
            found += _read_all(each, f"{prefix}{each.name}/")
        else:
            found.append((prefix + each.name, each.read_bytes()))
    return found


def _response(status: int, data: bytes, name: str, keep: str) -> web.Response:
    kind = _TYPES["." + name.rpartition(".")[2]]
    headers = {**_HEADERS, "Cache-Control": keep, "Content-Type": f"{kind}; charset=utf-8"}
    return web.Response(body=data, status=status, headers=headers)


def _redirect(place: str, status: int) -> web.Response:
    headers = {"Location": place, "Cache-Control": "no-store", "Vary": "Accept"}
    return web.Response(status=status, headers=headers)
