"""Each setting of a rule is read, inherited and refused as the reference says."""

import dataclasses
import json

import pytest

from policies.decision import (
    CLEAN_FINISH_REASONS,
    BreakpointField,
    BreakpointLifetime,
    Breakpoints,
    CompressSettings,
    Decision,
    DocumentOrder,
    DocumentSettings,
    HintSettings,
    KeyRetention,
    PrefixSettings,
    Priority,
    Protected,
    SchemaKeys,
    VolatileKind,
)
from policies.format.load import PolicyError, parse_policy
from policies.format.settings import SETTINGS, settings_of

DEFAULT = "default: {exact: on, semantic: on, freshness: 1h, scope: tenant, pii: bypass%s}\n"
RULE = "rules:\n  - name: a\n    match: {model: m}\n    %s\n"


def decisions(in_default="", in_rule=""):
    """The decisions of a rule and of the default, each with these settings."""
    default = DEFAULT % (in_default and ", " + in_default)
    if in_default.startswith("semantic:"):
        default = default.replace("semantic: on, ", "")
    text = "version: 1\n" + (RULE % in_rule) + default
    read = parse_policy(text, "p.yaml")
    return read.rules[0].decision, read.default


def test_what_nobody_sets_is_neutral():
    rule, default = decisions()
    assert dataclasses.replace(rule, rule="default") == default
    assert (default.jitter, default.grace_revalidate, default.grace_error) == (0, 0, 0)
    assert (default.max_followers, default.follow_seconds) == (10_000, 600)
    assert default.finish_reasons == CLEAN_FINISH_REASONS
    assert (default.max_temperature, default.max_prompt_tokens) == (None, None)
    assert (default.shadow, default.sample, default.promote) == (False, 0, False)
    assert (default.priority, default.tags) == (Priority.NORMAL, ())
    assert default.prefix == PrefixSettings(SchemaKeys.KEYWORDS)


SET = [
    ("semantic: {shadow: on}", {"shadow": True}),
    ("semantic: {shadow: off}", {"shadow": False}),
    ("semantic: {sample: 2.5%}", {"sample": 0.025}),
    ("semantic: {promote: on}", {"promote": True}),
    ("jitter: 10%", {"jitter": 0.1}),
    ("jitter: 0%", {"jitter": 0.0}),
    ("jitter: 100%", {"jitter": 1.0}),
    ("jitter: 2.5%", {"jitter": 0.025}),
    ("grace: 10m", {"grace_revalidate": 600.0, "grace_error": 600.0}),
    ("grace: off", {"grace_revalidate": 0.0, "grace_error": 0.0}),
    ("grace: {while_revalidate: 1m, if_error: 1d}", {"grace_revalidate": 60, "grace_error": 86400}),
    ("grace: {if_error: 1d}", {"grace_error": 86_400.0}),
    ("grace: {while_revalidate: off}", {"grace_revalidate": 0.0}),
    ("coalescing: off", {"max_followers": 0}),
    ("coalescing: on", {"max_followers": 10_000}),
    ("coalescing: {followers: 3}", {"max_followers": 3}),
    ("coalescing: {wait: 5s}", {"follow_seconds": 5.0, "max_followers": 10_000}),
    ("coalescing: {enabled: off, wait: 5s}", {"follow_seconds": 5.0, "max_followers": 0}),
    ("finish_reasons: stop", {"finish_reasons": frozenset({"stop"})}),
    ("finish_reasons: [stop, length]", {"finish_reasons": frozenset({"stop", "length"})}),
    ("finish_reasons: [eos, end_turn]", {"finish_reasons": frozenset({"eos", "end_turn"})}),
    ("max_temperature: 0", {"max_temperature": 0.0}),
    ("max_temperature: 0.3", {"max_temperature": 0.3}),
    ("max_temperature: any", {"max_temperature": None}),
    ("max_prompt_tokens: 32000", {"max_prompt_tokens": 32_000}),
    ("max_prompt_tokens: any", {"max_prompt_tokens": None}),
    ("priority: high", {"priority": Priority.HIGH}),
    ("tags: catalog", {"tags": ("catalog",)}),
    ("tags: [catalog, 'team:shop', catalog]", {"tags": ("catalog", "team:shop")}),
    ("tags: []", {"tags": ()}),
    ("prefix: {tools: sorted}", {"prefix": PrefixSettings(sorts_tools=True)}),
    ("prefix: {schema_keys: on}", {"prefix": PrefixSettings(SchemaKeys.ON)}),
    ("fallback_model: qwen3-4b", {"fallback_model": "qwen3-4b"}),
    ("fallback_model: off", {"fallback_model": None}),
    ("prefix: off", {"prefix": PrefixSettings(SchemaKeys.OFF)}),
    ("compress: on", {"compress": CompressSettings(enabled=True)}),
    ("compress: off", {"compress": CompressSettings()}),
    ("compress: {history: 8}", {"compress": CompressSettings(enabled=True, history=8)}),
    ("compress: {history: off}", {"compress": CompressSettings(enabled=True)}),
    (
        "compress: {documents: {begin: <d>, end: </d>}, keep: 50%, protect: ids}",
        {
            "compress": CompressSettings(
                enabled=True,
                documents=DocumentSettings("<d>", "</d>"),
                keep=0.5,
                protect=frozenset({Protected.IDS}),
            )
        },
    ),
    (
        "compress: {documents: off, tool_results: on, minify: off, duplicates: off, min_gain: 10%}",
        {
            "compress": CompressSettings(
                enabled=True,
                markers=False,
                tool_results=True,
                minify=False,
                duplicates=False,
                min_gain=0.1,
            )
        },
    ),
    ("prefix: {whitespace: on}", {"prefix": PrefixSettings(whitespace=True)}),
    ("prefix: {turns: earlier}", {"prefix": PrefixSettings(earlier_turns=True)}),
    ("prefix: {volatile: dates}", {"prefix": PrefixSettings(volatile=(VolatileKind.DATES,))}),
    (
        "prefix: {volatile: {detect: [uuids, uuids], patterns: 'a+'}}",
        {"prefix": PrefixSettings(volatile=(VolatileKind.UUIDS,), patterns=("a+",))},
    ),
    ("prefix: {volatile: off}", {"prefix": PrefixSettings()}),
    ("hints: off", {"hints": HintSettings()}),
    ("hints: {breakpoints: earlier}", {"hints": HintSettings(Breakpoints.EARLIER)}),
    (
        "hints: {field: cache_control, lifetime: 1h, min_tokens: 512}",
        {
            "hints": HintSettings(
                field=BreakpointField.CACHE_CONTROL,
                lifetime=BreakpointLifetime.LONG,
                min_tokens=512,
            )
        },
    ),
    (
        "hints: {cache_key: on, keys: 4, retention: 24h, min_tokens: auto}",
        {"hints": HintSettings(cache_key=True, keys=4, retention=KeyRetention.DAY)},
    ),
    (
        "prefix: {documents: {begin: <d>, end: </d>, order: shared}}",
        {"prefix": PrefixSettings(documents=DocumentSettings("<d>", "</d>", DocumentOrder.SHARED))},
    ),
]


@pytest.mark.parametrize(("written", "meant"), SET, ids=[written for written, _ in SET])
def test_a_setting_of_a_rule_and_of_the_default(written, meant):
    bare, _ = decisions()
    rule, default = decisions(in_rule=written)
    assert rule == dataclasses.replace(bare, **meant)
    assert default == decisions()[1]
    rule, default = decisions(in_default=written)
    assert rule == dataclasses.replace(bare, **meant)
    assert rule == dataclasses.replace(default, rule="a")


@pytest.mark.parametrize(("written", "meant"), SET, ids=[written for written, _ in SET])
def test_a_decision_in_words_is_read_back_as_the_same_decision(written, meant):
    rule, _ = decisions(in_rule=written)
    words = json.dumps(settings_of(rule))[1:-1]
    text = f"version: 1\nrules: [{{name: a, match: {{model: m}}, {words}}}]\n" + DEFAULT % ""
    read = parse_policy(text, "p.yaml").rules[0].decision
    if not rule.max_followers:  # nobody waits: how long does not matter
        read = dataclasses.replace(read, follow_seconds=rule.follow_seconds)
    assert read == rule


def test_a_decision_in_words_names_every_setting_in_the_order_of_the_reference():
    assert list(settings_of(decisions()[0])) == [key.name for key in SETTINGS.keys]


OTHERS = (
    "jitter: 7%, grace: 3m, coalescing: {followers: 7, wait: 7s}, finish_reasons: length, "
    "max_temperature: 0.7, max_prompt_tokens: 7, priority: low, tags: seven, "
    "fallback_model: seven"
)


def test_a_key_of_compress_that_a_rule_leaves_out_is_as_in_the_default():
    rule, default = decisions(
        in_default="compress: {documents: {begin: a, end: b}, keep: 40%}",
        in_rule="compress: {documents: on, tool_results: on}",
    )
    assert rule.compress == CompressSettings(enabled=True, tool_results=True, keep=0.4)
    assert default.compress.documents == DocumentSettings("a", "b")
    rule, _ = decisions(in_default="compress: {keep: 40%}", in_rule="compress: off")
    assert not rule.compress.enabled


def test_a_key_of_hints_that_a_rule_leaves_out_is_as_in_the_default():
    in_default = "hints: {breakpoints: system, min_tokens: 9, cache_key: on, retention: 24h}"
    rule, _ = decisions(in_default=in_default, in_rule="hints: {min_tokens: auto, keys: 2}")
    assert rule.hints == HintSettings(
        Breakpoints.SYSTEM, cache_key=True, keys=2, retention=KeyRetention.DAY
    )
    rule, _ = decisions(in_default=in_default, in_rule="hints: off")
    assert rule.hints == HintSettings()


def test_a_key_of_prefix_that_a_rule_leaves_out_is_as_in_the_default():
    rule, default = decisions(
        in_default="prefix: {volatile: {patterns: a, detect: dates}, "
        "documents: {begin: a, end: b}}",
        in_rule="prefix: {volatile: uuids, documents: off}",
    )
    assert rule.prefix == PrefixSettings(volatile=(VolatileKind.UUIDS,), patterns=("a",))
    assert default.prefix.documents == DocumentSettings("a", "b")
    rule, default = decisions(
        in_default="prefix: {tools: sorted}", in_rule="prefix: {schema_keys: off}"
    )
    assert rule.prefix == PrefixSettings(SchemaKeys.OFF, sorts_tools=True)
    assert default.prefix == PrefixSettings(SchemaKeys.KEYWORDS, sorts_tools=True)


@pytest.mark.parametrize(("written", "meant"), SET, ids=[written for written, _ in SET])
def test_a_rule_takes_only_what_it_leaves_out_from_the_default(written, meant):
    if "coalescing" in written and meant.get("max_followers"):
        meant = {**meant, "max_followers": 3 if "3" in written else 7}
    bare, _ = decisions(in_default=OTHERS)
    rule, _ = decisions(in_default=OTHERS, in_rule=written)
    assert rule == dataclasses.replace(bare, **meant)


BUDGETS = [
    ("semantic: {max_wrong_hits: 1%}", {"max_wrong_hits": 0.01}),
    ("semantic: {max_wrong_hits: 0.5%}", {"max_wrong_hits": 0.005}),
    ("semantic: {max_wrong_hits: 0.01%}", {"max_wrong_hits": 0.0001}),
    ("semantic: {max_wrong_hits: 20.00%}", {"max_wrong_hits": 0.2}),
    ("semantic: {enabled: off, max_wrong_hits: 2%}", {"semantic": False, "max_wrong_hits": 0.02}),
    ("semantic: {min_similarity: 0.9}", {"min_similarity": 0.9}),
    ("semantic: on", {}),
]


@pytest.mark.parametrize(("written", "meant"), BUDGETS, ids=[written for written, _ in BUDGETS])
def test_the_error_budget_of_semantic_hits(written, meant):
    bare, default = decisions()
    assert (default.max_wrong_hits, default.min_similarity) == (0.005, 0.75)
    assert decisions(in_rule=written)[0] == dataclasses.replace(bare, **meant)


def test_the_budget_of_the_default_holds_where_a_rule_sets_none():
    default = (DEFAULT % "").replace("semantic: on", "semantic: {max_wrong_hits: 3%}")

    def rule(semantic):
        text = f"version: 1\nrules: [{{name: a, match: {{}}, semantic: {semantic}}}]\n{default}"
        return parse_policy(text, "p.yaml").rules[0].decision

    for written in ("on", "{min_similarity: 0.9}"):
        assert rule(written).max_wrong_hits == 0.03
    own = rule("{max_wrong_hits: 0.07%}")
    assert own.max_wrong_hits == pytest.approx(0.0007)
    written = settings_of(own)["semantic"]
    assert (written["max_wrong_hits"], written["min_similarity"]) == ("0.07%", 0.75)


@pytest.mark.parametrize(
    "value",
    ["0.01", "1", "0%", "0.00%", "0.005%", "20.01%", "100%", "-1%", "off", "1.%", ".5%", "\u0661%"],
)
def test_a_wrong_error_budget_is_told(value):
    text = "version: 1\n" + (RULE % f"semantic: {{max_wrong_hits: {value}}}") + DEFAULT % ""
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, "p.yaml")
    (problem,) = map(str, caught.value.problems)
    assert problem.startswith("p.yaml:5: rules[0]")
    assert "a percentage from 0.01% to 20%, such as 1%, got " in problem


def test_coalescing_switched_on_again_has_the_usual_bound():
    rule, default = decisions(in_default="coalescing: off", in_rule="coalescing: on")
    assert (default.max_followers, rule.max_followers) == (0, 10_000)


def test_every_field_of_a_decision_can_be_set():
    """Beside the rule's name and the generation, which the file has elsewhere."""
    written = {name for _, meant in SET for name in meant}
    older = {"exact", "semantic", "max_wrong_hits", "min_similarity", "lifetime", "scope", "pii"}
    assert written | older | {"rule", "generation"} == {
        field.name for field in dataclasses.fields(Decision)
    }
    assert {text.split(":")[0] for text, _ in SET} | {
        "exact",
        "semantic",
        "freshness",
        "scope",
        "pii",
    } == {key.name for key in SETTINGS.keys}


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("jitter: 10", "a.jitter: expected a percentage from 0% to 100%, such as 10%, got 10"),
        ("jitter: 0.1", "jitter: expected a percentage from 0% to 100%, such as 10%, got 0.1"),
        ("jitter: 101%", "jitter: expected a percentage from 0% to 100%, such as 10%, got '101%'"),
        ("jitter: -1%", "jitter: expected a percentage"),
        ("jitter: 100.1%", "jitter: expected a percentage"),
        ("jitter: \u0661%", "jitter: expected a percentage"),
        ("grace: on", "grace: expected off, a duration such as 10m, or a mapping such as {while_"),
        ("grace: 10", "grace: expected off, a duration such as 10m, or a mapping such as {while_"),
        ("grace: {}", "grace: expected at least one of the keys while_revalidate, if_error"),
        ("grace: {if_error: 1}", "grace.if_error: expected off or a duration such as 10m, 24h"),
        ("grace: {error: 1m}", "(did you mean if_error?), got the unknown key 'error'"),
        ("grace: 9999999999w", "grace: expected off, a duration such as 10m"),
        ("coalescing: 10", "coalescing: expected on, off or a mapping such as {followers: 1000}"),
        ("coalescing: {}", "coalescing: expected at least one of the keys enabled, followers"),
        ("coalescing: {followers: 0}", "followers: expected a whole number from 1 to 1000000"),
        ("coalescing: {followers: 1.0}", "followers: expected a whole number from 1 to 1000000"),
        ("coalescing: {followers: on}", "followers: expected a whole number from 1 to 1000000"),
        ("coalescing: {wait: 5}", "coalescing.wait: expected a duration such as 10m, 24h or 7d"),
        ("finish_reasons: []", "finish_reasons: expected at least one value, got an empty list"),
        ("finish_reasons: stopp", "expected the name of a finish reason (did you mean stop?)"),
        ("finish_reasons: [stop, tool_call]", "finish_reasons[1]: expected the name of a finish"),
        ("finish_reasons: content_filter", "expected a finish reason of whole answers, such as"),
        ("finish_reasons: abort", "expected a finish reason of whole answers, such as stop"),
        ("finish_reasons: [a b]", "finish_reasons[0]: expected the name of a finish reason"),
        ("finish_reasons: 1", "finish_reasons: expected the name of a finish reason, such as st"),
        ("max_temperature: 3", "max_temperature: expected a number from 0 to 2, or any, got 3"),
        ("max_temperature: -0.1", "max_temperature: expected a number from 0 to 2, or any"),
        ("max_temperature: no", "max_temperature: expected a number from 0 to 2, or any"),
        ("max_temperature: yes", "max_temperature: expected a number from 0 to 2, or any"),
        ("max_temperature: true", "max_temperature: expected a number from 0 to 2, or any"),
        ("variants: 3", "got the unknown key 'variants'"),
        ("max_prompt_tokens: 0", "expected a whole number from 1 to 2147483648, or any, got 0"),
        ("max_prompt_tokens: 32k", "expected a whole number from 1 to 2147483648, or any, got"),
        ("priority: urgent", "priority: expected high, normal or low, got 'urgent'"),
        ("tags: a b", "tags: expected a tag of at most 63 letters, digits and ._:/-, got 'a b'"),
        ('tags: "a\\nb"', "tags: expected a tag of at most 63 letters"),
        ("tags: [x, 1]", "tags[1]: expected a tag of at most 63 letters, digits and ._:/-, got 1"),
        ("tags: ''", "tags: expected a tag of at most 63 letters"),
        ("fallback_model: a b", "fallback_model: expected the name of a model, without white sp"),
        ("fallback_model: 4", "fallback_model: expected the name of a model, without white space"),
        ("compress: {}", "compress: expected at least one of the keys enabled, documents"),
        ("compress: {keep: all}", "compress.keep: expected a percentage from 0% to 100%"),
        ("compress: {history: 1}", "compress.history: expected a whole number from 2 to 1000, or"),
        ("compress: {protect: names}", "compress.protect: expected numbers, negation or ids"),
        ("compress: {documents: {begin: a}}", "compress.documents: expected the keys begin and"),
        (
            "compress: {documents: {begin: a, end: b, order: content}}",
            "compress.documents.order: expected one of the keys enabled, begin, end, got the unkn",
        ),
        ("prefix: on", "prefix: expected off or a mapping such as {tools: sorted}, got 'on'"),
        ("prefix: {}", "prefix: expected at least one of the keys schema_keys, tools"),
        ("prefix: {tools: on}", "prefix.tools: expected sorted or as_sent, got 'on'"),
        ("prefix: {volatile: on}", "prefix.volatile: expected off, a list such as [timestamps"),
        ("prefix: {volatile: [times]}", "prefix.volatile: expected timestamps, dates, uuids"),
        ("prefix: {volatile: {}}", "volatile: expected at least one of the keys detect, patterns"),
        ("prefix: {volatile: {patterns: 'a*'}}", "expected a pattern that does not match the emp"),
        ("prefix: {volatile: {patterns: '(a)(b)'}}", "expected a pattern with at most one group"),
        ("prefix: {volatile: {patterns: '(a'}}", "expected a regular expression that RE2 accepts"),
        ("prefix: {documents: on}", "prefix.documents: expected the keys begin and end, two mark"),
        ("prefix: {documents: {begin: a, end: a}}", "expected the keys begin and end, two markers"),
        ("prefix: {documents: {begin: ' a', end: b}}", "documents.begin: expected a marker of one"),
        ("hints: on", "hints: expected off or a mapping such as {cache_key: on}, got 'on'"),
        ("hints: {}", "hints: expected at least one of the keys breakpoints, field"),
        ("hints: {breakpoints: on}", "hints.breakpoints: expected off, system or earlier, got 'on"),
        ("hints: {field: mark}", "expected auto, cache_control or prompt_cache_breakpoint, got"),
        ("hints: {lifetime: 2h}", "hints.lifetime: expected 5m or 1h, got '2h'"),
        ("hints: {min_tokens: 0}", "expected auto or a whole number from 1 to 1048576, got 0"),
        ("hints: {keys: 65}", "hints.keys: expected a whole number from 1 to 64, got 65"),
        ("hints: {retention: 1h}", "hints.retention: expected off or 24h, got '1h'"),
        ("prefix: {turns: all}", "prefix.turns: expected system or earlier, got 'all'"),
        ("prefix: {schema_keys: all}", "prefix.schema_keys: expected on, off or keywords, got"),
    ],
)
def test_a_wrong_setting_is_told_with_its_line(written, told):
    for in_rule, in_default, place in ((written, "", "p.yaml:5: rules[0]"), ("", written, "")):
        text = "version: 1\n" + RULE % (in_rule or "exact: on")
        text += DEFAULT % (in_default and ", " + in_default)
        with pytest.raises(PolicyError) as caught:
            parse_policy(text, "p.yaml")
        (problem,) = map(str, caught.value.problems)
        assert problem.startswith(place or "p.yaml:6: default.")
        assert told.removeprefix("a.") in problem


def allowed(written):
    return parse_policy(f"version: 1\npii: {{allow: {written}}}\n" + DEFAULT % "", "p.yaml").allowed


def test_public_contacts_are_taken_as_written():
    assert allowed("['*@acme.example', +1 800 555 0100, GB82 WEST 1234 5698 7654 32]") == (
        "*@acme.example",
        "+1 800 555 0100",
        "GB82 WEST 1234 5698 7654 32",
    )
    assert allowed("'*@acme.example'") == ("*@acme.example",)
    assert parse_policy("version: 1\n" + DEFAULT % "", "p.yaml").allowed == ()


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("['*']", "pii.allow[0]: expected an address, number or other text of at least 6 char"),
        ("['*@*']", "pii.allow[0]: expected an address, number or other text"),
        ("['*@*.com']", "in which * stands for some of it, such as *@acme.example"),
        ("[18005550100]", "pii.allow[0]: expected text; put it in quotes if it is meant"),
        ("['']", "pii.allow[0]: expected text that is not empty"),
        ("[]", "pii.allow: expected at least one value, got an empty list"),
        ("{email: x}", "pii.allow: expected text, got a mapping"),
    ],
)
def test_a_contact_that_would_allow_too_much_is_refused(written, told):
    with pytest.raises(PolicyError) as caught:
        allowed(written)
    (problem,) = map(str, caught.value.problems)
    assert problem.startswith("p.yaml:2: ")
    assert told in problem
