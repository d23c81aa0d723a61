"""How tokens are chosen, as both endpoints say it: OpenAI's parameters and vLLM's extra ones."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from backend.server.fields import Closed, Strict, combination, one_of

MAX_CHOICES = 128
MOST_TOKENS_NAMED = 1_024
"""Of ``logit_bias`` and ``stop_token_ids`` each: every change of the batch goes through them."""

_INT64_MAX = 2**63 - 1
_TOKEN_ID = Annotated[int, Field(ge=0)]

Stop = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[list[str], Field(max_length=4), Tag("<strings>")],
    one_of("one of a string or an array of strings", string=str, strings=list),
]


def _token_ids(bias: dict[str, float]) -> dict[str, float]:
    if len(bias) > MOST_TOKENS_NAMED:
        problem = (
            f"Invalid 'logit_bias': too many tokens. Expected at most {MOST_TOKENS_NAMED}, but got "
            f"{len(bias)} instead."
        )
        raise PydanticCustomError(
            "disorder", "{problem}", {"problem": problem, "param": "logit_bias"}
        )
    for key in bias:
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise PydanticCustomError("invalid_key", "", {"param": "logit_bias", "key": key})
    return bias


class SamplingFields(Closed):
    """Parameters of sampling."""

    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    # -1 is other servers' way to say 0: no limit.
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], AfterValidator(_token_ids)]
        | None
    ) = None
    seed: Annotated[int, Field(ge=-_INT64_MAX - 1, le=_INT64_MAX)] | None = None
    stop: Stop | None = None
    stop_token_ids: Annotated[list[_TOKEN_ID], Field(max_length=MOST_TOKENS_NAMED)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings, however they were written."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def token_biases(self) -> tuple[tuple[int, float], ...]:
        """What is added to which token's logit."""
        bias = {int(token): value for token, value in (self.logit_bias or {}).items()}
        return tuple(bias.items())

    def check_min_tokens(self, most: int | None) -> None:
        """Raise where more tokens are wanted at least than at ``most``."""
        if self.min_tokens is not None and most is not None and self.min_tokens > most:
            raise combination(
                f"'min_tokens' is {self.min_tokens} and more than the {most} tokens that are "
                "allowed.",
                "min_tokens",
            )


class ChatLogprobFields(Strict):
    """Log probabilities, as chat asks for them."""

    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def wanted_logprobs(self) -> int | None:
        """How many of the likeliest to report beside the chosen token; None: not even that."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> Self:
        # 0 asks for nothing, so clients that always send it are let through.
        if self.top_logprobs and not self.logprobs:
            raise combination(
                "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.",
                "top_logprobs",
            )
        return self
