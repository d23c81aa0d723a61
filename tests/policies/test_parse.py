"""Every mistake is told with its line, its key, what was expected and what was found."""

import pytest

from policies.decision import PiiAction, Scope
from policies.format.load import PolicyError, parse_policy
from policies.format.yaml_document import MAX_CHARACTERS, policy_text

DEFAULT = "default: {exact: on, semantic: on, freshness: 1h, scope: tenant, pii: bypass}\n"


def policy(rules="", head="version: 1\n"):
    return head + (f"rules:\n{rules}" if rules else "") + DEFAULT


def problems(text):
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, "p.yaml")
    return [str(problem) for problem in caught.value.problems]


def rule(settings, match="{}"):
    return policy(f"  - name: a\n    match: {match}\n    {settings}\n")


def test_the_least_policy_and_its_defaults():
    read = parse_policy(policy(), "p.yaml")
    assert (read.source, read.generation, read.regions, read.rules) == (
        "p.yaml",
        0,
        ("US", "GB"),
        (),
    )
    default = read.default
    assert (default.rule, default.exact, default.semantic) == ("default", True, True)
    assert (default.lifetime, default.scope, default.pii) == (3600, Scope.TENANT, PiiAction.BYPASS)


def test_a_rule_falls_back_to_the_default_for_what_it_leaves_out():
    text = """\
version: 1
generation: 7
rules:
  - {name: bare, match: {model: a}}
  - name: own
    match: {model: b}
    exact: off
    semantic: {min_similarity: 0.5}
    freshness: 2d
    scope: public
    pii: allow
  - {name: switched, match: {model: c}, semantic: off}
default:
  {exact: on, semantic: {min_similarity: 0.99}, freshness: 1h, scope: tenant, pii: bypass}
"""
    bare, own, switched = (rule.decision for rule in parse_policy(text, "p.yaml").rules)
    assert (bare.exact, bare.semantic, bare.min_similarity, bare.lifetime) == (
        True,
        True,
        0.99,
        3600,
    )
    assert (bare.generation, bare.scope, bare.pii) == (7, Scope.TENANT, PiiAction.BYPASS)
    assert (own.exact, own.semantic, own.min_similarity, own.lifetime) == (
        False,
        True,
        0.5,
        172_800,
    )
    assert (own.scope, own.pii) == (Scope.PUBLIC, PiiAction.ALLOW)
    assert (switched.semantic, switched.min_similarity) == (False, 0.99)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("on", True),
        ("off", False),
        ("true", True),
        ("False", False),
        ("yes", True),
        ("no", False),
        ("'on'", True),
        ('"off"', False),
    ],
)
def test_switches(written, meant):
    assert parse_policy(rule(f"exact: {written}"), "p.yaml").rules[0].decision.exact is meant


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("1s", 1), ("10m", 600), ("24h", 86_400), ("7d", 604_800), ("2w", 1_209_600)],
)
def test_durations(written, seconds):
    read = parse_policy(rule(f"freshness: {written}"), "p.yaml")
    assert read.rules[0].decision.lifetime == seconds


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("freshness: soon", "freshness: expected a duration such as 10m, 24h or 7d, got 'soon'"),
        ("freshness: 600", "freshness: expected a duration such as 10m, 24h or 7d, got 600"),
        ("freshness: 1:30", "freshness: expected a duration such as 10m, 24h or 7d, got '1:30'"),
        ("freshness: 0m", "freshness: expected a duration such as 10m, 24h or 7d, got '0m'"),
        ("freshness: 24H", "freshness: expected a duration such as 10m, 24h or 7d, got '24H'"),
        ("freshness: -1h", "freshness: expected a duration such as 10m, 24h or 7d, got '-1h'"),
        ("freshness: 10m ٣h", "freshness: expected a duration such as 10m, 24h or 7d, got"),
        ("freshness: 9999999999w", "freshness: expected a duration of at most 2147483648 seconds"),
        ("exact: maybe", "exact: expected on or off, got 'maybe'"),
        ("exact: 1", "exact: expected on or off, got 1"),
        ("exact:", "exact: expected a value; leave the key out where there is none to give"),
        (
            "semantic: [on]",
            "semantic: expected on, off or a mapping such as {max_wrong_hits: 1%}",
        ),
        ("semantic: {}", "semantic: expected at least one of the keys enabled, max_wrong_hits"),
        ("semantic: {min_similarity: 2}", "min_similarity: expected a number from 0 to 1, got 2"),
        ("semantic: {min_similarity: no}", "min_similarity: expected a number from 0 to 1"),
        ("semantic: {min_similarity: yes}", "min_similarity: expected a number from 0 to 1"),
        ("semantic: {max: 2}", "semantic.max: expected one of the keys enabled, max_wrong_hits"),
        ("scope: group", "expected tenant, team, user or public (did you mean team?), got 'group'"),
        ("scope: none", "scope: expected tenant, team, user or public, got 'none'"),
        ("scope: [tenant]", "scope: expected tenant, team, user or public, got a list"),
        ("pii: no", "pii: expected bypass, user or allow (did you mean allow?), got 'no'"),
        ("pii: redact", "(did you mean bypass?), got 'redact'"),
        ("ttl: 1h", "(did you mean freshness?), got the unknown key 'ttl'"),
        ("max-age: 1h", "(did you mean freshness?), got the unknown key 'max-age'"),
        ("cache: on", "(did you mean exact?), got the unknown key 'cache'"),
        ("threshold: 0.9", "(did you mean min_similarity, below semantic?)"),
        ("max_wrong_hits: 1%", "(did you mean max_wrong_hits, below semantic?)"),
        ("semantic: {threshold: 0.9}", "(did you mean min_similarity?)"),
        ("semantic: {ttl: 1h}", "(did you mean freshness of the rule?)"),
        ("stale_if_error: 1h", "(did you mean if_error, below grace?)"),
        ("model: gpt-4o", "got the unknown key 'model'"),
        ("freshnes: 1h", "(did you mean freshness?), got the unknown key 'freshnes'"),
        ("on: 1h", "got the unknown key 'on'"),
        ("exact: !!python/name:os.system x", "a value without a tag"),
        ("exact: !on yes", "exact: expected a value without a tag, got the tag !on"),
        ("<<: {exact: on}", "got the unknown key '<<'"),
    ],
)
def test_a_wrong_setting(settings, expected):
    (problem,) = problems(rule(settings))
    assert problem.startswith("p.yaml:5: rules[0].")
    assert expected in problem


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ("[]", "match: expected a mapping with keys of endpoint, model, tenant, header, content"),
        ("{endpoint: /v1/chat}", "match.endpoint: expected /v1/chat/completions, /v1/comp"),
        ("{model: 4}", "match.model: expected text; put it in quotes if it is meant, got 4"),
        ("{model: ''}", "match.model: expected text that is not empty, got ''"),
        ("{model: []}", "match.model: expected at least one value, got an empty list"),
        ("{model: [a, 1.5]}", "match.model[1]: expected text; put it in quotes if it is meant"),
        ("{model: {a: b}}", "match.model: expected text, got a mapping"),
        ("{tenant: acme}", "match.tenant: expected one of the tenants anonymous, got 'acme'"),
        ("{tenant: [anonymous, x]}", "match.tenant[1]: expected one of the tenants anonymous"),
        ("{tenant: A B}", "match.tenant: expected a name of at most 63 lower-case letters"),
        ("{header: {}}", "match.header: expected at least one key, got an empty mapping"),
        ("{header: {a b: c}}", "expected the name of a header"),
        ("{header: {Authorization: x}}", "expected a header that holds no credential"),
        ("{header: {x-a: 1}}", "match.header.x-a: expected text; put it in quotes"),
        ("{header: x}", "match.header: expected a mapping, got 'x'"),
        ("{content: price}", "match.content: expected a mapping with keys of keywords, regex"),
        ("{content: {}}", "match.content: expected at least one of the keys keywords, regex"),
        ("{content: {keywords: [on, 5]}}", "content.keywords[1]: expected text; put it in"),
        ("{content: {regex: '(a'}}", "content.regex: expected a regular expression that RE2 acc"),
        ("{content: {regex: ['a', '(?=b)']}}", "content.regex[1]: expected a regular expression"),
        ("{content: {system_prompt_sha256: AB}}", "a SHA-256 in 64 lower-case hex digits"),
        ("{modle: x}", "(did you mean model?), got the unknown key 'modle'"),
    ],
)
def test_a_wrong_match(match, expected):
    (problem,) = problems(rule("exact: on", match))
    assert problem.startswith("p.yaml:4: rules[0].match")
    assert expected in problem


def test_the_wrong_name_of_a_tenant_hides_no_other_mistake():
    head = "version: 1\ntenants: {Acme: {organization: o}}\n"
    name, unknown = problems(policy("  - {name: a, match: {tenant: other}}\n", head))
    assert name.startswith("p.yaml:2: tenants.Acme: expected a name of at most 63 lower-case")
    assert unknown == (
        "p.yaml:4: rules[0].match.tenant: expected one of the tenants anonymous, Acme, got 'other'"
    )


@pytest.mark.parametrize(
    ("key", "place"), [('regex: "x\\ud800"', "regex"), ('keywords: ["x\\ud800"]', "keywords[0]")]
)
def test_half_a_character_is_refused_with_its_place(key: str, place: str):
    (problem,) = problems(rule("exact: on", f"{{content: {{{key}}}}}"))
    start = f"p.yaml:4: rules[0].match.content.{place}: expected text without half characters"
    assert problem.startswith(start)


def test_a_bad_pattern_is_told_in_the_words_of_re2():
    (problem,) = problems(rule("exact: on", "{content: {regex: 'a**{2'}}"))
    assert "RE2 accepts (bad repetition operator: **)" in problem


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("version: 2\n", "p.yaml:1: version: expected 1, the version of this format, got 2"),
        ("version: '1'\n", "p.yaml:1: version: expected 1, the version of this format, got '1'"),
        ("version: true\n", "p.yaml:1: version: expected 1, the version of this format, got true"),
        ("generation: 1\n", "p.yaml:1: version: expected this required key, got nothing"),
        (
            "version: 1\ngeneration: -1\n",
            "p.yaml:2: generation: expected a whole number from 0, got -1",
        ),
        (
            "version: 1\ngeneration: 1.0\n",
            "p.yaml:2: generation: expected a whole number from 0, got 1.0",
        ),
        (
            "version: 1\npii: {regions: [NO, UK]}\n",
            "p.yaml:2: pii.regions[1]: expected an ISO 3166 region code such as US or GB, got 'UK'",
        ),
        (
            "version: 1\npii: {regions: US}\n",
            "p.yaml:2: pii.regions: expected a list, got 'US'",
        ),
        (
            "version: 1\npii: bypass\n",
            "p.yaml:2: pii: expected a mapping with keys of regions, allow, got 'bypass'",
        ),
        (
            "version: 1\ntenants: {anonymous: {organization: o}}\n",
            "expected a name other than anonymous",
        ),
        (
            "version: 1\ntenants:\n  acme: {}\n",
            "p.yaml:3: tenants.acme: expected at least one of the keys api_key_sha256",
        ),
        (
            "version: 1\ntenants:\n  acme: {api_key_sha256: sk-123}\n",
            "p.yaml:3: tenants.acme.api_key_sha256: expected a SHA-256 in 64 lower-case hex digits",
        ),
        (
            "version: 1\ntenants:\n  acme: {key: x}\n",
            "p.yaml:3: tenants.acme.key: expected one of the keys api_key_sha256, organization",
        ),
        ("version: 1\nrules: {a: b}\n", "p.yaml:2: rules: expected a list, got a mapping"),
        (
            "version: 1\nrules: [a]\n",
            "p.yaml:2: rules[0]: expected a mapping with keys of name, match, exact",
        ),
        ("version: 1\nrule: []\n", "(did you mean rules?), got the unknown key 'rule'"),
        ("version: 1\nttl: 1h\n", "(did you mean freshness, below default?)"),
        ("version: 1\n5: x\n", "p.yaml:2: expected a key that is a word; put it in quotes"),
        ("version: 1\n? [a]\n: x\n", "p.yaml:2: expected a key that is a word"),
    ],
)
def test_a_wrong_head(head, expected):
    (problem,) = problems(policy(head=head))
    assert expected in problem


def test_the_default_sets_everything():
    assert problems("version: 1\ndefault:\n  exact: on\n  scope: user\n") == [
        f"p.yaml:2: default.{key}: expected this required key, got nothing"
        for key in ("semantic", "freshness", "pii")
    ]


def test_all_problems_are_told_at_once_in_order_of_line():
    told = problems("""\
version: 1
rules:
  - name: a
    match: {modle: x}
    freshness: soon
  - name: a
    match: {tenant: nobody}
    scope: all
  - match: {model: y}
    name: Default
default: {exact: on, semantic: on, freshness: 1h, scope: tenant}
""")
    assert [line.split(" expected")[0] for line in told] == [
        "p.yaml:4: rules[0].match.modle:",
        "p.yaml:5: rules[0].freshness:",
        "p.yaml:6: rules[1].name:",
        "p.yaml:7: rules[1].match.tenant:",
        "p.yaml:8: rules[1].scope:",
        "p.yaml:10: rules[2].name:",
        "p.yaml:11: default.pii:",
    ]


def test_names():
    text = policy("  - {name: default, match: {model: a}}\n  - {name: x y, match: {model: b}}\n")
    reserved, shape = problems(text)
    assert "p.yaml:3: rules[0].name: expected a name other than default" in reserved
    assert "p.yaml:4: rules[1].name: expected a name of at most 63" in shape
    missing = problems(policy("  - match: {model: a}\n"))
    assert missing == ["p.yaml:3: rules[0].name: expected this required key, got nothing"]


def test_a_name_twice_names_both_lines():
    text = policy("  - {name: a, match: {model: a}}\n\n  - {name: a, match: {model: b}}\n")
    assert problems(text) == [
        "p.yaml:5: rules[1].name: expected a unique name (line 3 has it already), got 'a'"
    ]


def test_a_key_twice_names_both_lines():
    text = policy("  - name: a\n    match: {model: x}\n    exact: on\n    exact: off\n")
    assert problems(text) == [
        "p.yaml:6: rules[0].exact: expected each key once (it is on line 5 already), got it again"
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("{}", "{model: a}"),
        ("{model: '*'}", "{}"),
        ("{model: [b, a]}", "{model: a}"),
        ("{model: a}", "{model: a, content: {keywords: x}}"),
        ("{content: {keywords: [x, y]}}", "{content: {keywords: y, regex: z}}"),
        ("{header: {x-app: '*'}}", "{header: {x-app: a}}"),
        ("{header: {X-App: a}}", "{header: {x-app: a, x-other: b}}"),
        ("{endpoint: [/v1/completions], tenant: anonymous}", None),
    ],
)
def test_a_rule_that_is_never_reached(first, second):
    text = policy(f"  - {{name: a, match: {first}}}\n  - {{name: b, match: {second or first}}}\n")
    (problem,) = problems(text)
    assert problem == (
        "p.yaml:4: rules[1].match: expected requests that rules[0] on line 3 leaves over, "
        "got none: this rule is never reached"
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("{model: a}", "{}"),
        ("{model: a}", "{model: [a, b]}"),
        ("{model: a, endpoint: /v1/completions}", "{model: a}"),
        ("{header: {x-a: a}}", "{header: {x-b: a}}"),
        ("{content: {keywords: a}}", "{content: {regex: a}}"),
        ("{header: {x-a: '*'}}", "{}"),
        ("{content: {keywords: '*'}}", "{content: {keywords: x}}"),
    ],
)
def test_a_rule_that_is_reached(first, second):
    text = policy(f"  - {{name: a, match: {first}}}\n  - {{name: b, match: {second}}}\n")
    assert len(parse_policy(text, "p.yaml").rules) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "p.yaml:1: expected a mapping with keys of version, generation"),
        ("# nothing\n", "got an empty file"),
        ("- a\n", "p.yaml:1: expected a mapping with keys of version"),
        ("version: 1\n\tdefault: x\n", "p.yaml:2: expected spaces for indentation, got a tab"),
        ("a: [1,\n", "p.yaml:1: expected the node content"),
        ("a: {b\n", "p.yaml:1: expected ',' or '}'"),
        ('a: "x\n', "expected valid YAML, got unexpected end of stream"),
        ("a: b: c\n", "p.yaml:1: expected valid YAML, got mapping values are not allowed here"),
        ("a: *b\n", "p.yaml:1: expected valid YAML, got undefined alias 'b'"),
        ("a: 1\n---\nb: 1\n", "p.yaml:2: expected one YAML document, got a second one"),
        ("a: 1\nb: \x00\n", "p.yaml:2: expected printable text, got the character '\\x00'"),
        ("a: \ud800\n", "p.yaml:1: expected printable text"),
        ("x\n" * MAX_CHARACTERS, "p.yaml:1: expected a file of at most 524288 characters"),
        ("\n" + "[" * 100_000, "p.yaml:2: expected valid YAML, got more than 16 levels"),
        ("{a: " * 100_000, "got more than 16 levels of nesting"),
        ("? " * 10_000, "got more than 16 levels of nesting"),
        ("a: &a [*a]\n", "p.yaml:1: expected at most 50000 values and 16 levels"),
    ],
)
def test_text_that_is_no_document(text, expected):
    (problem,) = problems(text)[:1]
    assert expected in problem


def test_aliases_cannot_unfold_without_bound():
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{chr(98 + step)}: &{chr(98 + step)} [{', '.join(['*' + chr(97 + step)] * 10)}]\n"
        for step in range(9)
    )
    (problem,) = problems(bomb)
    assert "expected at most 50000 values and 16 levels, aliases unfolded, got more" in problem


def test_anchors_may_repeat_a_value():
    text = policy(
        "  - {name: a, match: {model: m, content: {keywords: &k [x, y]}}, exact: off}\n"
        "  - {name: b, match: {model: n, content: {keywords: *k}}}\n"
    )
    assert len(parse_policy(text, "p.yaml").rules) == 2


def test_norway_is_a_region():
    assert parse_policy(policy(head="version: 1\npii: {regions: [NO, SE, NO]}\n"), "p").regions == (
        "NO",
        "SE",
    )


def test_bytes_that_are_no_text_are_told_with_their_line():
    with pytest.raises(PolicyError) as caught:
        policy_text(b"version: 1\n# caf\xe9\n", "p.yaml")
    assert str(caught.value) == "p.yaml:2: expected UTF-8 text, got the byte 0xe9"


def test_a_byte_order_mark_is_no_mistake():
    text = policy_text(b"\xef\xbb\xbf" + policy().encode(), "p.yaml")
    assert parse_policy(text, "p.yaml").generation == 0


def test_long_values_are_cut_in_messages():
    (problem,) = problems(rule(f"freshness: {'x' * 1000}"))
    assert len(problem) < 200
    assert problem.endswith("...'")


DIGITS = r"[\pL\pN]{1,%d}x"
WORDS = ", ".join(letter * 10_000 for letter in "абвгдежзийклмнопрстуфхцчшщъыьэюя")
GLOBS = ", ".join(f"'{letter}{'?' * 15_000}'" for letter in "abcdefghijklmnopqrstuvwxyz")


def several(patterns):
    return ", ".join(f"'{pattern}'" for pattern in patterns)


def volatile(*patterns):
    return f"prefix: {{volatile: {{patterns: [{several(patterns)}]}}}}"


MATCHES = {
    f"{{content: {{regex: [{several(DIGITS % n for n in range(300, 304))}]}}}}": "content.regex",
    f"{{content: {{keywords: [{WORDS}]}}}}": "content.keywords",
    f"{{model: [{GLOBS}]}}": "model",
    f"{{header: {{x-app: [{GLOBS}]}}}}": "header.x-app",
}


@pytest.mark.parametrize(("match", "key"), MATCHES.items(), ids=MATCHES.values())
def test_conditions_that_are_too_large_together_are_refused_at_their_line(match, key):
    [problem] = problems(rule("exact: off", match))
    assert problem == (
        f"p.yaml:4: rules[0].match.{key}: expected patterns that RE2 compiles together: fewer or "
        "shorter ones, got pattern too large - compile failed"
    )


def test_volatile_patterns_that_are_too_large_together_are_refused_at_their_line():
    large = volatile(r"id [\pL\pN]{1,250}x", r"id [\pL\pN]{1,251}x")
    [in_a_rule] = problems(rule(large))
    assert in_a_rule.startswith("p.yaml:5: rules[0].prefix.volatile: expected patterns that RE2")
    [in_default] = problems("version: 1\n" + DEFAULT.replace("}\n", f",\n  {large}}}\n"))
    assert in_default.startswith("p.yaml:3: default.prefix.volatile: expected patterns that RE2")


def test_the_patterns_of_many_rules_are_bounded_together():
    rules = [
        f"  - {{name: r{n}, match: {{content: {{regex: '{DIGITS % n}'}}}}, exact: off}}\n"
        for n in range(300, 400)
    ]
    [problem] = problems(policy("".join(rules)))
    assert problem.endswith("got all patterns of this file together are too large")
