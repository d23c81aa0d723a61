"""Ask the upstream for usage on every stream, so that its figures are known on every wire."""

import json
from typing import Any

import orjson


def ask_for_usage(body: dict[str, Any], raw: bytes) -> tuple[bytes, bool]:
    """Return the body to forward, and whether usage is to be stripped from the reply.

    Only ``stream_options.include_usage`` is added, where the client streams and did not ask for
    it. Its bytes are kept, but where it sent other stream options: then the body, as it was
    parsed, is printed anew.
    """
    if body.get("stream") is not True:
        return raw, False
    options = body.get("stream_options")
    if options is None and "stream_options" not in body:
        end = raw.rindex(b"}")
        return raw[:end] + b',"stream_options":{"include_usage":true}' + raw[end:], True
    if isinstance(options, dict) and options.get("include_usage") is True:
        return raw, False
    asked = {**body, "stream_options": {**(options or {}), "include_usage": True}}
    try:
        return orjson.dumps(asked), True
    except TypeError:  # an integer of more than 64 bits
        return json.dumps(asked).encode(), True


def tokens_used(result: dict[str, Any]) -> int:
    """Return what a complete result cost, prompt and answer, by its usage; 0 where it says none."""
    match result.get("usage"):
        case {"prompt_tokens": int(prompt), "completion_tokens": int(completion)}:
            return max(0, prompt) + max(0, completion)
        case {"input_tokens": int(prompt), "output_tokens": int(completion)}:
            return max(0, prompt) + max(0, completion)
        case {"prompt_tokens": int(prompt)}:  # embeddings
            return max(0, prompt)
        case _:
            return 0
