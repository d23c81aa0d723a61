"""Sessions of the operator's page: what a cookie proves, and how many logins may fail."""

import pytest

from gateway.server.admin import session
from gateway.server.admin.access import AdminAccess
from gateway.server.admin.session import CSRF_HEADER, SESSION_SECONDS, Failures, Sessions

NOW = 1_000_000.0
PROXIED = {"host": "gateway.example", "via": "1.1 proxy"}


@pytest.fixture
def access():
    return AdminAccess("right", lambda: NOW, ui=True)


@pytest.fixture
def cookie(access):
    return access.sessions.begin("nonce", NOW)


def test_a_cookie_holds_until_its_end(access, cookie):
    assert access.sessions.is_valid(cookie, NOW)
    assert access.sessions.is_valid(cookie, NOW + SESSION_SECONDS - 1)
    assert not access.sessions.is_valid(cookie, NOW + SESSION_SECONDS)


def test_another_process_with_the_same_token_accepts_it(cookie):
    assert Sessions("right").is_valid(cookie, NOW)
    assert not Sessions("other").is_valid(cookie, NOW)


@pytest.mark.parametrize(
    "change",
    [
        lambda cookie: "",
        lambda cookie: cookie[:-1],
        lambda cookie: "9" + cookie,
        lambda cookie: cookie.replace("nonce", "other"),
        lambda cookie: cookie.rpartition(".")[0] + ".",
        lambda cookie: cookie + "\udcff",
    ],
)
def test_a_changed_cookie_is_none(change, access, cookie):
    assert not access.sessions.is_valid(change(cookie), NOW)


def test_a_csrf_token_is_of_one_session(access, cookie):
    sessions = access.sessions
    other = sessions.begin("another", NOW)
    assert sessions.has_csrf(cookie, sessions.csrf(cookie))
    assert not sessions.has_csrf(cookie, sessions.csrf(other))
    assert not sessions.has_csrf(cookie, cookie.rpartition(".")[2])
    assert not sessions.has_csrf(cookie, "")


def test_a_session_reads_without_and_changes_only_with_its_csrf_token(access, cookie):
    csrf = access.sessions.csrf(cookie)
    assert access.refusal("GET", PROXIED, cookie, "192.0.2.7") is None
    assert access.refusal("POST", {**PROXIED, CSRF_HEADER: csrf}, cookie, "192.0.2.7") is None
    for given in ({}, {CSRF_HEADER: "wrong"}):
        assert access.refusal("POST", {**PROXIED, **given}, cookie, "192.0.2.7")[0] == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_elsewhere_gets_nothing_by_the_cookie(site, access, cookie):
    headers = {**PROXIED, "sec-fetch-site": site}
    assert access.refusal("GET", headers, cookie, "192.0.2.7")[0] == 403


def test_a_bearer_token_counts_before_a_cookie(access, cookie):
    headers = {**PROXIED, "authorization": "Bearer wrong"}
    assert access.refusal("GET", headers, cookie, "192.0.2.7")[0] == 401
    headers = {**PROXIED, "authorization": "Bearer right"}
    assert access.refusal("POST", headers, "no cookie", "192.0.2.7") is None


def test_no_cookie_counts_where_the_page_is_off_or_nobody_logs_in(cookie):
    off = AdminAccess("right", lambda: NOW, ui=False)
    assert off.refusal("GET", PROXIED, cookie, "192.0.2.7")[0] == 401
    local = AdminAccess(None, lambda: NOW, ui=True)
    assert local.refusal("GET", PROXIED, cookie, "192.0.2.7")[0] == 403


def test_after_too_many_failures_a_client_waits(monkeypatch):
    monkeypatch.setattr(session, "FAILURE_SECONDS", 100.0)
    failures = Failures()
    for number in range(session.MOST_FAILURES):
        assert failures.wait("a", NOW + number) == 0
        failures.note("a", NOW + number)
    assert failures.wait("a", NOW + 40) == 60
    assert failures.wait("b", NOW + 40) == 0
    assert failures.wait("a", NOW + 100) == 0
    failures.note("a", NOW + 100)
    assert failures.wait("a", NOW + 100) == 1
