import hashlib
import sys
from dataclasses import replace

import pytest
from example_requests import SECRET, chat, entry_of, plan_of

from gateway.cache import key as key_module
from gateway.cache.key import ANONYMOUS, Partition, Tenant, identify, scope_id
from gateway.cache.stores.entry_codec import encode_entry
from policies.decision import Endpoint, PiiAction, Scope

TENANTS = [
    {},
    {"authorization": "Bearer a"},
    {"authorization": "Bearer b"},
    {"authorization": "a"},
    {"authorization": "Basic a"},
    {"authorization": "anonymous"},
    {"api-key": "a"},
    {"x-api-key": "a"},
    {"api-key": "a", "x-api-key": "b"},
    {"api-key": "b", "x-api-key": "a"},
    {"api-key": "ab"},
    {"authorization": "Bearer a", "api-key": "b"},
    {"authorization": "Bearer a", "openai-organization": "o"},
    {"authorization": "Bearer a", "openai-project": "o"},
    {"authorization": "Bearer a", "openai-organization": "o", "openai-project": "p"},
    {"authorization": "Bearer a", "openai-organization": "op"},
    {"openai-organization": "o"},
    {"openai-project": "o"},
    {"authorization": "Bearer a, Bearer b"},
    {"authorization": "\udcff"},
]


def scope(headers, kind=Scope.TENANT, user=(), secret=SECRET):
    return scope_id(secret, kind, identify(headers), user)


def test_every_tenant_has_a_scope_of_its_own():
    assert len({scope(headers) for headers in TENANTS}) == len(TENANTS)


@pytest.mark.parametrize("headers", TENANTS)
def test_a_scope_is_the_same_each_time_and_depends_on_the_secret(headers):
    assert scope(headers) == scope(dict(headers))
    assert scope(headers) != scope(headers, secret=b"t" * 32)


def team_scope(holder, team, kind=Scope.TEAM, **headers):
    return scope_id(SECRET, kind, identify({"authorization": "k"} | headers, holder, team), ())


def test_the_holders_of_a_team_share_its_scope_and_nobody_else_does():
    shared = team_scope("shop", "search")
    assert team_scope("desk", "search") == shared
    others = [
        team_scope("shop", "ads"),
        team_scope("shop", "search", Scope.TENANT),
        team_scope("search", "search", Scope.TENANT),
        team_scope("shop", "search", **{"openai-project": "p"}),
        team_scope("team", "search", Scope.PUBLIC),
        scope({"authorization": "Bearer search"}, Scope.TEAM),
        scope({}, Scope.TEAM),
    ]
    assert len({shared, *others}) == len(others) + 1


@pytest.mark.parametrize("headers", TENANTS)
def test_a_client_without_a_team_has_its_tenants_scope(headers):
    assert scope(headers, Scope.TEAM) == scope(headers)


def test_a_holder_without_a_team_has_its_tenants_scope():
    assert team_scope("shop", None) == team_scope("shop", None, Scope.TENANT)


def test_empty_headers_are_as_none():
    empty = {"authorization": "", "x-api-key": "", "openai-organization": "", "openai-project": ""}
    assert identify(empty) == ANONYMOUS


@pytest.mark.parametrize(
    ("headers", "api_key"),
    [
        ({"authorization": "Bearer sk-1"}, "sk-1"),
        ({"authorization": "bearer sk-1"}, "sk-1"),
        ({"authorization": "BEARER   sk-1 "}, "sk-1"),
        ({"authorization": "sk-1"}, "sk-1"),
        ({"api-key": "sk-1"}, "sk-1"),
        ({"x-api-key": "sk-1"}, "sk-1"),
    ],
)
def test_a_policy_knows_a_tenant_by_the_digest_of_its_bare_key(headers, api_key):
    assert identify(headers).credential_sha256 == hashlib.sha256(api_key.encode()).hexdigest()


def test_no_policy_matches_a_repeated_credential_by_its_first():
    alone = identify({"authorization": "Bearer a"}).credential_sha256
    assert identify({"authorization": "Bearer a, Bearer b"}).credential_sha256 != alone


def test_anonymous_with_an_account_is_known_but_has_no_credential():
    tenant = identify({"openai-organization": "o"})
    assert tenant == Tenant(None, None, "o", None)
    assert tenant != ANONYMOUS


@pytest.mark.parametrize("header", ["authorization", "api-key", "x-api-key"])
def test_the_credential_appears_nowhere(header):
    tenant = identify({header: "Bearer sk-very-secret"})
    assert "sk-very-secret" not in repr(tenant)
    plan = plan_of(tenant=tenant, scope=Scope.USER, body=chat(user="ann"))
    for shown in (encode_entry(entry_of(plan)), repr(plan).encode(), repr(entry_of(plan)).encode()):
        assert b"sk-very-secret" not in shown
    # A plain digest of a key could be looked up; ours needs the server's secret.
    assert plan.partition.scope != scope_id(b"t" * 32, Scope.USER, tenant, ("ann",))


PARTITION = Partition(
    endpoint=Endpoint.CHAT,
    upstream="http://up/v1",
    query="",
    generation=1,
    scope=b"s" * 32,
    pii_identity="bypass/1",
)


def test_a_new_key_version_finds_nothing_old(monkeypatch):
    before = PARTITION.cache_key(b"{}")
    monkeypatch.setattr(key_module, "KEY_VERSION", key_module.KEY_VERSION + 1)
    assert replace(PARTITION).cache_key(b"{}") != before


@pytest.mark.parametrize(
    ("plan", "key"),
    [
        (plan_of(), "7eae5891ae004b5aee9fa0a5db086f5b89a973d797d3b2c635c7b8e2e39fbe67"),
        (
            plan_of({"model": "e", "input": "x"}, endpoint=Endpoint.EMBEDDINGS, query="a=1"),
            "9259554f439e37e2c25e88661910a32e32ee0c492a2e821929084357ec12ceb1",
        ),
        (
            plan_of(chat(user="ann", temperature=0.7), pii=PiiAction.USER).personal,
            "f83ce6abd2972fb90c0bf1ad74b5c8376c48bac286afb43875d609e93f39af0c",
        ),
    ],
)
def test_a_key_is_the_same_in_every_release_of_one_key_version(plan, key):
    """Else an upgrade would lose every stored answer."""
    assert plan.key.hex() == key


def test_nothing_of_a_body_is_kept_in_memory():
    """A client may send a name of megabytes, a new one each time."""
    for scope_kind in Scope:
        name = "".join(["n"] * 1_000_000)
        references = sys.getrefcount(name)
        scope({"authorization": "Bearer a"}, scope_kind, (name,))
        assert sys.getrefcount(name) == references
