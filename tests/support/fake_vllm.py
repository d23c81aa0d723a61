"""``vllm serve MODEL --port P`` as far as a recipe needs it: answers, and a prefix cache."""

import argparse
from itertools import takewhile

import orjson
from aiohttp import web

from scripted_upstream import completion

_prompts: list[str] = []


def _shared(one: str, other: str) -> int:
    """Return for how many characters two prompts are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


async def _chat(request: web.Request) -> web.Response:
    body = orjson.loads(await request.read())
    prompt = body.get("cache_salt", "") + "".join(turn["content"] for turn in body["messages"])
    found = max((_shared(prompt, each) for each in _prompts), default=0)
    _prompts.append(prompt)
    usage = {
        "prompt_tokens": len(prompt) // 4,
        "completion_tokens": 3,
        "total_tokens": len(prompt) // 4 + 3,
        "prompt_tokens_details": {"cached_tokens": found // 64 * 16},
    }
    return web.json_response(completion("Oil it well.", model=body["model"], usage=usage))


def main() -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--port", type=int)
    parser.add_argument("--enable-prompt-tokens-details", action="store_true")
    options = parser.parse_args()

    async def models(_request: web.Request) -> web.Response:
        listed = {"id": options.model, "object": "model", "created": 0, "owned_by": "vllm"}
        return web.json_response({"object": "list", "data": [listed]})

    async def health(_request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/chat/completions", _chat)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/health", health)
    web.run_app(app, host="127.0.0.1", port=options.port, print=None)


if __name__ == "__main__":
    main()
