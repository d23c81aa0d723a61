"""Decisions on requests of which only the truth of some conditions is known."""

import pytest

from policies.format.load import parse_policy
from policies.policy import RequestFacts
from policies.recorded import RecordedFacts, recorded_policy

HEAD = "version: 1\n"
DEFAULT = "default: {exact: on, semantic: on, freshness: 1h, scope: tenant, pii: bypass}\n"


def policy(rules, tenants=""):
    listed = "rules: [" + ", ".join(rules) + "]\n"
    text = HEAD + tenants + listed + DEFAULT
    return recorded_policy(parse_policy(text, "p.yaml"))


def asked(text="What is the price?", **changes):
    values = {
        "endpoint": "/v1/chat/completions",
        "model": "gpt-4o",
        "headers": {"x-app": "shop"},
        "credential_sha256": None,
        "organization": "acme",
        "project": None,
        "last_user_text": text,
        "system_text": "Be brief.",
    }
    return RequestFacts(**{**values, **changes})


def bare(facts):
    """What a record holds of the facts."""
    return RequestFacts(facts.endpoint, facts.model, {}, None, None, None, None, None)


def decided(then, now, facts, *, has_text=False):
    recorded = RecordedFacts(facts if has_text else bare(facts), then.truths(facts), has_text)
    decision = now.decide(recorded)
    return None if decision is None else decision.rule


PRICES = "{name: prices, match: {content: {keywords: [price, cost]}}}"


@pytest.mark.parametrize(
    ("facts", "rule"),
    [(asked(), "prices"), (asked("Hello"), "default"), (asked("The COST?"), "prices")],
)
def test_the_policy_of_then_is_decided_as_it_was(facts, rule):
    assert decided(policy([PRICES]), policy([PRICES]), facts) == rule


@pytest.mark.parametrize(
    ("rules", "facts", "rule"),
    [
        # Endpoint and model are always known.
        (["{name: a, match: {model: gpt-*}}"], asked("x"), "a"),
        (["{name: a, match: {model: qwen}}", PRICES], asked(), "prices"),
        # A condition of then in another rule, alone or among others.
        (["{name: a, match: {content: {keywords: cost}}}"], asked(), "default"),
        (["{name: a, match: {content: {keywords: [rebate, price]}}}"], asked(), "a"),
        (["{name: a, match: {model: gpt-*, content: {keywords: price}}}"], asked(), "a"),
        # A new one is unknown, unless another condition settles it.
        (["{name: a, match: {content: {keywords: rebate}}}"], asked(), None),
        (["{name: a, match: {model: qwen, content: {keywords: rebate}}}"], asked(), "default"),
        (["{name: a, match: {content: {keywords: [rebate, cost]}}}"], asked(), None),
        (["{name: a, match: {header: {x-app: shop}}}"], asked(), None),
        (["{name: a, match: {tenant: anonymous}}"], asked(), None),
        # What comes after an unknown rule is unknown, before it not.
        (["{name: a, match: {content: {regex: p.*e}}}", PRICES], asked(), None),
        ([PRICES, "{name: a, match: {content: {regex: p.*e}}}"], asked(), "prices"),
    ],
)
def test_an_edited_policy_is_decided_where_the_record_tells(rules, facts, rule):
    assert decided(policy([PRICES]), policy(rules), facts) == rule


def test_with_text_conditions_on_content_are_always_known():
    edited = policy(["{name: a, match: {content: {regex: '(?i)price'}}}"])
    assert decided(policy([]), edited, asked(), has_text=True) == "a"
    assert decided(policy([]), edited, asked("x"), has_text=True) == "default"


def test_a_tenant_is_known_by_what_it_is_not_by_its_name():
    rule = "{name: a, match: {tenant: shop}}"
    then = policy([rule], "tenants: {shop: {organization: acme}}\n")
    same = policy(["{name: a, match: {tenant: store}}"], "tenants: {store: {organization: acme}}\n")
    other = policy([rule], "tenants: {shop: {organization: other}}\n")
    assert decided(then, same, asked()) == "a"
    assert decided(then, other, asked()) is None


def test_no_text_is_in_the_truths():
    truths = policy([PRICES]).truths(asked())
    assert sorted(truths.values()) == [False, True]
    assert not any("price" in name for name in truths)


EVERYTHING = (
    "{name: a, match: {endpoint: /v1/completions, model: [gpt-*, qwen], tenant: [anonymous, acme],"
    " header: {x-app: [shop, desk], X-Other: '*'}, content: {keywords: [price, cost],"
    " regex: ['pri.e', 'x$'], system_prompt_sha256: [" + "0" * 64 + "]}}}"
)


@pytest.mark.parametrize(
    "facts",
    [
        asked(),
        asked("Hello"),
        asked("The cost of x"),
        asked(headers={"x-app": "desk", "x-other": "1"}),
        asked(organization=None),
        asked(None),
    ],
)
def test_what_is_written_down_is_what_each_condition_came_to_by_itself(facts):
    recorded = policy([EVERYTHING], "tenants: {acme: {organization: acme}}\n")
    atoms = [
        atom
        for clauses, _ in recorded.rules
        for clause in clauses
        for atom in clause.atoms
        if atom.key not in ("endpoint", "model")
    ]
    assert len(atoms) == 10
    assert recorded.truths(facts) == {atom.name: atom.holds(facts) for atom in atoms}


def test_no_value_is_compiled_by_itself_before_one_of_its_kind_was_met():
    recorded = policy([PRICES])
    ((((clause,), _),),) = (recorded.rules,)
    recorded.truths(asked("Hello"))
    assert not any("holds" in vars(atom) for atom in clause.atoms)
    recorded.truths(asked("What is the price?"))
    assert all("holds" in vars(atom) for atom in clause.atoms)
