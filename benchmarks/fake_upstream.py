"""An upstream that answers every chat request at once with a text of some length."""

import sys

import orjson
import uvloop
from aiohttp import web


def application(words: int) -> web.Application:
    """Return an upstream whose answers have ``words`` words."""
    result = {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "bench",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "answer " * words},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 20, "completion_tokens": words, "total_tokens": 20 + words},
    }

    async def handle(_request: web.Request) -> web.Response:
        return web.Response(body=orjson.dumps(result), content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    return app


def main() -> None:
    """Serve on the port given until killed."""
    uvloop.install()
    web.run_app(
        application(120), host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=None
    )


if __name__ == "__main__":
    main()
