"""What the HTTP server needs from an engine."""

from collections.abc import AsyncIterator
from typing import Protocol

from backend.core.types import EngineStats, GenerationRequest, TextDelta


class EngineError(Exception):
    """The engine failed this request through no fault of the client; others may go on."""


class RequestRejectedError(Exception):
    """The request can never run here, for example for a prompt longer than the context."""


class Generator(Protocol):
    """Turns prompts into text deltas; one engine loop owns all state behind it."""

    @property
    def ready(self) -> bool:
        """Weights are loaded and one step has run."""
        ...

    @property
    def max_model_len(self) -> int:
        """Prompt and completion together, in tokens."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncIterator[TextDelta]:
        """Yield deltas of all choices as they come.

        Closing the iterator early (``aclose``, or cancelling the task that consumes it) cancels
        the sequences and frees their blocks within one step. Raises RequestRejectedError before
        the first delta, and EngineError.
        """
        ...

    def stats(self) -> EngineStats:
        """Snapshot, callable from any thread."""
        ...
