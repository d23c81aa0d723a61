"""What the HTTP server needs from an engine and from its model's tokenizer."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

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

    def generate(self, request: GenerationRequest) -> AsyncGenerator[TextDelta, None]:
        """Yield deltas of all choices as they come.

        Closing the iterator early (``aclose``, or cancelling the task that consumes it) cancels
        the sequences and frees their blocks within one step. Raises RequestRejectedError before
        the first delta, and EngineError.
        """
        ...

    def stats(self) -> EngineStats:
        """Snapshot, callable from any thread."""
        ...


class PromptEncoder(Protocol):
    """Turns what clients write into tokens; callable from any thread."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the tokens of ``text``, with a beginning token if the model wants one."""
        ...

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
        """Return the prompt for ``messages``. Raises ValueError when they cannot be templated."""
        ...
