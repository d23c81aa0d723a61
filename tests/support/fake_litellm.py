"""``litellm --config FILE --port P`` as far as a recipe needs it: models, and its own key."""

import argparse
import os
from pathlib import Path
from typing import Any

import orjson
import yaml
from aiohttp import ClientSession, web


def _value(setting: str) -> str:
    """Return a setting that may name a variable of the environment."""
    name = setting.removeprefix("os.environ/")
    return setting if name == setting else os.environ[name]


def _app(config: dict[str, Any]) -> web.Application:
    models = {each["model_name"]: each["litellm_params"] for each in config["model_list"]}
    key = _value(config["general_settings"]["master_key"])

    async def chat(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {key}":
            return web.Response(status=401)
        body = orjson.loads(await request.read())
        model = models[body["model"]]
        body["model"] = model["model"].removeprefix("openai/")
        headers = {"Authorization": f"Bearer {_value(model['api_key'])}"}
        url = f"{model['api_base']}/chat/completions"
        async with ClientSession() as session, session.post(url, json=body, headers=headers) as own:
            seen = {f"llm_provider-{name.lower()}": text for name, text in own.headers.items()}
            return web.Response(status=own.status, body=await own.read(), headers=seen)

    async def alive(_request: web.Request) -> web.Response:
        return web.json_response("I'm alive!")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/health/liveliness", alive)
    return app


def main() -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path)
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    config = yaml.safe_load(options.config.read_text())
    web.run_app(_app(config), host="127.0.0.1", port=options.port, print=None)


if __name__ == "__main__":
    main()
