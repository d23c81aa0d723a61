"""A process of its own in which Triton's interpreter runs kernels on CPU tensors.

Whether kernels are compiled or interpreted is decided when they are imported, once for a process;
so tests keep their own process free of it and send calls to this one.
"""

import importlib
import io
import multiprocessing
import os
import traceback
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch


def _serve(connection: Connection, paths: list[str]) -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    import sys

    sys.path[:] = paths
    torch.set_num_threads(1)
    _patch_once()
    while True:
        try:
            name, arguments, options = _unpacked(connection.recv_bytes())
        except EOFError:
            return
        try:
            module, _, function = name.partition(":")
            result = getattr(importlib.import_module(module), function)(*arguments, **options)
            outcome = True, (result, arguments)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is sent back)
            outcome = False, (type(error).__name__, str(error), traceback.format_exc())
        connection.send_bytes(_packed(outcome))


def _packed(message: Any) -> bytes:
    """Pickle by torch, which alone knows how tensors of 8 bits are read again."""
    buffer = io.BytesIO()
    torch.save(message, buffer)
    return buffer.getvalue()


def _unpacked(message: bytes) -> Any:
    return torch.load(io.BytesIO(message), weights_only=False)


def _patch_once() -> None:
    """Take two fifths off: the interpreter patches Triton's language anew at every inner call."""
    from triton.runtime import interpreter

    patch = getattr(interpreter, "_patch_lang", None)
    if patch is None:
        return
    patched: set[int] = set()

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        language = id(self.fn.__globals__)
        if language not in patched:
            patch(self.fn)
            patched.add(language)
        return self.rewrite()(*arguments, **options)

    interpreter.InterpretedFunction.__call__ = call


class Interpreter:
    """Calls functions there; tensors are copied both ways."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __call__(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call ``module:function`` and return its result; RuntimeError tells what it raised."""
        return self.changing(name, *arguments, **options)[0]

    def changing(self, name: str, *arguments: Any, **options: Any) -> tuple[Any, tuple[Any, ...]]:
        """Call and return the result and the arguments as the call left them."""
        self._connection.send_bytes(_packed((name, arguments, options)))
        if not self._connection.poll(60):
            raise TimeoutError(f"{name} took longer than a minute")
        succeeded, outcome = _unpacked(self._connection.recv_bytes())
        if not succeeded:
            kind, text, trace = outcome
            raise RuntimeError(f"{kind}: {text}") from RuntimeError(trace)
        return outcome


@pytest.fixture(scope="session")
def interpreter():
    """Start the process once for all tests of a session."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    import sys

    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, sys.path), daemon=True)
    process.start()
    theirs.close()
    yield Interpreter(ours)
    ours.close()
    process.join(10)
    if process.is_alive():
        process.kill()
