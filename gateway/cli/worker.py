"""One gateway worker process: serves the socket it is given until it is stopped.

Started by the supervisor, which binds the socket so that a port in use is found at once and
several workers share it.
"""

import argparse
import asyncio
import gc
import logging
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop
from aiohttp import web

from gateway.app import END_CALLS, create_app
from gateway.cli.supervisor import WORKER_SETTINGS, stop_event
from gateway.cli.terminal import configure_logging, log_stray, say
from gateway.server.auth import KeyRingError
from gateway.server.http.handlers import refuse
from gateway.server.http.hot_connection import new_connection
from gateway.server.http.http_server import Runner
from gateway.server.http.middleware import STOPPING
from gateway.server.secrets import SecretError, SecretSettingError
from gateway.settings import Settings
from gateway.upstream.discovery import DiscoveryError
from gateway.upstream.pool.probes import GREET
from policies.format.load import PolicyError

LAST_WORDS_SECONDS = 0.5
"""Time for clients to read the last error, and then for requests still running."""


async def serve(
    settings: Settings,
    sock: socket.socket,
    *,
    semantic: Path | None,
    engine_required: bool,
    greets: bool = False,
) -> None:
    """Serve until SIGTERM, SIGINT or the parent's end; then finish the running requests.

    First ``/readyz`` says 503 for ``drain_delay`` seconds, so that load balancers send their
    requests elsewhere. Then the port is closed, and answers get ``drain_timeout`` seconds.
    ``greets`` says that this worker is the one that asks the upstreams how they are.
    """
    asyncio.get_running_loop().set_exception_handler(log_stray)
    stop = stop_event()
    app = create_app(settings, semantic_socket=semantic, engine_required=engine_required)
    # Handlers are cancelled when their client is gone, and with them the upstream call.
    runner = Runner(
        app, refuse, connection=new_connection(app), shutdown_timeout=LAST_WORDS_SECONDS
    )
    await runner.setup()
    try:
        site = web.SockSite(runner, sock, backlog=2048)
        await site.start()
        tune_collector()
        greeting = asyncio.ensure_future(app[GREET]()) if greets else None
        await stop.wait()
        if greeting is not None:
            greeting.cancel()
        app[STOPPING].set()
        await asyncio.sleep(settings.drain_delay)
        await site.stop()
        # Else the kernel still takes connections that no process accepts.
        sock.close()
        await runner.idle(settings.drain_timeout)
        # Clients that still wait for an upstream get an error, in the form that is right by then.
        await app[END_CALLS]()
        await runner.idle(LAST_WORDS_SECONDS)
    finally:
        await runner.cleanup()


def tune_collector() -> None:
    """Let the cyclic garbage collector leave alone what lives as long as the process.

    The objects of a request die by their reference counts; the default thresholds have the
    collector look at thousands of stored entries again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a worker; return its exit code."""
    parser = argparse.ArgumentParser(prog="gateway.cli.worker", description=__doc__)
    parser.add_argument("--socket-fd", type=int, required=True)
    parser.add_argument("--semantic-socket", type=Path)
    parser.add_argument("--engine-required", action="store_true")
    parser.add_argument("--greet-upstreams", action="store_true")
    options = parser.parse_args(argv)
    settings = Settings.model_validate_json(os.environ[WORKER_SETTINGS])
    configure_logging(settings.log_level, settings.log_format)
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
                greets=options.greet_upstreams,
            )
        )
    except (PolicyError, KeyRingError, SecretSettingError, DiscoveryError) as error:
        say(str(error))
        return 2
    except (OSError, SecretError) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
