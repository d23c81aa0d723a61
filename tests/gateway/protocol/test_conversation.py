import pytest
from example_requests import chat, user

from gateway.protocol.conversation import (
    answer_text,
    last_user_text,
    names_text,
    prompt_text,
    system_text,
)
from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.endpoints.spec import Question
from policies.decision import Endpoint
from policies.pii.scan import PiiScanner

SCANNER = PiiScanner(["US", "GB"])
CHAT = Endpoint.CHAT
COMPLETIONS = Endpoint.COMPLETIONS


def question(endpoint, body):
    return SPECS[endpoint].find_question(body)


def text(value, **more):
    return {"type": "text", "text": value, **more}


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([user("a")], "a"),
        ([user("a"), {"role": "assistant", "content": "b"}], "a"),
        ([user("a"), {"role": "assistant", "content": "b"}, user("c")], "c"),
        ([user([text("a")])], "a"),
        # Text cut into parts must not slip past a rule that looks for words.
        ([user([text("is it"), text("medical")])], "is it\nmedical"),
        ([user([text("look"), IMAGE])], "look"),
        ([user([IMAGE])], None),
        ([user([])], None),
        ([user(None)], None),
        ([user("")], ""),
        ([{"role": "system", "content": "s"}], None),
        ([user([{"type": "text", "text": 5}])], None),
    ],
)
def test_last_user_text(messages, expected):
    assert last_user_text(CHAT, chat(*messages)) == expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a", "a"), (["a", "b"], "a\nb"), ([1, 2, 3], None), ([[1], [2]], None), ([], None)],
)
def test_the_text_of_a_completion_is_its_prompt(prompt, expected):
    assert last_user_text(COMPLETIONS, {"model": "m", "prompt": prompt}) == expected


def test_system_text_is_all_system_and_developer_text_in_order():
    body = chat(
        {"role": "system", "content": "one"},
        user("u"),
        {"role": "developer", "content": [text("two"), text("three")]},
        {"role": "assistant", "content": "no"},
    )
    assert system_text(CHAT, body) == "one\ntwo\nthree"
    assert system_text(CHAT, chat(user("u"))) is None
    assert system_text(COMPLETIONS, {"model": "m", "prompt": "p"}) is None


@pytest.mark.parametrize(
    "body",
    [
        chat(user("a")),
        chat(user([text("a")])),
        chat({"role": "system", "content": "s"}, user("a")),
        chat(user("a"), tools=[]),
    ],
)
def test_the_semantic_question_is_the_last_message_if_it_is_the_users_plain_text(body):
    assert question(CHAT, body).text == "a"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (chat(user([text("a"), text("b")])), "not-text"),
        (chat(user([text("a", cache_control={"type": "ephemeral"})])), "not-text"),
        (chat(user([text("a"), IMAGE])), "not-text"),
        (chat(user(None)), "not-text"),
        (chat(user("a"), {"role": "assistant", "content": "b"}), "last-turn"),
        (chat(user("a"), {"role": "tool", "tool_call_id": "1", "content": "b"}), "tool-results"),
        (chat(user("a"), tools=[{"type": "function"}]), "tools"),
        (chat(user("a"), functions=[{"name": "f"}]), "tools"),
    ],
)
def test_what_else_a_chat_holds_leaves_only_exact_lookup(body, reason):
    assert question(CHAT, body) == reason


@pytest.mark.parametrize("endpoint", [COMPLETIONS, Endpoint.EMBEDDINGS])
def test_a_completion_and_a_text_to_embed_are_no_questions(endpoint):
    assert SPECS[endpoint].find_question is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"input": "a"}, None),
        ({"input": [user("a")]}, "not-text"),
        ({"input": "a", "tools": [{"type": "function"}]}, "tools"),
    ],
)
def test_a_response_to_one_text_has_a_question(body, reason):
    found = question(Endpoint.RESPONSES, body)
    assert (None if isinstance(found, Question) else found) == reason


@pytest.mark.parametrize(
    ("earlier", "follows"),
    [
        ([], False),
        ([{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}], False),
        ([user("b")], True),
        ([{"role": "system", "content": "s"}, {"role": "assistant", "content": "b"}], True),
    ],
)
def test_instructions_are_no_earlier_turns(earlier, follows):
    assert question(CHAT, chat(*earlier, user("a"))).follows is follows


def test_without_question_leaves_out_the_last_content_and_nothing_else():
    body = chat(user("a"), {"role": "user", "name": "Ann", "content": "b"}, seed=1)
    assert question(CHAT, body).rest == {
        "model": "m",
        "messages": [user("a"), {"role": "user", "name": "Ann"}],
        "seed": 1,
    }
    assert body["messages"][-1]["content"] == "b"


@pytest.mark.parametrize(
    ("endpoint", "body", "readable"),
    [
        (COMPLETIONS, {"prompt": "a"}, True),
        (COMPLETIONS, {"prompt": ["a", "b"]}, True),
        (COMPLETIONS, {"prompt": [1, 2]}, False),
        (COMPLETIONS, {"prompt": [[1], [2]]}, False),
        (CHAT, chat(user("a")), True),
    ],
)
def test_token_ids_are_no_text(endpoint, body, readable):
    assert (prompt_text(endpoint, body, "") is not None) is readable


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [user("SECRET")]},
        {"messages": [user([text("a"), text("SECRET")])]},
        {"messages": [{"role": "tool", "tool_call_id": "1", "content": "SECRET"}, user("a")]},
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"function": {"arguments": "SECRET"}}]}
            ]
        },
        {"messages": [{"role": "user", "name": "SECRET", "content": "a"}]},
        {"tools": [{"function": {"description": "SECRET"}}]},
        {"functions": [{"description": "SECRET"}]},
        {"prompt": ["a", "SECRET"]},
        {"suffix": "SECRET"},
        {"prediction": {"type": "content", "content": "SECRET"}},
        {"response_format": {"json_schema": {"schema": {"description": "SECRET"}}}},
        {"documents": [{"title": "t", "text": "SECRET"}]},
        {"chat_template_kwargs": {"customer": "SECRET"}},
        {"made_up_tomorrow": "SECRET"},
    ],
)
def test_the_prompt_to_scan_holds_whatever_the_upstream_may_read(fields):
    assert "SECRET" in prompt_text(CHAT, {**chat(user("a")), **fields}, "")


@pytest.mark.parametrize(
    "value", ["ann@example.com", {"by": "ann@example.com"}, {"ann@example.com": "yes"}]
)
@pytest.mark.parametrize("field", ["user", "safety_identifier", "prompt_cache_key", "metadata"])
def test_what_is_no_part_of_the_key_is_scanned_by_itself(field, value):
    body = {"prompt": "a", "model": "m", field: value}
    assert "ann@example.com" in names_text(COMPLETIONS, body)
    assert prompt_text(COMPLETIONS, body, "") == "a\nm"


def test_the_model_the_query_string_and_names_of_fields_are_scanned_with_the_prompt():
    body = {"prompt": "a", "model": "ann@example.com", "bob@example.com": 1}
    query = "for=cy%40example.com&key=0a1b2c3d4e&q=a+b"
    of_query = ["for=cy%40example.com", "0a1b2c3d4e", "q=a+b", "q=a b"]
    assert prompt_text(COMPLETIONS, body, query).split("\n") == [
        *("bob@example.com", "a", "ann@example.com", *of_query)
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"choices": [{"message": {"content": "SECRET"}}]},
        {"choices": [{"message": {"reasoning_content": "SECRET"}}]},
        {"choices": [{"text": "SECRET"}]},
        {"choices": [{"message": {"tool_calls": [{"function": {"arguments": "SECRET"}}]}}]},
        {"citations": ["SECRET"]},
        {"prompt_logprobs": [{"decoded_token": "SECRET"}]},
    ],
)
def test_the_answer_to_scan_holds_all_that_would_be_stored(fields):
    assert "SECRET" in answer_text(CHAT, {"id": "x", **fields})


def test_what_an_answer_calls_itself_does_not_keep_it_from_the_scan():
    result = {"object": "list", "choices": [{"message": {"content": "ann@example.com"}}]}
    assert SCANNER.scan(answer_text(CHAT, result)) == "email"


def test_of_embeddings_all_but_the_vectors_is_scanned():
    vector = {"object": "embedding", "index": 0, "embedding": "YWRhQGV4YW1wbGUuY29t"}
    result = {"object": "list", "data": [vector], "model": "m"}
    assert SCANNER.scan(answer_text(Endpoint.EMBEDDINGS, result)) is None
    for more in {"model": "ann@example.com"}, {"data": [vector | {"text": "ann@example.com"}]}:
        assert SCANNER.scan(answer_text(Endpoint.EMBEDDINGS, result | more)) == "email"


def test_ids_of_an_answer_are_scanned_as_names():
    result = {"id": "chatcmpl-2125550188", "model": "m-2024-08-06", "system_fingerprint": "fp_4"}
    result |= {"object": "chat.completion", "service_tier": "aB3dE5gH7jK9mN1pQ3sT5uV7"}
    assert SCANNER.scan(answer_text(CHAT, result)) is None
    assert SCANNER.scan(answer_text(CHAT, result | {"model": "ann@example.com"})) == "email"


@pytest.mark.parametrize(
    "earlier",
    [
        {"role": "tool", "tool_call_id": "c", "content": "21 degrees"},
        {"role": "function", "name": "f", "content": "21 degrees"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "file"}]},
        {"role": "assistant", "content": [{"type": "input_audio"}]},
        {"role": "user", "content": [{}]},
    ],
)
def test_what_holds_particulars_keeps_a_conversation_from_being_found_by_meaning(earlier):
    body = chat(earlier, user("What is it?"))
    assert question(CHAT, body) in ("tool-results", "not-text")


@pytest.mark.parametrize(
    "earlier",
    [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "assistant", "content": None},
        {"role": "system", "content": "Be kind."},
    ],
)
def test_a_conversation_of_text_is_found_by_meaning(earlier):
    body = chat(earlier, user("What is it?"))
    assert question(CHAT, body).text == "What is it?"
