"""The operator's page on the running gateway: who sees it, login, headers, files."""

import asyncio
import re
import tomllib
from collections import Counter
from http.cookies import SimpleCookie
from pathlib import Path

import orjson
import pytest

from gateway.server.admin import session

TOKEN = "the operator's token"
HTML = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture
async def gateway(start_gateway, monkeypatch):
    monkeypatch.setenv("REFRAIN_ADMIN_TOKEN", TOKEN)
    return await start_gateway()


async def request(gateway, method, path, **options):
    """Ask without following redirects; return the reply and its text."""
    options.setdefault("allow_redirects", False)
    async with gateway.session.request(method, gateway.url + path, **options) as reply:
        return reply, await reply.text()


async def log_in(gateway, token=TOKEN, **headers):
    return await request(gateway, "POST", "/ui/login", data={"token": token}, headers=headers)


async def logged_in(gateway):
    """Return the headers of a browser with a session, and of one that may change something."""
    reply, _ = await log_in(gateway)
    cookie = SimpleCookie(reply.headers["Set-Cookie"])[session.COOKIE].value
    headers = {"Cookie": f"{session.COOKIE}={cookie}"}
    _, page = await request(gateway, "GET", "/ui", headers=headers)
    csrf = re.search(r'name="refrain-csrf" content="([^"]+)"', page)[1]
    return headers, {**headers, session.CSRF_HEADER: csrf}


async def test_browsers_are_led_to_the_page_and_others_are_not(gateway):
    reply, _ = await request(gateway, "GET", "/", headers=HTML)
    assert (reply.status, reply.headers["Location"]) == (302, "/ui")
    reply, text = await request(gateway, "GET", "/")
    assert reply.status == 404
    assert orjson.loads(text)["error"]["code"] == "unknown_url"


async def test_a_setting_switches_it_off(start_gateway, monkeypatch):
    monkeypatch.setenv("REFRAIN_ADMIN_TOKEN", TOKEN)
    gateway = await start_gateway(ui=False)
    for path in ("/", "/ui", "/ui/"):
        assert (await request(gateway, "GET", path, headers=HTML))[0].status == 404
    assert (await log_in(gateway))[0].status == 404


async def test_a_login_sets_a_cookie_that_scripts_and_other_sites_cannot_use(gateway):
    reply, _ = await log_in(gateway)
    assert (reply.status, reply.headers["Location"]) == (303, "/ui")
    lines = reply.headers.getall("Set-Cookie")
    assert [re.search("Path=([^;]+)", line)[1] for line in lines] == ["/ui", "/admin"]
    for line in lines:
        assert "; HttpOnly; SameSite=Strict" in line
        assert "Secure" not in line
        assert TOKEN not in line


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://g.example"}, {"X-Forwarded-Proto": "https"}]
)
async def test_behind_tls_the_cookie_is_secure(headers, gateway):
    reply, _ = await log_in(gateway, **headers)
    assert all(line.endswith("; Secure") for line in reply.headers.getall("Set-Cookie"))


@pytest.mark.parametrize("token", ["wrong", "", "x" * 10_000])
async def test_a_wrong_token_is_no_login(token, gateway, caplog):
    reply, text = await log_in(gateway, token)
    assert reply.status == 401
    assert "Set-Cookie" not in reply.headers
    assert "This is not the operator&#x27;s token." in text
    assert "a failed login from 127.0.0.1" in caplog.text
    assert "wrong" not in caplog.text


async def test_failed_logins_are_limited(gateway):
    for _ in range(session.MOST_FAILURES):
        assert (await log_in(gateway, "wrong"))[0].status == 401
    reply, text = await log_in(gateway)
    assert reply.status == 429
    assert 0 < int(reply.headers["Retry-After"]) <= session.FAILURE_SECONDS
    assert "Too many failed logins" in text


async def test_logins_at_the_same_time_are_limited_alike(gateway):
    """All of them begin before the first has failed: a body's last byte comes later."""
    host, port = gateway.url.removeprefix("http://").split(":")
    many = 3 * session.MOST_FAILURES
    opened = [await asyncio.open_connection(host, port) for _ in range(many)]
    form = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 7"
    for _, writer in opened:
        writer.write(b"POST /ui/login HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n" + form)
        writer.write(b"\r\n\r\n")
    async with asyncio.timeout(30):
        for reader, _ in opened:
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        for _, writer in opened:
            writer.write(b"token=g")
        lines = [await reader.readline() for reader, _ in opened]
    statuses = Counter(int(line.split()[1]) for line in lines)
    assert statuses == {401: session.MOST_FAILURES, 429: many - session.MOST_FAILURES}
    for _, writer in opened:
        writer.close()


async def test_wrong_tokens_of_the_api_count_as_failed_logins(gateway):
    wrong = {"Authorization": "Bearer wrong"}
    for _ in range(session.MOST_FAILURES):
        assert (await gateway.get("/admin/keys")).status == 401  # this is no try
        assert (await gateway.get("/admin/keys", headers=wrong)).status == 401
    right = {"Authorization": f"Bearer {TOKEN}"}
    for headers in (wrong, right):
        reply = await gateway.get("/admin/keys", headers=headers)
        assert (reply.status, reply.json["error"]["type"]) == (429, "rate_limit_error")
        assert 0 < int(reply.headers["Retry-After"]) <= session.FAILURE_SECONDS
    assert (await log_in(gateway))[0].status == 429


async def test_a_session_goes_on_while_logins_are_refused(gateway):
    reads, _ = await logged_in(gateway)
    for _ in range(session.MOST_FAILURES):
        await log_in(gateway, "wrong")
    assert (await log_in(gateway))[0].status == 429
    assert (await gateway.get("/admin/keys", headers=reads)).status == 200


async def test_without_a_session_the_page_is_the_login(gateway):
    reply, text = await request(gateway, "GET", "/ui", headers={"Cookie": f"{session.COOKIE}=x"})
    assert reply.status == 200
    assert 'action="/ui/login"' in text
    assert "refresh" not in text


async def test_a_link_from_elsewhere_finds_the_session_at_the_second_request(gateway):
    """The cookie does not come with a navigation that begins on another site."""
    _, text = await request(gateway, "GET", "/ui", headers={"Sec-Fetch-Site": "cross-site"})
    assert '<meta http-equiv="refresh" content="0; url=/ui">' in text


async def test_a_session_may_look_and_with_its_csrf_token_act(gateway):
    reads, acts = await logged_in(gateway)
    assert (await gateway.get("/admin/entries", headers=reads)).status == 200
    purge = orjson.dumps({"all": True})
    assert (await gateway.post("/admin/purge", purge, headers=acts)).json["dry_run"] is True
    refused = await gateway.post("/admin/purge", purge, headers=reads)
    assert (refused.status, refused.json["error"]["type"]) == (403, "permission_error")
    assert (await gateway.get("/admin/entries")).status == 401


async def test_a_session_s_look_at_an_answer_is_in_the_audit_log(gateway):
    await gateway.ask("Where is my parcel?")
    reads, _ = await logged_in(gateway)
    [entry] = (await gateway.get("/admin/entries", headers=reads)).json["entries"]
    shown = await gateway.get(f"/admin/entries/{entry['key']}?answer=1", headers=reads)
    assert "parcel" in shown.raw.decode()
    [line] = (gateway.data_dir / "admin-audit.jsonl").read_text().splitlines()
    assert orjson.loads(line)["asked"] == {"key": entry["key"]}
    assert "parcel" not in line


async def test_a_logout_needs_the_csrf_token_and_removes_the_cookie(gateway):
    reads, acts = await logged_in(gateway)
    reply, _ = await request(gateway, "POST", "/ui/logout", headers=reads)
    assert reply.status == 403
    reply, _ = await request(gateway, "POST", "/ui/logout", headers=acts)
    assert reply.status == 303
    assert all("Max-Age=0" in line for line in reply.headers.getall("Set-Cookie"))


async def test_without_a_token_this_machine_sees_the_page_and_others_do_not(
    gateway, start_gateway, monkeypatch
):
    monkeypatch.delenv("REFRAIN_ADMIN_TOKEN")
    gateway = await start_gateway()
    reply, text = await request(gateway, "GET", "/ui", headers={"Sec-Fetch-Site": "cross-site"})
    assert reply.status == 200
    assert 'name="refrain-session" content="none"' in text
    reply, text = await request(gateway, "GET", "/ui", headers={"X-Forwarded-For": "192.0.2.7"})
    assert reply.status == 403
    assert "needs REFRAIN_ADMIN_TOKEN" in text
    assert (await log_in(gateway))[0].status == 303


async def test_nothing_runs_but_the_page_s_own_files(gateway):
    reads, _ = await logged_in(gateway)
    for headers in (reads, {}):
        reply, text = await request(gateway, "GET", "/ui", headers=headers)
        policy = reply.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert reply.headers["Referrer-Policy"] == "no-referrer"
        assert reply.headers["Cache-Control"] == "no-store"
        assert not re.search(r"<style|style=|<script(?![^>]* src=)|\son[a-z]+=|javascript:", text)
        assert "{{" not in text


async def test_files_are_kept_by_digest(gateway):
    reads, _ = await logged_in(gateway)
    _, text = await request(gateway, "GET", "/ui", headers=reads)
    paths = re.findall(r'(?:src|href)="(/ui/static/[^"]+)"', text)
    assert len(paths) >= 4
    for path in paths:
        reply, _ = await request(gateway, "GET", path)
        assert (reply.status, "immutable" in reply.headers["Cache-Control"]) == (200, True)
    digest = paths[0].split("/")[3]
    assert (await request(gateway, "GET", paths[0].replace(digest, "0" * 16)))[0].status == 404
    for name in ("index.html", "../page.py", "nothing.js"):
        reply, _ = await request(gateway, "GET", f"/ui/static/{digest}/{name}")
        assert reply.status == 404


async def test_every_import_of_a_script_is_a_file_of_the_page(gateway):
    from importlib.resources import files

    folder = files("gateway.server.ui") / "static"
    scripts = [
        each
        for room in (folder, folder / "views")
        for each in room.iterdir()
        if each.name.endswith(".js")
    ]
    for script in scripts:
        for name in re.findall(r'from "([^"]+)"', script.read_text()):
            assert (script.parent / name).is_file(), (script.name, name)
    assert len(scripts) > 5


def test_the_package_has_every_file_of_the_page():
    root = Path(__file__).parents[3]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["gateway"]
    packed = {file for each in patterns for file in (root / "gateway").glob(each)}
    folder = root / "gateway" / "server" / "ui" / "static"
    assert {file for file in folder.rglob("*") if file.is_file()} <= packed
