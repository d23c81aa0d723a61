"""A provider whose prefix cache works by marks, as Anthropic's does behind an OpenAI-style API."""

from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from scripted_upstream import completion

MOST_MARKS = 4
LEAST_TOKENS = 1024
LOOKED_BACK = 20
"""Ends of parts before a mark at which something kept is looked for."""


@dataclass
class CachingProvider:
    """Refuses a fifth mark and marks on blank texts; keeps what stands before a mark, if long."""

    kept: set[bytes] = field(default_factory=set)

    async def answer(self, _request: web.Request, body: dict[str, Any]) -> web.Response:
        """Answer as a ``ScriptedUpstream`` does, with usage that tells of the cache."""
        read = orjson.dumps(body.get("tools") or [])
        ends: list[bytes] = []
        marked: list[int] = []
        for turn in body["messages"]:
            content = turn["content"]
            parts = [{"text": content}] if isinstance(content, str) else content
            for part in parts:
                read += orjson.dumps([turn["role"], part["text"]])
                ends.append(read)
                if "cache_control" in part:
                    if not part["text"].strip():
                        return _refused("cache_control cannot be set for empty text blocks")
                    marked.append(len(ends))
        if len(marked) > MOST_MARKS:
            return _refused(f"A maximum of 4 blocks may be marked. Found {len(marked)}.")
        looked_at = {end for place in marked for end in ends[max(0, place - LOOKED_BACK) : place]}
        found = max((len(each) // 4 for each in looked_at & self.kept), default=0)
        long_enough = [ends[n - 1] for n in marked if len(ends[n - 1]) // 4 >= LEAST_TOKENS]
        written = max((len(each) // 4 for each in long_enough), default=0) - found
        self.kept.update(long_enough)
        details = {"cached_tokens": found, "cache_write_tokens": written}
        usage = {
            "prompt_tokens": len(read) // 4,
            "completion_tokens": 1,
            "total_tokens": len(read) // 4 + 1,
            "prompt_tokens_details": details,
        }
        return web.json_response(completion("yes", usage=usage))


def _refused(message: str) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return web.json_response({"error": error}, status=400)
