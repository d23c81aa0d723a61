"""``/v1/completions``: a prompt is text to go on with, not a question."""

from collections.abc import Container, Iterator
from functools import partial
from operator import itemgetter
from typing import Any

from gateway.protocol.endpoints.key_fields import (
    BOOLEAN,
    COUNT,
    INTEGER,
    SAMPLING,
    STRING,
    Fields,
    Type,
    keyed,
)
from gateway.protocol.endpoints.spec import Body, EndpointSpec, Result, Streaming, missing
from gateway.protocol.errors import ClientError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.storable import decline_choices
from gateway.protocol.streaming.assemble_choices import StreamedChoices
from gateway.protocol.streaming.render_choices import ChoiceForm, last_chunk, piece, render_choices

_FIELDS: Fields = {
    **SAMPLING,
    **keyed(Type("one of a string or array", (str, list)), "prompt"),
    **keyed(INTEGER, "best_of"),
    **keyed(BOOLEAN, "echo"),
    **keyed(COUNT, "logprobs"),
    **keyed(STRING, "suffix"),
}


def _check(body: Body) -> Iterator[ClientError]:
    if body.get("prompt") is None:  # OpenAI has a default, vLLM takes ``prompt_embeds``
        yield missing("prompt")


def _is_readable(body: Body) -> bool:
    """Refuse token numbers: the gateway does not know the model's vocabulary."""
    prompt = body["prompt"]
    return isinstance(prompt, str) or all(isinstance(each, str) for each in prompt)


def _decline(body: Body, result: Any, finish_reasons: Container[str]) -> Reason | None:
    prompt = body.get("prompt")
    several = isinstance(prompt, list) and not all(isinstance(token, int) for token in prompt)
    return decline_choices(
        body,
        result,
        finish_reasons,
        decline_choice=_decline_choice,
        text=itemgetter("text"),
        prompts=len(prompt) if prompt and several else 1,
    )


def _decline_choice(_body: Body, choice: dict[str, Any]) -> Reason | None:
    match choice.get("text"):
        case str(text) if text:
            return None
        case str():
            return Reason.EMPTY
        case _:
            return Reason.UNKNOWN_SHAPE


def _pieces(choice: dict[str, Any]) -> Iterator[Result]:
    yield piece(choice, text=choice["text"], logprobs=choice.get("logprobs"))
    yield piece(choice, text="", **last_chunk(choice))


_FORM = ChoiceForm(
    "text_completion",
    "text_completion",
    {"logprobs": None, "finish_reason": None, "text": ""},
    _pieces,
)

SPEC = EndpointSpec(
    fields=_FIELDS,
    check=_check,
    recognises=lambda body: "prompt" in body and "input" not in body,
    operation="text_completion",
    prompt_fields=("prompt",),
    question_field="prompt",
    is_readable=_is_readable,
    decline=_decline,
    streaming=Streaming(
        partial(render_choices, _FORM), partial(StreamedChoices, form=_FORM), usage_option=True
    ),
)
