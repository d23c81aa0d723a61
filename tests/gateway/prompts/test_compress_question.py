"""What is asked of declared context: for which questions passages may go, and which need all."""

from collections.abc import Sequence

import orjson
import pytest

from gateway.prompts.compress.compress import Draft, begin
from gateway.prompts.outcome import NotRewritten, NotRewrittenError
from policies.decision import CompressSettings, DocumentSettings, Endpoint

HALF = CompressSettings(enabled=True, documents=DocumentSettings("<d>", "</d>"), keep=0.5)
SHOPS = (
    "The baker in the lane is glad that the new ovens are so quick.",
    "Our florist has moved to the market square, next to the fountain.",
    "The tailor wants his windows cleaned before the feast begins.",
    "A smith of the upper town mends the gates of the old castle.",
    "The cobbler thinks that his rent has become a heavy burden.",
    "Somebody has painted the door of the chandler in bright blue.",
    "The weaver sends her best cloth to the towns by the sea.",
    "A potter from abroad has opened a kiln behind the mill.",
)


def asked(question: str, passages: Sequence[str] = SHOPS, *before: str) -> Draft:
    """Begin to compress a question about passages, with the user's turns before it."""
    content = "".join(f"<d>{each}</d>" for each in passages) + question
    body = {"messages": [{"role": "user", "content": each} for each in (*before, content)]}
    begun = begin(Endpoint.CHAT, body, orjson.dumps(body), HALF)
    assert begun is not None
    return begun


def sent(
    question: str, near: int | None = None, passages: Sequence[str] = SHOPS
) -> str | NotRewritten:
    """Return what is sent, or why no passage went; the question is about the ``near`` one."""
    begun = asked(question, passages)
    vectors = [(1.0, 0.0), *((float(i == near), 0.5) for i in range(len(passages)))]
    try:
        result = begun.next(vectors[: len(begun.texts)])
    except NotRewrittenError as error:
        return error.why
    assert result.compression.refused is None
    return str(result.body["messages"][0]["content"])


@pytest.mark.parametrize(
    "question",
    [
        "List all craftsmen.",
        "List the shops, please.",
        "Name every shop that is mentioned.",
        "Can you enumerate the shops?",
        "Which of these is the richest?",
        "How many documents are there?",
        "In how many passages is a mill mentioned?",
        "How many of them complain?",
        "Summarize this.",
        "Please give me a summary of what people say.",
        "What are the key points?",
        "TL;DR?",
        "Translate the text into French.",
        "Sort the shops by size.",
        "Compare the baker with the smith.",
        "What do the shops have in common?",
        "Are there any duplicates?",
        "Make a table of shops and streets.",
        "What is this about?",
        "What does the third passage say?",
        "Tell me all that is known of the town.",
        "Find every complaint.",
        "Do any two of the passages contradict one another?",
        "What are all the towns?",
        "Who all has moved?",
        "Add up the rents.",
        "Order the events by date.",
        "What is missing?",
        "What changed between the versions?",
        "On what do these texts disagree?",
    ],
)
def test_a_question_that_needs_all_loses_no_passage(question):
    assert sent(question, near=0) in (NotRewritten.NEEDS_ALL, NotRewritten.UNCLEAR)


@pytest.mark.parametrize(
    "question",
    [
        "How many craftsmen live there?",
        "How many complaints were made?",
        "How often was something broken?",
        "What is the number of merchants?",
        "Which craftsman pays the highest rent?",
        "What is the average age?",
        "What is the total?",
        "What is the maximum rent?",
        "Which shop has no windows?",
        "Who was the first to move?",
        "Who has not moved?",
        "Who didn't complain?",
        "Which shops are happy?",
        "Is anybody unhappy except the cobbler and the weaver?",
        "Which one does not sell bread?",
        "Does any shop sell more than 30 kinds of bread?",
        "Is there a record of job_17 here?",
        "Is the key 8f3e9c2a there?",
    ],
)
def test_a_question_that_counts_compares_or_denies_loses_none_where_all_are_alike(question):
    assert sent(question) is NotRewritten.NEEDS_ALL


def test_a_count_of_what_one_passage_alone_is_about_needs_that_passage():
    told = (
        "Martha knits every day, and a hat takes two skeins of wool, and a scarf takes four.",
        *SHOPS,
    )
    text = sent("How many skeins of wool does Martha need?", near=0, passages=told)
    assert isinstance(text, str)
    assert told[0] in text
    assert text.count("<d></d>") >= 3


@pytest.mark.parametrize(
    "question",
    [
        "Here are some documents about our town.",
        "Here is the context.",
        "Context:",
        "Answer from the documents above.",
        "?",
        "Continue.",
        "And?",
        "Why?",
        "I want to hear of the town and of its lanes. " * 60,
    ],
)
def test_a_turn_that_asks_nothing_loses_no_passage(question):
    assert sent(question, near=0) is NotRewritten.UNCLEAR


@pytest.mark.parametrize(
    "question",
    [
        "Wer hat den neuen Ofen gekauft und wann?",
        "Qui a acheté le nouveau four du boulanger ?",
        "¿Quién ha comprado el horno nuevo de la panadería?",
        "Кто купил новую печь?",
        "誰が新しいオーブンを買いましたか",
        "من اشترى الفرن الجديد؟",
    ],
)
def test_a_question_in_another_language_loses_no_passage(question):
    assert sent(question, near=0) is NotRewritten.LANGUAGE


@pytest.mark.parametrize(
    "passage",
    [
        "Der Bäcker hat den neuen Ofen gekauft, weil der alte nicht mehr heiß wurde.",
        "Пекарь купил новую печь, потому что старая сломалась.",
        "パン屋は新しいオーブンを買いました。",
    ],
)
def test_a_passage_in_another_language_stays(passage):
    text = sent("Who bought the new oven?", near=0, passages=(*SHOPS, passage))
    assert isinstance(text, str)
    assert passage in text


def test_a_question_that_leans_on_earlier_turns_loses_no_passage():
    assert asked("And what about him?", SHOPS, "Who is it?").texts == ()
    assert asked("Who bought the new oven?", SHOPS, "Who is it?").texts != ()


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ("Question: Who bought the oven?", "Who bought the oven?"),
        (
            "Answer from the documents below. Do not invent anything.\n\nQ: Who bought the oven?",
            "Who bought the oven?",
        ),
        (
            "Tell me who signed the lease document. I work for the owner.",
            "Tell me who signed the lease document. I work for the owner.",
        ),
        (
            "If none of the documents holds the answer, say so. Who bought the oven?",
            "Who bought the oven?",
        ),
        (
            "I moved here in May. Who bought the oven?",
            "I moved here in May. Who bought the oven?",
        ),
        (
            "Be polite and speak as a town clerk would. " * 40 + "Who bought it all?",
            "Who bought it all?",
        ),
    ],
)
def test_the_encoder_reads_what_is_asked_and_not_what_is_said_of_the_context(words, read):
    assert asked(words).texts[0] == read


def test_of_many_passages_that_are_as_near_as_the_best_none_goes():
    begun = asked("Who is happy?")
    with pytest.raises(NotRewrittenError) as caught:
        begun.next([(1.0, 0.0)] + [(0.6 - i / 50, 0.0) for i in range(len(SHOPS))])
    assert caught.value.why is NotRewritten.NEEDS_ALL


@pytest.mark.parametrize(
    "question",
    [
        "If you cannot find the answer in any of the documents, say so. Where was Curie born?",
        "What name is given to the port in Hamburg?",
        "What is the rank of Anna Meyer?",
    ],
)
def test_words_that_only_look_like_asking_for_all_are_none(question):
    assert len(asked(question).texts) == 1 + len(SHOPS)


def test_what_is_wanted_on_a_condition_may_need_all():
    assert sent("If there are several, list all of them. Who won?") is NotRewritten.NEEDS_ALL
