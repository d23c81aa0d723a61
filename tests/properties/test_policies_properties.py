"""Laws of the policy that hold for any input."""

import json
import math

from hypothesis import example, given
from hypothesis import strategies as st

from policies.decision import Decision, PiiAction, Scope
from policies.format.load import PolicyError, json_schema, parse_policy
from policies.freshness import Directives, Verdict, freshness, parse_directives
from policies.policy import Condition, Policy, RequestFacts, Rule

seconds = st.floats(0, 1e6)
number = st.none() | st.integers(0, 10_000).map(float) | st.just(math.inf)
directives = st.builds(
    Directives,
    no_store=st.booleans(),
    no_cache=st.booleans(),
    max_age=number,
    min_fresh=number,
    max_stale=number,
)
directive = st.sampled_from(
    ["no-store", "no-cache", "only-if-cached", "max-age=5", "min-fresh=7", "max-stale", "x=y"]
)


@given(st.text() | st.text(alphabet='max-age=5,"\\ \tno-store', max_size=60))
def test_any_header_is_read(header):
    read = parse_directives(header)
    for given_number in (read.max_age, read.min_fresh, read.max_stale):
        assert given_number is None or given_number >= 0


@given(st.lists(directive), st.randoms())
def test_the_order_of_directives_does_not_matter(members, random):
    shuffled = random.sample(members, len(members))
    assert parse_directives(", ".join(members)) == parse_directives(" ,".join(shuffled))


@given(st.lists(directive), st.text(alphabet='max-agestor=0123456789no,"\\ '))
def test_more_directives_make_no_entry_fresher(members, more):
    """max-stale aside, which is there to accept more."""
    header = ", ".join(member for member in members if member != "max-stale")
    before = freshness(
        stored_at=0, expires_at=10, now=6, directives=parse_directives(header)
    ).verdict
    after = freshness(
        stored_at=0, expires_at=10, now=6, directives=parse_directives(f"{header}, {more}")
    ).verdict
    if before is not Verdict.FRESH:
        assert after is not Verdict.FRESH


@given(seconds, seconds, seconds, directives)
def test_verdict_age_and_ttl_agree(stored_at, lifetime, waited, asked):
    now = stored_at + waited
    found = freshness(
        stored_at=stored_at, expires_at=stored_at + lifetime, now=now, directives=asked
    )
    assert found.age >= 0
    if found.verdict is Verdict.STALE:
        assert found.ttl <= 0
    if found.verdict is Verdict.FRESH:
        assert found.ttl >= 0 or asked.max_stale is not None
        assert not (asked.no_cache)
        assert not (asked.no_store)
        assert asked.max_age is None or found.age <= asked.max_age
    if found.verdict is Verdict.REFUSED:
        assert found.ttl >= 0


@given(seconds, seconds, st.lists(seconds, min_size=2), directives)
def test_what_is_stale_stays_stale(stored_at, lifetime, waits, asked):
    """A hit never extends a life: with the same request, time only takes freshness away."""
    asked = Directives(no_cache=asked.no_cache, max_age=asked.max_age, min_fresh=asked.min_fresh)
    verdicts = [
        freshness(
            stored_at=stored_at,
            expires_at=stored_at + lifetime,
            now=stored_at + waited,
            directives=asked,
        ).verdict
        for waited in sorted(waits)
    ]
    fresh = [verdict is Verdict.FRESH for verdict in verdicts]
    assert fresh == sorted(fresh, reverse=True)


facts = st.builds(
    RequestFacts,
    endpoint=st.sampled_from(["/v1/chat/completions", "/v1/completions"]),
    model=st.sampled_from(["gpt-4o", "qwen", ""]),
    headers=st.dictionaries(st.sampled_from(["x-app", "x-desk"]), st.text()),
    credential_sha256=st.none() | st.just("ab" * 32),
    organization=st.none() | st.text(),
    project=st.none(),
    last_user_text=st.none() | st.text() | st.sampled_from(["the price", "order 12345"]),
    system_text=st.none() | st.text(),
)
match = st.fixed_dictionaries(
    {},
    optional={
        "endpoint": st.sampled_from(["/v1/chat/completions", "/v1/completions"]),
        "model": st.sampled_from(["gpt-*", "qwen", "*w*n"]),
        "tenant": st.just("anonymous"),
        "header": st.just({"x-app": "*"}),
        "content": st.sampled_from([{"keywords": "price"}, {"regex": r"\d{4}"}]),
    },
)


@given(st.lists(match, max_size=6), facts)
def test_the_first_rule_that_matches_alone_is_the_one_that_decides(matches, asked):
    def policy(rules):
        written = {
            "version": 1,
            "rules": rules,
            "default": {
                "exact": True,
                "semantic": True,
                "freshness": "1h",
                "scope": "tenant",
                "pii": "bypass",
            },
        }
        return parse_policy(json.dumps(written), "generated")

    rules = [{"name": f"r{index}", "match": each} for index, each in enumerate(matches)]
    try:
        whole = policy(rules)
    except PolicyError as error:
        assert all("never reached" in problem.got for problem in error.problems)  # noqa: PT017
        return
    alone = [policy([rule]).decide(asked).rule for rule in rules]
    first = next((name for name in alone if name != "default"), "default")
    assert whole.decide(asked).rule == first
    assert whole.decide(asked) == whole.decide(asked)


@given(st.lists(st.lists(st.booleans(), max_size=4), max_size=8), facts)
def test_a_rule_needs_all_its_conditions(outcomes, asked):
    def decision(name):
        return Decision(name, True, True, 0.9, 60.0, Scope.TENANT, PiiAction.BYPASS, 0)

    rules = tuple(
        Rule(
            tuple(Condition("k", (), lambda _, held=held: held) for held in row),
            decision(f"r{index}"),
        )
        for index, row in enumerate(outcomes)
    )
    policy = Policy("test", 0, (), rules, decision("default"))
    expected = next((f"r{index}" for index, row in enumerate(outcomes) if all(row)), "default")
    assert policy.decide(asked).rule == expected
    considered = policy.trace(asked)
    assert considered[-1].rule == expected
    assert [len(each.failed) for each in considered[:-1]] == [
        row.count(False) for row in outcomes[: len(considered) - 1]
    ]


KEYS = sorted(
    key for mapping in json_schema()["$defs"].values() for key in mapping["properties"]
) + sorted(json_schema()["properties"])
yaml_like = st.text(
    alphabet=st.sampled_from(list("versiondfaulxcta:1 \n\t-[]{}&*'\"|>#!?,.~%@`0\x00é\ud800")),
    max_size=80,
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def problems_of(text):
    try:
        parse_policy(text, "any.yaml")
    except PolicyError as error:
        return error.problems or ["an error without a problem"]
    return ()


def check_problems(text):
    last = max(1, len(text.splitlines()))
    problems = problems_of(text)
    for problem in problems:
        assert 1 <= problem.line <= last
        assert problem.expected
        assert problem.got
        assert str(problem).startswith("any.yaml:")
    lines = [problem.line for problem in problems]
    assert lines == sorted(lines)


@given(yaml_like)
@example("version: 1\n\n\n")
@example("a: 'x\n\n")
@example("[\n")
@example("\u2028a: [\u2028")
@example("a:\r\n  b: [\r")
def test_any_text_is_a_policy_or_has_problems_with_lines_in_the_file(text):
    check_problems(text)


@given(values)
def test_any_data_is_a_policy_or_has_problems_with_lines_in_the_file(data):
    check_problems(json.dumps(data, indent=1))


@given(st.lists(st.tuples(st.sampled_from(["rules", "tenants", "pii", "default"]), values)))
def test_any_section_is_right_or_told(sections):
    check_problems("version: 1\n" + "".join(f"{key}: {json.dumps(v)}\n" for key, v in sections))
