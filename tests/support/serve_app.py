"""One gateway in a process of its own, to be killed: prints its URL."""

import asyncio
import sys
from pathlib import Path

from gateway.app import create_app
from gateway.settings import Settings
from running_gateway import start_app


async def _serve(upstream: str, store: str, data_dir: str) -> None:
    settings = Settings(upstream=(upstream,), store=store, data_dir=Path(data_dir))
    _, url = await start_app(create_app(settings, semantic_socket=None))
    print(url, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
