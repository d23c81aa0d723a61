"""The engine's own process: loads the model, runs the loop, and never outlives its parent.

Started by ``engine_host`` as ``python -m backend.engine.process FD``; FD is one end of a
socket pair. Whatever closes the other end, ``kill -9`` of the parent included, ends this process at
once, in the middle of a step or of a load. Signals meant for a terminal's or a service's whole
group are the parent's to act on, so they are ignored here.
"""

import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence

from backend.engine.messages import Loaded, LoadFailed, Loading
from backend.engine.wire import PeerGoneError, SocketEndpoint
from backend.models.config import ModelLoadError
from backend.process import configure_logging
from backend.settings import EngineOptions

logger = logging.getLogger(__name__)

STATS_SECONDS = 0.1
"""Figures are as old as this while the engine works, and fresh when it has nothing to do."""


def main(argv: Sequence[str]) -> int:
    """Run on the socket whose descriptor is ``argv[0]``; return when told to stop."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    configure_logging()
    sock = socket.socket(fileno=int(argv[0]))
    endpoint = SocketEndpoint(sock)
    threading.Thread(target=_end_with_parent, args=(sock,), name="parent", daemon=True).start()
    try:
        return _serve(endpoint, endpoint.await_message(EngineOptions))
    except PeerGoneError:
        return 1


def _end_with_parent(sock: socket.socket) -> None:
    poller = select.poll()
    poller.register(sock, 0)  # that the other end is closed is told whether asked for or not
    poller.poll()
    os._exit(1)


def _serve(endpoint: SocketEndpoint, options: EngineOptions) -> int:
    try:
        endpoint.tell(Loading("importing torch"))
        from backend.engine.loop import EngineLoop  # noqa: PLC0415  # seconds
        from backend.executor.model_loader import load_model  # noqa: PLC0415

        loaded = load_model(options, lambda stage: endpoint.tell(Loading(stage)))
        endpoint.tell(Loading("taking the first step"))
        loaded.core.warm_up()
    except ModelLoadError as error:
        endpoint.tell(LoadFailed(str(error)))
        return 1
    except PeerGoneError:
        raise
    except Exception as error:
        logger.exception("the engine cannot start")
        endpoint.tell(LoadFailed(f"{type(error).__name__}: {error}"))
        return 1
    endpoint.tell(Loaded(loaded.description))
    code = 0
    try:
        EngineLoop(loaded.core, endpoint, stats_seconds=STATS_SECONDS).run()
    except PeerGoneError:
        code = 1
    except Exception:
        logger.exception("the engine's loop ended")
        code = 1
    # There is nothing to save; taking torch down in order takes a second, or for ever after a
    # device was lost.
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
