"""The length of a prompt, and the token usage that an upstream reports.

The length is an estimate without the model's tokenizer, to be bounded and not billed: a token for
every four UTF-8 bytes of text, as English takes; each of a prompt given as token numbers; and one
figure for every image, sound or file, whatever its size.

Law: of an upstream's usage only whole numbers from 0 count. What it does not say is None, and so is
what only the gateway has estimated in its place.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from gateway.protocol.endpoints.registry import SPECS
from gateway.protocol.errors import PromptTooLongError
from gateway.protocol.request import CacheRequest
from policies.decision import Endpoint

BYTES_A_TOKEN = 4
ATTACHMENT_TOKENS = 765
"""Tokens of an image of 1024 by 1024 at high detail."""

_ATTACHMENTS = frozenset(
    {"image_url", "input_image", "input_audio", "file", "input_file", "video_url", "audio_url"}
    | {"base64"}  # the source of Anthropic's images and documents
)
_NO_TEXT = _ATTACHMENTS | {"type", "data", "file_data", "file_id", "file_url", "media_type"}
"""Members of an attachment that are no text. Any other member may be read as one."""


_DATA_URL = ";base64,"
_LONGEST_TYPE = 128


def refuse_long_prompt(request: CacheRequest, most: int) -> None:
    """Raise PromptTooLongError for a prompt of more than ``most`` tokens."""
    if (tokens := asked_tokens(request)) > most:
        names = SPECS[request.endpoint].prompt_fields[::-1]
        param = next((name for name in names if name in request.asked), None)
        raise PromptTooLongError(tokens, most, param)


def asked_tokens(request: CacheRequest) -> int:
    """Estimate the tokens of a request's prompt.

    How a server reads an odd one is not known, so names and numbers count as text, too.
    """
    return prompt_tokens(request.endpoint, request.asked, whole=request.odd is not None)


def prompt_tokens(endpoint: Endpoint, body: dict[str, Any], *, whole: bool = False) -> int:
    """Estimate the tokens of all that the upstream may read of a request."""
    spec = SPECS[endpoint]
    unread = spec.unread
    values = [value for field, value in body.items() if field not in unread]
    return _count_tokens(body.get(spec.question_field)) + text_tokens(values, whole=whole)


def text_tokens(values: Iterable[Any], *, data_urls: bool = False, whole: bool = False) -> int:
    """Estimate the tokens of all texts in JSON values; ``data_urls`` count as attachments.

    With ``whole``, names of members and numbers count as text.
    """
    stack: list[Any] = list(values)
    tokens = size = 0
    while stack:
        match stack.pop():
            case str() as text:
                if data_urls and text.startswith("data:") and _DATA_URL in text[:_LONGEST_TYPE]:
                    tokens += ATTACHMENT_TOKENS
                else:
                    size += (
                        len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
                    )
            case {"type": str(kind)} as members if kind in _ATTACHMENTS:
                tokens += ATTACHMENT_TOKENS
                stack.extend(value for name, value in members.items() if name not in _NO_TEXT)
            case dict() as members:
                stack.extend(members.values())
                if whole:
                    stack.extend(members)
            case list() as items:
                stack.extend(items)
            case int() | float() as number if whole:
                size += len(str(number))
    return tokens + tokens_in(size)


def tokens_in(size: int) -> int:
    """Estimate the tokens of ``size`` bytes of text."""
    return -(-size // BYTES_A_TOKEN)


def _count_tokens(prompt: Any) -> int:
    if not isinstance(prompt, list):
        return 0
    return sum(1 if isinstance(item, int) else _count_tokens(item) for item in prompt)


class PromptUsage(NamedTuple):
    """Tokens of one call: of ``prompt``, ``cached`` were in a cache and ``written`` put there."""

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None
    written: int | None = None


NOTHING_SAID = PromptUsage()
_MOST_TOKENS = 2**53


def prompt_usage(usage: Any) -> PromptUsage:
    """Read the ``usage`` of an answer."""
    if not isinstance(usage, dict) or usage.get("estimated") is True:
        return NOTHING_SAID
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    details = details or usage.get("input_token_details")  # the realtime API's
    if not isinstance(details, dict):
        details = {}
    read = _first(usage.get("cache_read_input_tokens"))  # Anthropic's
    made = _first(usage.get("cache_creation_input_tokens"))
    cached = _first(
        details.get("cached_tokens"),  # OpenAI's
        read,
        usage.get("prompt_cache_hit_tokens"),  # DeepSeek's
    )
    written = _first(details.get("cache_write_tokens"), made)
    prompt = _first(usage.get("prompt_tokens"))
    if prompt is None and (prompt := _first(usage.get("input_tokens"))) is not None and not details:
        prompt += (read or 0) + (made or 0)  # Anthropic counts them apart
    completion = _first(usage.get("completion_tokens"), usage.get("output_tokens"))
    return PromptUsage(prompt, completion, cached, written)


def _first(*values: Any) -> int | None:
    for each in values:
        if type(each) is int and 0 <= each < _MOST_TOKENS:
            return each
    return None
