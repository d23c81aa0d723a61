"""Plain replies."""

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web


def json_response(
    body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return ``body`` as JSON."""
    return web.Response(
        body=orjson.dumps(body), status=status, headers=headers, content_type="application/json"
    )
