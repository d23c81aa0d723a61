"""How long a prompt is, in tokens, without the model's tokenizer.

An estimate, to be bounded and not billed: a token for every four UTF-8 bytes of text, which is
what English takes; each of a prompt given as token numbers; and one figure for every image, sound
or file, whatever its size.
"""

from typing import Any

from gateway.protocol.endpoint import Endpoint
from gateway.protocol.errors import PromptTooLongError
from gateway.protocol.fields import neutral_fields

BYTES_A_TOKEN = 4
ATTACHMENT_TOKENS = 765
"""What an image of 1024 by 1024 takes at high detail."""

_ATTACHMENTS = frozenset(
    {"image_url", "input_image", "input_audio", "file", "input_file", "video_url", "audio_url"}
)
_TOKEN_FIELDS = ("prompt", "input")
_PROMPT_FIELDS = ("messages", *_TOKEN_FIELDS)


def refuse_long_prompt(endpoint: Endpoint, body: dict[str, Any], most: int | None) -> None:
    """Raise PromptTooLongError for a prompt of more than ``most`` tokens; None: any."""
    if most is not None and (tokens := prompt_tokens(endpoint, body)) > most:
        param = next((name for name in _PROMPT_FIELDS if name in body), None)
        raise PromptTooLongError(tokens, most, param)


def prompt_tokens(endpoint: Endpoint, body: dict[str, Any]) -> int:
    """Estimate the tokens of all that the upstream may read of a request."""
    unread = neutral_fields(endpoint) | {"model"}
    stack: list[Any] = [value for field, value in body.items() if field not in unread]
    tokens = sum(_count_tokens(body.get(field)) for field in _TOKEN_FIELDS)
    size = 0
    while stack:
        match stack.pop():
            case str() as text:
                size += len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
            case {"type": str(kind)} if kind in _ATTACHMENTS:
                tokens += ATTACHMENT_TOKENS
            case dict() as members:
                stack.extend(members.values())
            case list() as items:
                stack.extend(items)
    return tokens + -(-size // BYTES_A_TOKEN)


def _count_tokens(prompt: Any) -> int:
    """Count the token numbers of a prompt, or of several."""
    if not isinstance(prompt, list):
        return 0
    return sum(1 if isinstance(item, int) else _count_tokens(item) for item in prompt)
