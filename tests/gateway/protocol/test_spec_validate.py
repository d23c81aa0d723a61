import pytest
from example_requests import chat, user

from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.errors import ClientError
from policies.decision import Endpoint

validate_chat, validate_completion, validate_embeddings, validate_response = (
    SPECS[endpoint].validate
    for endpoint in (
        Endpoint.CHAT,
        Endpoint.COMPLETIONS,
        Endpoint.EMBEDDINGS,
        Endpoint.RESPONSES,
    )
)

PROMPT = {"model": "m", "prompt": "p"}


def refusal(validate, body):
    with pytest.raises(ClientError) as caught:
        validate(body)
    error = caught.value.body()["error"]
    assert caught.value.status == 400
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error["param"], error["code"], error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0},
        {"temperature": 0.7, "top_p": 1, "presence_penalty": -2, "frequency_penalty": 1.5},
        {"stream": True, "stream_options": {}},
        {"stream": None, "stream_options": None, "temperature": None, "n": None, "stop": None},
        {"stop": "x"},
        {"stop": ["x", "y"]},
        {"n": 2, "seed": 18446744073709551617, "max_tokens": 5},
        {"logit_bias": {"50256": -100}, "metadata": {"a": "b"}, "user": "u", "store": False},
        {"made_up_tomorrow": {"x": [1]}},
        # Ranges are the upstream's to judge.
        {"temperature": 99, "n": -1, "max_tokens": 0, "top_p": 7.5},
    ],
)
def test_good_bodies_pass_and_so_do_fields_unknown_here(fields):
    assert validate_chat(chat(**fields)) is None
    assert validate_completion({**PROMPT, **fields}) is None


@pytest.mark.parametrize(
    "content",
    [
        "a",
        "",
        None,
        [],
        [{"type": "text", "text": "a"}],
        [{"type": "image_url", "image_url": {"url": "u"}}],
        [{"type": "made_up_tomorrow"}],
    ],
)
def test_contents(content):
    validate_chat(chat(user(content)))
    validate_chat(chat({"role": "assistant", "tool_calls": [], "content": content}))


@pytest.mark.parametrize("prompt", ["", "p", [], ["p", "q"], [1, 2], [[1], [2]]])
def test_prompts(prompt):
    validate_completion({"model": "m", "prompt": prompt})


SHARED = [
    ("model", 5, "a string", "an integer"),
    ("model", ["m"], "a string", "an array"),
    ("stream", "yes", "a boolean", "a string"),
    ("stream", 2, "a boolean", "an integer"),
    ("stream_options", True, "an object", "a boolean"),
    ("stream_options", [], "an object", "an array"),
    ("store", "never", "a boolean", "a string"),
    ("user", ["u"], "a string", "an array"),
    ("safety_identifier", {}, "a string", "an object"),
    ("metadata", "m", "an object", "a string"),
    ("temperature", "hot", "a decimal", "a string"),
    ("temperature", True, "a decimal", "a boolean"),
    ("top_p", [1], "a decimal", "an array"),
    ("presence_penalty", False, "a decimal", "a boolean"),
    ("frequency_penalty", {}, "a decimal", "an object"),
    ("n", 1.5, "an integer", "a decimal"),
    ("n", True, "an integer", "a boolean"),
    ("seed", "x", "an integer", "a string"),
    ("max_tokens", True, "an integer", "a boolean"),
    ("stop", 5, "one of a string or array of strings", "an integer"),
    ("stop", {}, "one of a string or array of strings", "an object"),
    ("logit_bias", 5, "an object", "an integer"),
]
CHAT_ONLY = [
    ("messages", "hi", "an array of objects", "a string"),
    ("messages", {}, "an array of objects", "an object"),
    ("logprobs", 3, "a boolean", "an integer"),
    ("top_logprobs", True, "an integer", "a boolean"),
    ("max_completion_tokens", 1.5, "an integer", "a decimal"),
    ("tools", {}, "an array of objects", "an object"),
    ("functions", "f", "an array of objects", "a string"),
    ("response_format", "json", "an object", "a string"),
    ("parallel_tool_calls", "yes", "a boolean", "a string"),
]
COMPLETIONS_ONLY = [
    ("prompt", 5, "one of a string or array", "an integer"),
    ("prompt", {}, "one of a string or array", "an object"),
    ("prompt", True, "one of a string or array", "a boolean"),
    ("logprobs", [], "an integer", "an array"),
    ("echo", 3, "a boolean", "an integer"),
    ("suffix", 5, "a string", "an integer"),
]


@pytest.mark.parametrize(("name", "value", "expected", "got"), SHARED + CHAT_ONLY)
def test_wrong_types_in_a_chat(name, value, expected, got):
    assert refusal(validate_chat, {**chat(), name: value}) == (
        name,
        "invalid_type",
        f"Invalid type for '{name}': expected {expected}, but got {got} instead.",
    )


@pytest.mark.parametrize(("name", "value", "expected", "got"), SHARED + COMPLETIONS_ONLY)
def test_wrong_types_in_a_completion(name, value, expected, got):
    assert refusal(validate_completion, {**PROMPT, name: value}) == (
        name,
        "invalid_type",
        f"Invalid type for '{name}': expected {expected}, but got {got} instead.",
    )


@pytest.mark.parametrize(
    ("messages", "param", "code", "message"),
    [
        (
            [],
            "messages",
            "empty_array",
            (
                "Invalid 'messages': empty array. Expected an array with minimum length 1, "
                "but got an empty array instead."
            ),
        ),
        (
            ["hi"],
            "messages[0]",
            "invalid_type",
            "Invalid type for 'messages[0]': expected an object, but got a string instead.",
        ),
        (
            [user("a"), None],
            "messages[1]",
            "invalid_type",
            "Invalid type for 'messages[1]': expected an object, but got null instead.",
        ),
        (
            [{"content": "a"}],
            "messages[0].role",
            "missing_required_parameter",
            "Missing required parameter: 'messages[0].role'.",
        ),
        (
            [{"role": 5, "content": "a"}],
            "messages[0].role",
            "invalid_type",
            "Invalid type for 'messages[0].role': expected a string, but got an integer instead.",
        ),
        (
            [user({"text": "a"})],
            "messages[0].content",
            "invalid_type",
            (
                "Invalid type for 'messages[0].content': expected one of a string or array of "
                "objects, but got an object instead."
            ),
        ),
        (
            [user(True)],
            "messages[0].content",
            "invalid_type",
            (
                "Invalid type for 'messages[0].content': expected one of a string or array of "
                "objects, but got a boolean instead."
            ),
        ),
    ],
)
def test_wrong_messages(messages, param, code, message):
    assert refusal(validate_chat, {"model": "m", "messages": messages}) == (param, code, message)


def test_missing_messages():
    expected = (
        "messages",
        "missing_required_parameter",
        "Missing required parameter: 'messages'.",
    )
    assert refusal(validate_chat, {"model": "m"}) == expected
    assert refusal(validate_chat, {"model": "m", "messages": None}) == expected


@pytest.mark.parametrize(
    ("validate", "body", "param"),
    [
        (validate_chat, {"messages": [user("a")]}, "model"),
        (validate_chat, {"messages": [user("a")], "model": None}, "model"),
        (validate_chat, chat(max_tokens="16"), "max_tokens"),
        (validate_chat, chat(temperature="0.5"), "temperature"),
        (validate_chat, chat(top_p="1e-1"), "top_p"),
        (validate_chat, chat(user=5), "user"),
        (validate_chat, chat(user(["a", "b"])), "messages[0].content[0]"),
        (validate_completion, {"prompt": "p"}, "model"),
        (validate_completion, {"model": "m"}, "prompt"),
        (validate_completion, {"model": "m", "prompt_embeds": "AAAA"}, "prompt"),
        (validate_embeddings, {"model": "m", "messages": [user("a")]}, "input"),
        (
            validate_embeddings,
            {"model": "m", "input": [{"type": "text", "text": "a"}]},
            "input[0]",
        ),
        (validate_response, {"input": "hi"}, "model"),
        (validate_response, {"model": "m", "input": "hi", "max_output_tokens": "16"}, None),
    ],
)
def test_what_other_servers_take_is_returned_not_raised(validate, body, param):
    odd = validate(body)
    assert isinstance(odd, ClientError)
    assert odd.body()["error"]["param"] == (param or "max_output_tokens")


@pytest.mark.parametrize("value", ["", "hot", "1_0", "1 0", "٣", "0x10", "nan", "1e", "."])
def test_a_string_that_is_no_number_is_refused(value):
    assert refusal(validate_chat, chat(temperature=value))[0] == "temperature"


def test_a_wrong_shape_is_refused_beside_an_odd_one():
    assert refusal(validate_chat, {"messages": "hi"})[0] == "messages"
    assert refusal(validate_embeddings, {"input": [{"text": "a"}, 5]})[0] == "input[1]"
