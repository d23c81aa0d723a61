"""POST /v1/completions."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from backend.server.protocol.fields import combination, only
from backend.server.protocol.generation import MAX_CHOICES, CompletionFields
from backend.server.protocol.messages import Prompt, each_of

_MAX_CHOICES_IN_ALL = 2_048
"""Of all prompts of a request; each has state of its own from the beginning."""

_MAX_TOKENS = 16
"""OpenAI's default for completions; chat has none."""


class CompletionRequest(CompletionFields):
    """POST /v1/completions."""

    prompt: Prompt
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    suffix: Annotated[Any, only("")] = None
    add_special_tokens: Annotated[Any, only(True)] = None

    @property
    def most_tokens(self) -> int:
        """The limit, OpenAI's where none is said."""
        return _MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        """One element for each prompt: text, or tokens."""
        return each_of(self.prompt)

    @model_validator(mode="after")
    def _best_of_takes_no_choice(self) -> Self:
        # The best of more than are returned would need them compared.
        choices = self.n or 1
        if self.best_of is not None and self.best_of < choices:
            raise combination(
                f"'best_of' must be greater than or equal to 'n', but is {self.best_of} where 'n' "
                f"is {choices}.",
                "best_of",
            )
        if self.best_of is not None and self.best_of > choices:
            raise PydanticCustomError(
                "unsupported_parameter", "", {"param": "best_of", "neutral": (choices,)}
            )
        self.check_min_tokens(self.most_tokens)
        return self

    @model_validator(mode="after")
    def _choices_have_room(self) -> Self:
        choices = len(self.prompts) * (self.n or 1)
        if choices > _MAX_CHOICES_IN_ALL:
            raise combination(
                f"'n' choices for each prompt are {choices} in all, of which "
                f"{_MAX_CHOICES_IN_ALL} are allowed.",
                "n",
            )
        return self
