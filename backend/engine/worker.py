"""The engine's own process: loads a model and runs the loop on a socket.

The supervisor starts it as ``python -m backend.engine.worker FD``; FD is one end of a socket pair.
With a second argument it is another rank of such an engine, whose rank 0 is at the other end.
The process never outlives its parent: whatever closes the other end, ``kill -9`` of the parent
included, ends it at once, in the middle of a step or of a load. Signals meant for a terminal's or a
service's whole group are the parent's to act on, so they are ignored here.
"""

import logging
import os
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from backend.engine.messages import Ended, Loaded, LoadFailed, Loading
from backend.engine.ranks import Ranks, messages, send_reason
from backend.engine.wire import PeerGoneError, SocketEndpoint
from backend.models.config import ModelLoadError
from backend.process import configure_logging, end_with_parent
from backend.settings import EngineOptions

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Run on the socket whose descriptor is ``argv[0]``; return after a Stop."""
    end_with_parent(int(argv[0]))
    sock = socket.socket(fileno=int(argv[0]))
    if len(argv) > 1:
        return _be_rank(sock)
    endpoint = SocketEndpoint(sock)
    try:
        options = endpoint.await_message(EngineOptions)
        configure_logging(options.log_format)
        return _serve(endpoint, options)
    except PeerGoneError:
        return 1


def _serve(endpoint: SocketEndpoint, options: EngineOptions) -> int:
    try:
        ranks = None
        if options.tensor_parallel_size > 1:  # first of all, since they import torch too
            ranks = Ranks(options, lambda reason: endpoint.send_last(Ended(reason)))
        endpoint.send_now(Loading("importing torch"))
        from backend.engine.engine import STATS_SECONDS, EngineLoop  # noqa: PLC0415  # seconds
        from backend.engine.loading import load_model  # noqa: PLC0415  # seconds

        loaded = load_model(options, lambda stage: endpoint.send_now(Loading(stage)), ranks)
        endpoint.send_now(Loading("taking the first step"))
        loaded.core.warm_up()
    except ModelLoadError as error:
        endpoint.send_now(LoadFailed(str(error)))
        return 1
    except PeerGoneError:
        raise
    except Exception as error:
        logger.exception("the engine cannot start")
        endpoint.send_now(LoadFailed(f"{type(error).__name__}: {error}"))
        return 1
    endpoint.send_now(Loaded(loaded.description))
    code = 0
    try:
        EngineLoop(loaded.core, endpoint, stats_seconds=STATS_SECONDS, role=loaded.role).run()
        loaded.core.persist()
    except PeerGoneError:
        code = 1
    except Exception:
        logger.exception("the engine's loop ended")
        code = 1
    # There is nothing else to save; taking torch down in order takes a second, or for ever after a
    # device was lost.
    sys.stderr.flush()
    os._exit(code)


def _be_rank(sock: socket.socket) -> int:
    """Compute what rank 0 tells, until it is gone."""
    told = messages(sock.makefile("rb"))
    options, rank, shared = next(told)
    configure_logging(options.log_format)
    reason = ""
    try:
        from backend.engine.loading import load_runner  # noqa: PLC0415  # seconds
        from backend.executor.parallel import Group, follow  # noqa: PLC0415  # seconds

        def join(device: "torch.device") -> Group:
            return Group(rank, options.tensor_parallel_size, next(told), device, shared=shared)

        follow(load_runner(options, logger.debug, rank=rank, join=join).runner, told)
    except ModelLoadError as error:
        reason = str(error)
    except Exception as error:
        logger.exception("rank %d of %d failed", rank, options.tensor_parallel_size)
        reason = f"{type(error).__name__}: {error}"
    if reason:
        send_reason(sock, reason)
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
