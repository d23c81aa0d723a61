"""Follow-ups on either side of the rule that lets them get the answer to a first turn."""

import pytest
from example_requests import chat, user

from gateway.protocol.http.cache_status import WHY_OWN_CONVERSATION, Reason
from gateway.semantic.eligibility import semantic_query
from gateway.semantic.follow_ups import MAX_TURNS, as_opening, is_complete
from policies.decision import Endpoint

COMPLETE = (
    "Where was Frida Kahlo born?",
    "Who built the Golden Gate Bridge?",
    "What is the capital of New Zealand?",
    "How many islands does French Polynesia have?",
    "Is Apache Kafka faster than Apache Pulsar?",
    "What is the difference between Apache Kafka and Apache Pulsar?",
    "Why did Marie Curie leave Poland?",
)
INCOMPLETE = (
    # A pronoun, or another word that refers back.
    "Where was she born?",
    "What did Frida Kahlo say about it?",
    "Who else built the Golden Gate Bridge?",
    "What other islands does French Polynesia have?",
    "Did Marie Curie also work with Pierre Curie?",
    "Did Marie Curie win again?",
    "What did Marie Curie do instead?",
    "What about Marie Curie?",
    "Does the latter belong to New Zealand?",
    "Which one did Frida Kahlo paint?",
    # A comparison without a standard.
    "Is Apache Kafka faster?",
    "Tell of more paintings by Frida Kahlo",
    # A noun that the turn does not explain.
    "When did the band tour with Frida Kahlo?",
    "What is the fee at New Zealand Post?",
    # No full name.
    "When did Wilson die?",
    "Why did President Wilson resign?",
    "What happened in New York?",
    "What happened in March 1983?",
    "how many albums sold well",
    "Which Albums Did Well In The End",
    "WHICH ALBUMS WERE POPULAR",
    # The asker, whom the conversation may describe.
    "How do I pay with Apple Pay?",
    "What would you ask Marie Curie?",
    "",
    "?",
)
NAMED = "Where was Frida Kahlo born?"
ASKS = user("Who painted The Two Fridas?")
ANSWERS = {"role": "assistant", "content": "Frida Kahlo."}
SYSTEM = {"role": "system", "content": "Be brief."}


def opening(*earlier, text=NAMED, **fields):
    return as_opening(semantic_query(Endpoint.CHAT, chat(*earlier, user(text), **fields)))


@pytest.mark.parametrize("text", COMPLETE)
def test_a_turn_with_a_full_name_and_nothing_that_refers_back_is_complete(text):
    assert is_complete(text)


@pytest.mark.parametrize("text", INCOMPLETE)
def test_a_turn_that_may_refer_back_is_not_complete(text):
    assert not is_complete(text)


def test_all_but_the_earlier_turns_must_be_equal():
    rest = opening(SYSTEM, ASKS, ANSWERS, temperature=0)
    assert rest == chat(SYSTEM, {"role": "user"}, temperature=0)


def test_an_incomplete_turn_names_its_reason_first():
    first = user("You are a pirate.")
    text = "When did the band tour with Frida Kahlo?"
    assert opening(first, ANSWERS, text=text) is Reason.FOLLOW_UP
    assert opening(first, ANSWERS) is Reason.EARLIER_TURNS


@pytest.mark.parametrize(
    "turn",
    [
        user("You are a pirate."),
        user("From now on you answer in French."),
        user("Can you answer in French?"),
        user("Could you always be formal with me?"),
        user("Would you call me Bob?"),
        user("I am a child. Who painted The Two Fridas?"),
        user("I'm a child, who painted it?"),
        user("My house is in Kiel."),
        user("Summarise: " + "a long story of a far country " * 3),
        user("Who painted it?" * 100),
        user("¿Quién pintó el cuadro?"),
        user([{"type": "text", "text": "Who?"}]),
        {"role": "user", "content": "Who?", "name": "bob"},
        {"role": "assistant", "content": "I see.", "tool_calls": [{"id": "1"}]},
        {"role": "assistant", "content": None},
        SYSTEM,
    ],
)
def test_earlier_turns_hold_plain_questions_and_answers_alone(turn):
    assert opening(ASKS, turn, ANSWERS) is Reason.EARLIER_TURNS


def test_a_long_conversation_stays_with_its_history():
    assert isinstance(opening(*[ASKS, ANSWERS] * (MAX_TURNS // 2)), dict)
    assert opening(*[ASKS, ANSWERS] * (MAX_TURNS // 2), ASKS) is Reason.EARLIER_TURNS


def test_each_reason_has_a_sentence():
    assert set(WHY_OWN_CONVERSATION) == {Reason.FOLLOW_UP, Reason.EARLIER_TURNS}
