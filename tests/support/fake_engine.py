"""A stand-in for the engine's process that needs no torch: it speaks the wire, and obeys its model.

The "model" is what it does: ``refuse``, ``die`` and ``freeze`` while loading, ``hang`` for ever
instead of stopping, ``dies awake`` when it is woken, ``serve`` otherwise. A prompt's first token is
repeated as the answer; a request for no end (``max_tokens`` None) gets one token and no more;
``STUCK`` is a step that never returns.
"""

import os
import signal
import socket
import sys
import time
from pathlib import Path

from backend.engine.messages import (
    Abort,
    Asleep,
    Awake,
    EngineDescription,
    Loaded,
    LoadFailed,
    Loading,
    Ping,
    Report,
    Sleep,
    Stop,
    Submit,
    Wake,
)
from backend.engine.wire import PeerGoneError, SocketEndpoint
from backend.scheduler.request import FinishReason, TokenDelta
from backend.settings import EngineOptions

STUCK = 26


def sleep():
    while True:
        time.sleep(60)


def answer(message):
    token, wanted = message.request.prompt_tokens[0], message.request.sampling.max_tokens
    if token == STUCK:
        sleep()
    if wanted is None:
        return [(message.number, TokenDelta(0, (token,)))]
    return [(message.number, TokenDelta(0, (token,) * wanted, finish_reason=FinishReason.LENGTH))]


def serve(endpoint, model):
    while True:
        for message in endpoint.receive(wait=True):
            match message:
                case Submit():
                    endpoint.send(Report(answer(message)))
                case Abort():
                    print("abort", message.number, file=sys.stderr, flush=True)
                case Ping():
                    endpoint.send(Report())
                case Sleep():
                    endpoint.send_now(Asleep())
                case Wake():
                    if model == "dies awake":
                        os.kill(os.getpid(), signal.SIGKILL)
                    endpoint.send_now(Awake())
                case Stop():
                    return


def main():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    endpoint = SocketEndpoint(socket.socket(fileno=int(sys.argv[1])))
    options = endpoint.await_message(EngineOptions)
    model = options.model
    if Path(model).is_file():  # so that a test can change what the next one does
        model = Path(model).read_text()
    endpoint.send_now(Loading(f"trying to {model}"))
    if model == "refuse":
        endpoint.send_now(LoadFailed("the weights are missing"))
        return
    if model == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if model == "freeze":
        sleep()
    endpoint.send_now(Loaded(EngineDescription(100, 50)))
    try:
        serve(endpoint, model)
    except PeerGoneError:
        return
    if model == "hang":
        sleep()


if __name__ == "__main__":
    main()
