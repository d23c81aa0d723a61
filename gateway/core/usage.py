"""Ask the upstream for usage on every stream, so that its figures are known on every wire."""

import json
from typing import Any

import orjson


def ask_for_usage(body: dict[str, Any], raw: bytes) -> tuple[bytes, bool]:
    """Return the body to forward, and whether usage is to be stripped from the reply.

    The client's bytes are kept: only ``stream_options.include_usage`` is added where it streams
    and did not ask for it.
    """
    if body.get("stream") is not True:
        return raw, False
    options = body.get("stream_options")
    if options is None and "stream_options" not in body:
        text = raw.rstrip()
        return text[:-1] + b',"stream_options":{"include_usage":true}}', True
    if isinstance(options, dict) and options.get("include_usage") is True:
        return raw, False
    asked = {**body, "stream_options": {**(options or {}), "include_usage": True}}
    try:
        return orjson.dumps(asked), True
    except TypeError:  # an integer of more than 64 bits
        return json.dumps(asked).encode(), True
