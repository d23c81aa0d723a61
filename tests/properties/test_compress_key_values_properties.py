"""Of keys and their values none is lost, in whatever form they stand and whatever is near."""

import json
from collections.abc import Callable, Sequence
from random import Random

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.prompts.compress.compress import begin
from gateway.prompts.outcome import NotRewrittenError
from policies.decision import CompressSettings, DocumentSettings, Endpoint

HALF = CompressSettings(enabled=True, documents=DocumentSettings("<d>", "</d>"), keep=0.5)
Pairs = Sequence[tuple[str, str]]
ROWS: dict[str, Callable[[str, str], str]] = {
    "colon": lambda k, v: f"{k}: {v}",
    "equals": lambda k, v: f"{k} = {v}",
    "arrow": lambda k, v: f"{k} -> {v}",
    "comma": lambda k, v: f"{k},{v},x",
    "semicolon": lambda k, v: f"{k};{v};x",
    "tab": lambda k, v: f"{k}\t{v}",
    "columns": lambda k, v: f"{k}    {v}",
    "bullet": lambda k, v: f"- {k} {v}",
    "table": lambda k, v: f"| {k} | {v} |",
    "json lines": lambda k, v: json.dumps({"id": k, "value": v}),
    "yaml": lambda k, v: f"  - id: {k}\n    value: {v}",
    "xml": lambda k, v: f"<item id='{k}'>{v}</item>",
    "sql": lambda k, v: f"INSERT INTO t VALUES ('{k}', '{v}');",
    "log": lambda k, v: f"2026-11-22 04:17:11 INFO {k} took {v} ms",
    "sentence": lambda k, v: f"The value of {k} is {v}.",
}
WHOLE: dict[str, Callable[[Pairs], str]] = {
    "json": lambda pairs: json.dumps(dict(pairs), indent=2),
    "one line": lambda pairs: ", ".join(f"{k}: {v}" for k, v in pairs),
    "running": lambda pairs: " ".join(f"The value of {k} is {v}." for k, v in pairs),
}
PROSE = (
    "The baker in the lane is glad that the new ovens are so quick.",
    "Our florist has moved to the market square, next to the fountain.",
    "The tailor wants his windows cleaned before the feast begins.",
)
QUESTIONS = (
    "What is the value of {key}?",
    "Which one has {value}?",
    "Is there one with the key {key}x9?",
    "Is {key} there?",
    "How many entries are there?",
    "List all keys.",
    "What is the highest value?",
    "Which keys have no value?",
)


@st.composite
def asked(draw: st.DrawFn) -> tuple[Pairs, list[str], str]:
    """Draw pairs, blocks that hold them among others, and a question."""
    random = draw(st.randoms(use_true_random=False))
    count = draw(st.sampled_from([10, 40, 200]))
    kind = draw(st.sampled_from(["hex", "alike", "name"]))
    pairs = [
        (
            {"hex": f"{random.getrandbits(48):012x}", "alike": f"item-{1000 + i}"}.get(
                kind, f"user_{random.choice('abcdef')}{i}"
            ),
            str(random.randrange(10**6, 10**7)),
        )
        for i in range(count)
    ]
    form = draw(st.sampled_from([*ROWS, *WHOLE]))
    if form in WHOLE:
        blocks = [WHOLE[form](pairs)]
    elif count < 50 and draw(st.booleans()):
        blocks = [ROWS[form](*pair) for pair in pairs]
    else:
        blocks = ["\n".join(ROWS[form](*pair) for pair in pairs)]
    key, value = random.choice(pairs)
    question = draw(st.sampled_from(QUESTIONS)).format(key=key, value=value)
    return pairs, [*PROSE, *blocks], question


def sent(blocks: Sequence[str], question: str, random: Random) -> str:
    content = "".join(f"<d>{each}</d>" for each in blocks) + question
    body = {"messages": [{"role": "user", "content": content}]}
    begun = begin(Endpoint.CHAT, body, orjson.dumps(body), HALF)
    assert begun is not None
    vectors = [(1.0, 0.0)] + [(random.uniform(-0.2, 0.9), 0.0) for _ in begun.texts[1:]]
    try:
        result = begun.next(vectors[: len(begun.texts)])
    except NotRewrittenError:
        return content
    return str(result.body["messages"][0]["content"])


@settings(max_examples=30, deadline=None, derandomize=True)
@given(asked(), st.randoms(use_true_random=False))
def test_of_keys_and_values_none_is_lost_whatever_is_near(given_, random):
    pairs, blocks, question = given_
    text = sent(blocks, question, random)
    assert [(k, v) for k, v in pairs if k not in text or v not in text] == []


def test_a_row_of_words_in_sentences_of_many_kinds_stays_when_it_is_asked_for():
    words = [
        "amber",
        "basil",
        "cedar",
        "delta",
        "ember",
        "fjord",
        "grove",
        "haven",
        "islet",
        "jetty",
        "knoll",
        "larch",
    ]
    random = Random(6)
    frames = ("The {} holds the {}.", "In the {} there is the {}.", "{} has the {}.")
    keys = [f"{a} {b}" for a in words for b in words if a < b]
    rows = [random.choice(frames).format(key, random.choice(words)) for key in keys]
    for key, row in list(zip(keys, rows, strict=True))[::9]:
        assert row in sent([" ".join(rows)], f"What does the {key} hold?", random)
