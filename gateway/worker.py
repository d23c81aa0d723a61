"""One gateway worker process: serves the socket it is given until it is told to stop.

Started by the supervisor, which binds the socket so that a port in use is found at once and
several workers share it. Settings come as JSON in the environment: a command line is public.
"""

import argparse
import asyncio
import logging
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop
from aiohttp import web

from gateway.adapters.draining import END_CALLS, LAST_WORDS_SECONDS, Draining
from gateway.adapters.secret import SecretError
from gateway.adapters.secret_setting import SecretSettingError
from gateway.app import create_app
from gateway.core.access import KeyRingError
from gateway.process import WORKER_SETTINGS, configure_logging, log_stray, stop_event
from gateway.settings import Settings
from policies.parse import PolicyError

SHUTDOWN_SECONDS = 5.0


async def serve(
    settings: Settings, sock: socket.socket, *, semantic: Path | None, engine_required: bool
) -> None:
    """Serve until SIGTERM, SIGINT or the parent's end; answers in progress get some seconds."""
    asyncio.get_running_loop().set_exception_handler(log_stray)
    stop = stop_event()
    app = create_app(settings, semantic_socket=semantic, engine_required=engine_required)
    draining = Draining()
    app.middlewares.append(draining.middleware())

    async def drain(app: web.Application) -> None:
        await draining.wait(SHUTDOWN_SECONDS)
        await app[END_CALLS]()

    app.on_shutdown.append(drain)
    # Handlers are cancelled when their client is gone, and with them the upstream call.
    runner = web.AppRunner(
        app, access_log=None, handler_cancellation=True, shutdown_timeout=LAST_WORDS_SECONDS
    )
    await runner.setup()
    try:
        await web.SockSite(runner, sock, backlog=2048).start()
        await stop.wait()
    finally:
        await runner.cleanup()


def main(argv: Sequence[str] | None = None) -> int:
    """Run a worker; return its exit code."""
    parser = argparse.ArgumentParser(prog="gateway.worker", description=__doc__)
    parser.add_argument("--socket-fd", type=int, required=True)
    parser.add_argument("--semantic-socket", type=Path)
    parser.add_argument("--engine-required", action="store_true")
    options = parser.parse_args(argv)
    settings = Settings.model_validate_json(os.environ[WORKER_SETTINGS])
    configure_logging(settings.log_level)
    # It logs what it cannot parse, header lines with keys among them; faults of ours are logged
    # by the handlers.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    sock = socket.socket(fileno=options.socket_fd)
    try:
        uvloop.run(
            serve(
                settings,
                sock,
                semantic=options.semantic_socket,
                engine_required=options.engine_required,
            )
        )
    except (PolicyError, KeyRingError, SecretSettingError) as error:
        print(f"refrain: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except (OSError, SecretError) as error:
        print(f"refrain: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
