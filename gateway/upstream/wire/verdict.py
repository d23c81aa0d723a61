"""What the reply of an upstream means: an answer, or a fault of the upstream or of its settings.

Laws:
- A good status alone makes no answer: a call is answered by JSON or by a stream.
- Where an upstream gets no credential of a client, a refusal of credential, account or credit is no
  answer: the client would think that its own key was refused. Status and error codes decide:

      401, 402                                    refused
      403                                         refused, unless it is about content (moderation)
      400, and an error alone with status 200     refused, if code or text speak of key or credit
      429                                         refused, if the code speaks of credit
      any other below 500                         refused, if the code speaks of key or credit
      404, 400, 422 for a model that it lists     refused for this model alone
      403 for a model                             refused for this model alone

- With a credential of the client these replies are answers.
"""

import json
import re
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson

from gateway.protocol.http.cache_status import Reason

_KEY_CODES = frozenset(
    {"invalid_api_key", "incorrect_api_key", "api_key_invalid", "api_key_expired", "invalid_token"}
    | {"expired_api_key", "missing_api_key", "no_api_key", "api_key_not_found", "unauthenticated"}
    | {"authentication_error", "authenticationerror", "invalid_authentication", "unauthorized"}
    | {"permission_error", "permission_denied", "permissiondenied", "access_denied", "forbidden"}
    | {"invalid_organization", "organization_restricted", "account_deactivated"}
)
_CREDIT_CODES = frozenset(
    {"insufficient_quota", "billing_error", "billing_not_active", "billing_hard_limit_reached"}
    | {"insufficient_balance", "insufficient_credits", "insufficient_funds", "payment_required"}
    | {"arrearage", "account_suspended", "account_deactivated", "access_terminated"}
)
_A_KEY = r"(?<![?&/\w])(?:api|subscription|secret)[ _-]?(?:key|token)s?\b"
_KEY_TEXT = re.compile(
    rf"{_A_KEY}.{{0,60}}\b(?:invalid|incorrect|expired|revoked|disabled|missing|required|unknown"
    rf"|not (?:valid|found|active|provided|set))"
    rf"|\b(?:invalid|incorrect|expired|revoked|missing|no|unknown|wrong|bad) {_A_KEY}"
    r"|credit balance|insufficient (?:account )?(?:credit|balance|fund)"
    r"|\b(?:account|billing)\b.{0,40}\b(?:not active|suspended|deactivated|overdue|past due)",
    re.IGNORECASE,
)
_CONTENT = re.compile(
    r"content[ _-]?(?:filter|policy|management)|moderation|flagged|responsible_?ai|safety"
    r"|data_?inspection",
    re.IGNORECASE,
)
"""Of an error about what the request says."""
_MODEL_CODES = frozenset(
    {"model_not_found", "invalid_model", "unknown_model", "deploymentnotfound", "modelnotfound"}
)
_MODEL_TEXT = re.compile(
    r"\bmodel\b.{0,200}\b(?:not (?:exist|found)|does ?n.t exist)"
    r"|\b(?:invalid|unknown|no such) model\b|not a valid model",
    re.IGNORECASE | re.DOTALL,
)
_ENDPOINT = re.compile(r"\bendpoint\b|\bv1/|not a chat model", re.IGNORECASE)
"""Of an error about a model that answers at another path."""
_QUOTED = re.compile(r"""(?<!\w)(["'`])(?:\\.|(?!\1(?!\w)).)*+(?:\1|$)""", re.DOTALL)
"""What an error quotes, such as the request that it is about: a client's words."""
_RESULTS = ("choices", "data", "output", "content", "results", "embeddings", "candidates")
_LONGEST_TEXT = 2000
_LONGEST_WORD = 60
_STREAM_FIELDS = (b"data:", b"event:", b":", b"id:", b"retry:")


REFUSED = "The upstream refuses requests of this gateway. Please tell the gateway's operator."
"""What clients get to read in place of a refusal."""


class Fault(NamedTuple):
    """Why a reply is no answer: ``text`` is for the log, ``message`` for clients."""

    reason: Reason
    text: str
    message: str
    of_model: bool = False


def fault_in(
    status: int,
    content_type: str,
    body: bytes,
    *,
    whole: bool,
    call: bool,
    own: bool,
    lists_model: bool = False,
) -> Fault | None:
    """Return why a reply that is no stream is no answer, None if it is one.

    ``body`` is its beginning, or the ``whole`` of it. ``call`` says that the request was a call,
    whose reply must be JSON. ``own`` says that the request had no credential of a client.
    ``lists_model`` says that the upstream lists the request's model.
    """
    parsed = parsed_or_none(body) if whole else None
    said: int | None = status
    if status >= HTTPStatus.BAD_REQUEST:
        error = error_of(parsed)
    else:
        if call or content_type == "text/html":
            what = _no_answer(content_type, body, parsed, whole=whole, call=call)
            if what is not None:
                text = f"it answered with {what} (status {status}); does its URL lead to an API?"
                message = f"The upstream sent {what} in place of an answer."
                return Fault(Reason.UPSTREAM_BROKE, text, message)
        error = error_alone(parsed)
        said = code_of(error)
        if error is None:
            return None
    if not own:
        return None
    words = [word for word in _words(error) if len(word) <= _LONGEST_WORD and word.isascii()]
    told = ", ".join((f"status {status}", *words))
    if call and lacks_model(said, error):
        if not (lists_model or said == HTTPStatus.FORBIDDEN):
            return None
        text = f"it refuses a model to the gateway ({told}); may its key use the model?"
        message = "The upstream refuses this model. Please tell the gateway's operator."
        return Fault(Reason.UPSTREAM_REFUSED, text, message, of_model=True)
    return refusal(told) if refuses_gateway(said, error) else None


def refusal(told: str) -> Fault:
    """Return the fault of an upstream that refuses the gateway; ``told`` is how it said so."""
    text = f"it refuses the key that the gateway has for it ({told}); are key and account good?"
    return Fault(Reason.UPSTREAM_REFUSED, text, REFUSED)


def _no_answer(
    content_type: str, body: bytes, parsed: Any, *, whole: bool, call: bool
) -> str | None:
    """Return what came in place of an answer, None if it may be one.

    Frameworks name plain texts and empty replies ``text/html``, too: only a call has to have more.
    """
    text = body.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not call and not text.startswith(b"<"):
        return None
    if not text:
        return "an empty reply" if whole else None
    if isinstance(parsed, dict | list) or text.startswith(_STREAM_FIELDS):
        return None
    if content_type == "text/html" or text.startswith(b"<"):
        return "a web page"
    if whole or not text.startswith((b"{", b"[")):
        return "a reply that is no JSON"
    return None


def parsed_or_none(body: bytes) -> Any:
    """Return what a JSON body stands for, None if it is no JSON. Servers also write NaN."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(body.decode("utf-8-sig", "replace"))
    except RecursionError:
        return {}
    except ValueError:
        return None


def error_of(parsed: Any) -> Any:
    """Return the error in the body of a reply, in whatever form; None if there is none."""
    match parsed:
        case [dict(first), *_]:
            return error_of(first)
        case {"error": dict(error)} if error:
            return error
        case {"error": str(text)} if text:
            return {**parsed, "message": text}
        case {"message": str()} | {"object": "error"} | {"type": "error"}:
            return parsed
        case {"detail": str(text)} | {"msg": str(text)} | {"error_msg": str(text)}:
            return {**parsed, "message": text}
        case {"detail": dict(error)}:
            return error
        case _:
            return None


def error_alone(parsed: Any, *, bare: bool = False) -> Any:
    """Return the error of a body that is nothing else, None if there is a result, too.

    With ``bare``, an empty result counts as a result, too. An object of the API, such as a job, may
    say in ``error`` why it failed: that is no error of the reply.
    """
    match parsed:
        case {"id": str(), "object": str(kind)} if kind != "error" and "choices" not in parsed:
            return None
    if isinstance(parsed, dict):
        results = (parsed[name] for name in _RESULTS if name in parsed)
        if any(bare or result for result in results):
            return None
    return error_of(parsed)


def code_of(error: Any) -> int | None:
    """Return the status that an error names."""
    for name in ("code", "status", "status_code"):
        code = error.get(name) if isinstance(error, dict) else None
        if isinstance(code, str) and code.isdecimal() and len(code) == len("400"):
            code = int(code)
        if isinstance(code, int) and 400 <= code < 600:
            return code
    return None


def _words(error: Any) -> list[str]:
    """Return the codes and types of an error, in one spelling."""
    if not isinstance(error, dict):
        return []
    details = error.get("details")
    inner = [error.get("innererror"), *(details if isinstance(details, list) else ())]
    values = [error.get(name) for name in ("code", "type", "status", "reason")]
    for one in inner:
        if isinstance(one, dict):
            values += [one.get("code"), one.get("reason")]
    texts = [value for value in values if isinstance(value, str)]
    return [re.sub(r"[ -]", "_", text).lower() for text in texts if re.fullmatch(r"[\w -]+", text)]


def _text(error: Any) -> str:
    text = error.get("message") if isinstance(error, dict) else error
    return text[:_LONGEST_TEXT] if isinstance(text, str) else ""


def _own_text(error: Any) -> str:
    """Return an error's text without what it quotes."""
    return _QUOTED.sub(" ", _text(error))


def _is_of_content(error: Any) -> bool:
    """Tell whether an error with status 403 is about what the request says."""
    is_marked = isinstance(error, dict) and isinstance(error.get("metadata"), dict)
    flagged = is_marked and not {"reasons", "flagged_input"}.isdisjoint(error["metadata"])
    return flagged or any(map(_CONTENT.search, [*_words(error), _text(error)]))


def refuses_gateway(status: int | None, error: Any) -> bool:
    """Tell whether an error refuses the gateway's own credential, account or credit."""
    words = _words(error)
    match status:
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.PAYMENT_REQUIRED:
            return True
        case HTTPStatus.FORBIDDEN:
            return not _is_of_content(error)
        case HTTPStatus.TOO_MANY_REQUESTS:  # a limit of requests may speak of billing, too
            return not _CREDIT_CODES.isdisjoint(words)
        case HTTPStatus.BAD_REQUEST | None:
            if any(map(_CONTENT.search, words)):
                return False
            codes = _KEY_CODES | _CREDIT_CODES
            return not codes.isdisjoint(words) or bool(_KEY_TEXT.search(_own_text(error)))
        case _:
            in_doubt = status >= HTTPStatus.INTERNAL_SERVER_ERROR
            return not in_doubt and not (_KEY_CODES | _CREDIT_CODES).isdisjoint(words)


def lacks_model(status: int | None, error: Any) -> bool:
    """Tell whether an error says that the upstream does not have the model."""
    named = not _MODEL_CODES.isdisjoint(_words(error))
    match status:
        case HTTPStatus.FORBIDDEN if _is_of_content(error):
            return False
        case HTTPStatus.NOT_FOUND | HTTPStatus.FORBIDDEN:
            of_model = isinstance(error, dict) and error.get("param") == "model"
            of_model = of_model or bool(re.search(r"\bmodels?\b", _text(error), re.IGNORECASE))
            return named or (of_model and not _ENDPOINT.search(_text(error)))
        case HTTPStatus.BAD_REQUEST | HTTPStatus.UNPROCESSABLE_ENTITY:
            return named or bool(_MODEL_TEXT.search(_own_text(error)))
        case _:
            return False
