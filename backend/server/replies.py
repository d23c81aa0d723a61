"""What replies look like: OpenAI's objects for chat and completions, whole and in chunks. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from backend.scheduler.request import FinishReason, TokenLogprobs
from backend.server.logprob_replies import (
    EchoedPrompt,
    Spell,
    chat_logprobs,
    completion_logprobs,
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of all prompts, each counted once, and of all choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Of the prompts, found in the prefix cache."""

    def body(self) -> dict[str, Any]:
        """Return OpenAI's usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, slots=True)
class FinishedChoice:
    """One whole continuation."""

    text: str
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Head:
    """What all chunks of a reply share; ``created`` in seconds since the epoch."""

    id: str
    model: str
    created: int

    def body(self, kind: str, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return a reply or chunk of ``kind`` without usage."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


Logprobs = Sequence[TokenLogprobs]


class ReplyForm(Protocol):
    """How one endpoint writes choices."""

    @property
    def whole_kind(self) -> str:
        """The ``object`` of a plain reply."""
        ...

    @property
    def chunk_kind(self) -> str:
        """The ``object`` of a chunk."""
        ...

    def whole(self, index: int, choice: FinishedChoice) -> dict[str, Any]:
        """Return a choice of a plain reply."""
        ...

    def opening(self, index: int, prompt: Logprobs) -> dict[str, Any] | None:
        """Return what precedes a choice's text in a stream, if anything does.

        ``prompt`` are log probabilities of the prompt, where they were asked for.
        """
        ...

    def text(self, index: int, text: str, logprobs: Logprobs) -> list[dict[str, Any]]:
        """Return choices of chunks with new text."""
        ...

    def finish(self, index: int, reason: FinishReason) -> list[dict[str, Any]]:
        """Return a choice's last chunks."""
        ...


@dataclass(frozen=True, slots=True)
class ChatForm:
    """/v1/chat/completions. ``spell`` is given where log probabilities are wanted."""

    spell: Spell | None = None
    whole_kind: str = "chat.completion"
    chunk_kind: str = "chat.completion.chunk"

    def whole(self, index: int, choice: FinishedChoice) -> dict[str, Any]:
        """See ReplyForm."""
        return {
            "index": index,
            "message": {
                "role": "assistant",
                "content": choice.text,
                "refusal": None,
                "annotations": [],
            },
            "logprobs": chat_logprobs(choice.logprobs, self.spell) if self.spell else None,
            "finish_reason": choice.finish_reason.value,
        }

    def opening(self, index: int, prompt: Logprobs) -> dict[str, Any] | None:  # noqa: ARG002
        """Return the role."""
        return self._chunk(index, {"role": "assistant", "content": "", "refusal": None}, None)

    def text(self, index: int, text: str, logprobs: Logprobs) -> list[dict[str, Any]]:
        """See ReplyForm."""
        return [self.chunk(index, {"content": text}, logprobs)]

    def finish(self, index: int, reason: FinishReason) -> list[dict[str, Any]]:
        """See ReplyForm."""
        return [self._chunk(index, {}, reason.value)]

    def chunk(self, index: int, delta: dict[str, Any], logprobs: Logprobs) -> dict[str, Any]:
        """Return a choice of a chunk with ``delta``."""
        chunk = self._chunk(index, delta, None)
        return chunk | {"logprobs": chat_logprobs(logprobs, self.spell)} if self.spell else chunk

    @staticmethod
    def _chunk(index: int, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}


@dataclass(frozen=True, slots=True)
class CompletionForm:
    """/v1/completions. ``echo`` has the prompt that precedes each choice, or is empty.

    ``spell`` is given where log probabilities are wanted.
    """

    spell: Spell | None = None
    echo: tuple[EchoedPrompt, ...] = ()
    whole_kind: str = "text_completion"
    chunk_kind: str = "text_completion"

    def whole(self, index: int, choice: FinishedChoice) -> dict[str, Any]:
        """See ReplyForm."""
        text = self.echo[index].text + choice.text if self.echo else choice.text
        written = self._choice(index, text, choice.finish_reason.value)
        told = self._logprobs(index, choice.logprobs)
        if self.echo and self.spell is not None:
            prompt = self.echo[index].logprobs(choice.prompt_logprobs, self.spell)
            told = {"logprobs": {key: prompt[key] + told["logprobs"][key] for key in prompt}}
        return written | told

    def opening(self, index: int, prompt: Logprobs) -> dict[str, Any] | None:
        """Return the prompt, where it was asked to be echoed."""
        if not self.echo:
            return None
        written = self._choice(index, self.echo[index].text, None)
        if self.spell is None:
            return written
        return written | {"logprobs": self.echo[index].logprobs(prompt, self.spell)}

    def text(self, index: int, text: str, logprobs: Logprobs) -> list[dict[str, Any]]:
        """See ReplyForm."""
        return [self._choice(index, text, None) | self._logprobs(index, logprobs)]

    def finish(self, index: int, reason: FinishReason) -> list[dict[str, Any]]:
        """See ReplyForm."""
        return [self._choice(index, "", reason.value)]

    def _logprobs(self, index: int, logprobs: Logprobs) -> dict[str, Any]:
        if self.spell is None:
            return {}
        start = len(self.echo[index].text) if self.echo else 0
        return {"logprobs": completion_logprobs(logprobs, self.spell, start)}

    @staticmethod
    def _choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
        return {"text": text, "index": index, "logprobs": None, "finish_reason": reason}
