"""A stand-in for the engine's process that needs no torch: it speaks the wire, and obeys its model.

The "model" is what it does: ``refuse`` and ``die`` while loading, ``hang`` for ever instead of
stopping, ``serve`` otherwise. A prompt's first token is repeated as the answer; a request for no
end (``max_tokens`` None) gets one token and no more.
"""

import os
import signal
import socket
import sys
import time
from pathlib import Path

from backend.core.types import FinishReason, TokenDelta
from backend.runtime.messages import (
    Abort,
    EngineDescription,
    EngineOptions,
    Loaded,
    LoadFailed,
    Loading,
    Report,
    Stop,
    Submit,
)
from backend.runtime.wire import PeerGoneError, SocketEndpoint


def answer(message):
    token, wanted = message.request.prompt_tokens[0], message.request.sampling.max_tokens
    if wanted is None:
        return [(message.number, TokenDelta(0, (token,)))]
    return [(message.number, TokenDelta(0, (token,) * wanted, finish_reason=FinishReason.LENGTH))]


def serve(endpoint):
    while True:
        for message in endpoint.receive(wait=True):
            match message:
                case Submit():
                    endpoint.send(Report(answer(message)))
                case Abort():
                    print("abort", message.number, file=sys.stderr, flush=True)
                case Stop():
                    return


def main():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    endpoint = SocketEndpoint(socket.socket(fileno=int(sys.argv[1])))
    options = endpoint.await_message(EngineOptions)
    model = options.model
    if Path(model).is_file():  # so that a test can change what the next one does
        model = Path(model).read_text()
    endpoint.tell(Loading(f"trying to {model}"))
    if model == "refuse":
        endpoint.tell(LoadFailed("the weights are missing"))
        return
    if model == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    endpoint.tell(Loaded(EngineDescription("nowhere", 100, 50)))
    try:
        serve(endpoint)
    except PeerGoneError:
        return
    while model == "hang":
        time.sleep(60)


if __name__ == "__main__":
    main()
