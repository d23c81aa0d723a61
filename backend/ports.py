"""What the HTTP server needs from an engine and from its model's tokenizer."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from backend.scheduler.request import GenerationRequest, TextDelta
from backend.scheduler.stats import EngineStats


class EngineError(Exception):
    """The engine failed this request through no fault of the client; others may go on."""


class RequestRejectedError(Exception):
    """The request can never run here, for example for a prompt longer than the context."""


class GrammarRejectedError(RequestRejectedError):
    """Nothing can be generated under the request's grammar; the text says why."""


class OverloadedError(Exception):
    """There is no room for the request now, and nothing was computed for it."""

    def __init__(self, message: str, retry_after: float) -> None:
        """``retry_after`` is a guess in seconds."""
        super().__init__(message, retry_after)
        self.message = message
        self.retry_after = retry_after

    def __str__(self) -> str:
        return self.message


class QueueFullError(OverloadedError):
    """As many wait already as may."""


class QueueTimeoutError(OverloadedError):
    """The request waited for as long as it may."""


class UnavailableError(EngineError):
    """There is no engine now, because it is being started or stopped."""


class BusyError(Exception):
    """Requests are open, so the engine cannot sleep."""


class Sleeper(Protocol):
    """Lets an engine give back its memory for a while."""

    @property
    def sleep_level(self) -> int:
        """0: it computes; 1: its weights are on the host, without a KV pool; 2: all is dropped."""

    async def sleep(self, level: int, patience: float) -> None:
        """Give memory back once no request is open, or raise BusyError after ``patience`` seconds.

        Raises UnavailableError where there is no engine to put to sleep.
        """

    async def wake(self) -> None:
        """Let the engine compute again. Raises UnavailableError where it does not come back."""


class Generator(Protocol):
    """Turns prompts into text deltas; one engine loop owns all state behind it."""

    @property
    def ready(self) -> bool:
        """Weights are loaded and one step has run."""

    @property
    def unready_reason(self) -> str:
        """Why it is not ready, for people; read only then."""

    @property
    def detail(self) -> tuple[str, ...]:
        """What was replaced because it does not compute as it should, for people."""

    @property
    def max_model_len(self) -> int:
        """Prompt and completion together, in tokens."""

    def generate(self, request: GenerationRequest) -> AsyncGenerator[TextDelta, None]:
        """Yield deltas of all choices as they come.

        Closing the iterator early (``aclose``, or cancelling the task that consumes it) cancels
        the sequences and frees their blocks within one step. Raises RequestRejectedError and
        OverloadedError before the first delta, UnavailableError, and EngineError.
        """

    def stats(self) -> EngineStats:
        """Snapshot, callable from any thread."""


class PromptEncoder(Protocol):
    """Turns what clients write into tokens; callable from any thread."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""

    def token_bytes(self, token: int) -> bytes:
        """Return the text of one token, a special one's name; empty where it has none."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the tokens of ``text``, with a beginning token if the model wants one."""

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ``tokens``; ids without a token have none."""

    def token_strings(self, tokens: Sequence[int]) -> list[str]:
        """Return each token as the vocabulary writes it, empty for ids without a token."""

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt for ``messages``. Raises ValueError when they cannot be templated.

        ``variables`` are what a client tells the template besides.
        """


@dataclass(frozen=True, slots=True)
class EmbeddingShape:
    """The longest input in tokens, the length of a vector, and shorter ones it may be cut to."""

    max_tokens: int
    dimensions: int
    shorter: frozenset[int] = frozenset()
    unit: bool = True
    """Whether vectors have length 1, cut or not."""


class Pair(tuple[int, ...]):  # noqa: SLOT001 - a tuple with more slots cannot be
    """The tokens of two texts as one input; ``types`` says of each token which text it is from."""

    types: tuple[int, ...] = ()
    """Empty where the model does not read them."""


EncodePairs = Callable[[Sequence[tuple[str, str]], bool], list[Pair]]
"""Turns pairs of texts into tokens, from any thread; True cuts what is longer than the context."""


class Embedder(Protocol):
    """Turns token sequences into vectors; many requests share its passes."""

    @property
    def ready(self) -> bool:
        """Whether it computes."""

    @property
    def shape(self) -> EmbeddingShape:
        """What it takes and makes."""

    @property
    def num_waiting(self) -> int:
        """Inputs that wait for a pass."""

    async def embed(self, inputs: Sequence[tuple[int, ...]]) -> list[bytes]:
        """Return each input's vector as packed little-endian float32.

        Cancelling gives up what has not been computed. Raises OverloadedError at once when too much
        waits, and EngineError.
        """
