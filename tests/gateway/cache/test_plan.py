import pytest
from example_requests import LIFETIME, STORED_AT, chat, entry_of, plan_of, planned, user

from gateway.cache.key import identify
from gateway.cache.plan import end_user
from gateway.cache.ports import KEY_VERSION
from gateway.protocol.http.cache_status import Reason
from policies.decision import Endpoint, PiiAction, Scope
from policies.freshness import Directives, Verdict


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"directives": Directives(no_store=True)}, Reason.NO_STORE),
        ({"body": chat(store=True)}, Reason.STORE_TRUE),
        ({"exact": False, "semantic": False}, Reason.POLICY),
        ({"max_temperature": 0.3, "body": chat(temperature=0.4)}, Reason.TEMPERATURE),
        ({"scope": Scope.USER}, Reason.NO_USER),
        ({"scope": Scope.USER, "body": chat(user="")}, Reason.NO_USER),
        # What could be stored but never be found.
        ({"exact": False, "body": chat(tools=[{"type": "function"}])}, Reason.POLICY),
        ({"exact": False, "body": chat(user(" \n\t"))}, Reason.POLICY),
        (
            {
                "exact": False,
                "endpoint": Endpoint.COMPLETIONS,
                "body": {"model": "m", "prompt": "p"},
            },
            Reason.POLICY,
        ),
    ],
)
def test_what_is_not_looked_up_says_why(options, reason):
    assert planned(**options) is reason


def test_a_temperature_that_is_no_number_is_the_upstreams_to_judge():
    body = {"model": "m", "input": "x", "temperature": "hot"}
    plan = planned(max_temperature=0.3, endpoint=Endpoint.EMBEDDINGS, body=body)
    assert plan.key


@pytest.mark.parametrize("store", [False, None])
def test_store_false_is_cached_and_does_not_change_the_key(store):
    assert plan_of(chat(store=store)).key == plan_of(chat()).key


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ()),
        ({"user": None, "safety_identifier": ""}, ()),
        ({"user": "u"}, ("u",)),
        ({"safety_identifier": "u"}, ("u",)),
        ({"user": "u", "safety_identifier": "u"}, ("u",)),
        ({"user": "u", "safety_identifier": "app"}, ("app", "u")),
    ],
)
def test_end_user(fields, names):
    assert end_user(Endpoint.CHAT, fields) == names


def test_two_users_of_one_safety_identifier_do_not_share():
    plans = [
        plan_of(chat(safety_identifier="app", user=name), scope=Scope.USER) for name in ("u", "v")
    ]
    assert plans[0].key != plans[1].key
    assert plans[0].fingerprint != plans[1].fingerprint


def test_the_tenant_scope_does_not_look_at_the_user():
    assert plan_of(chat(user="u")).key == plan_of(chat(user="v")).key


def test_query_upstream_and_scan_are_part_of_the_key():
    keys = {
        plan_of(**options).key
        for options in (
            {},
            {"query": "key=a"},
            {"query": "key=b"},
            {"upstream": "http://other/v1"},
            {"pii_identity": "allow/1"},
            {"generation": 2},
            {"scope": Scope.PUBLIC},
        )
    }
    assert len(keys) == 7


@pytest.mark.parametrize(
    "changes", [{"lifetime": 1.0}, {"min_similarity": 0.1}, {"rule": "other"}, {"semantic": False}]
)
def test_what_the_policy_says_of_lifetime_or_lookup_does_not_change_the_key(changes):
    assert plan_of(**changes).key == plan_of().key


@pytest.mark.parametrize("question", ["", " ", "\n\t "])
def test_an_empty_question_is_not_looked_up_by_meaning(question):
    plan = plan_of(chat(user(question)))
    assert plan.question is None
    assert plan.fingerprint == bytes(32)


def test_without_semantic_lookup_no_question_is_kept():
    plan = plan_of(semantic=False)
    assert plan.question is None
    assert entry_of(plan).question is None


def test_an_entry_holds_what_the_request_was():
    plan = plan_of(chat(user("Q?")), generation=7, rule="faq")
    entry = plan.entry(b"answer", STORED_AT)
    assert (entry.key, entry.fingerprint, entry.scope) == (
        plan.key,
        plan.fingerprint,
        plan.partition.scope,
    )
    assert (entry.endpoint, entry.model, entry.upstream) == (
        "/v1/chat/completions",
        "m",
        "http://up/v1",
    )
    assert (entry.generation, entry.rule, entry.key_version) == (7, "faq", KEY_VERSION)
    assert (entry.stored_at, entry.expires_at) == (STORED_AT, STORED_AT + LIFETIME)
    assert (entry.question, entry.result) == ("Q?", b"answer")


def test_a_lifetime_that_the_policy_shortened_holds_for_what_is_stored():
    entry = entry_of(plan_of())
    shorter = plan_of(lifetime=60.0)
    assert shorter.freshness_of(entry, STORED_AT + 59).verdict is Verdict.FRESH
    assert shorter.freshness_of(entry, STORED_AT + 61).verdict is Verdict.STALE


def test_a_lifetime_that_the_policy_lengthened_does_not_revive_what_is_stored():
    entry = entry_of(plan_of())
    longer = plan_of(lifetime=10 * LIFETIME)
    assert longer.freshness_of(entry, STORED_AT + LIFETIME + 1).verdict is Verdict.STALE


@pytest.mark.parametrize(("action", "scans"), [(PiiAction.BYPASS, True), (PiiAction.ALLOW, False)])
def test_prompts_are_scanned_unless_the_policy_allows_personal_data(action, scans):
    assert plan_of(pii=action).scans is scans


def test_an_entry_holds_what_the_rule_gives_it():
    plan = plan_of(jitter=0.5, grace_revalidate=60.0, grace_error=90.0, tags=("a", "b"))
    entry = plan.entry(b"answer", STORED_AT, tokens=10)
    share = int.from_bytes(plan.key[:8], "big") / 2**64
    assert entry.expires_at == pytest.approx(STORED_AT + LIFETIME * (1 - share / 2))
    assert (entry.grace, entry.tags, entry.tokens) == (90.0, ("a", "b"), 10)
    assert entry.kept_until == entry.expires_at + 90.0


def test_jitter_of_the_present_policy_holds_for_what_is_stored():
    plan = plan_of()
    entry = entry_of(plan)
    share = int.from_bytes(plan.key[:8], "big") / 2**64
    now = STORED_AT + LIFETIME * (1 - share / 2) + 1
    assert plan.freshness_of(entry, now).verdict is Verdict.FRESH
    assert plan_of(jitter=0.5).freshness_of(entry, now).verdict is Verdict.STALE


def test_with_pii_user_a_named_end_user_has_a_plan_of_their_own():
    plan = plan_of(chat(user="ann"), pii=PiiAction.USER)
    assert plan.scans
    assert plan.personal is not None
    assert not plan.personal.scans
    assert plan.personal.partition.scope != plan.partition.scope
    assert plan.personal.question == plan.question
    assert plan.personal.fingerprint != plan.fingerprint
    assert plan_of(chat(), pii=PiiAction.USER).personal is None
    assert plan_of(chat(user="ann")).personal is None


def test_a_personal_plan_is_that_of_one_user_of_one_tenant():
    bodies = (chat(user="ann"), chat(user="bob"), chat(user="ann", safety_identifier="x"))
    plans = [plan_of(body, pii=PiiAction.USER) for body in bodies]
    assert len({plan.personal.key for plan in plans}) == 3
    assert len({plan.key for plan in plans}) == 1
    other = plan_of(chat(user="ann"), pii=PiiAction.USER, tenant=identify({"api-key": "k"}))
    assert other.personal.key != plans[0].personal.key
    public = plan_of(chat(user="ann"), pii=PiiAction.USER, scope=Scope.PUBLIC)
    assert public.personal.partition.scope == plans[0].personal.partition.scope
