"""How the chat template renders a conversation, in the fields of vLLM's and SGLang's clients."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from pydantic import AfterValidator, model_validator
from pydantic_core import PydanticCustomError

from backend.server.fields import Strict, combination

_RESERVED = frozenset(
    {
        *("messages", "tools", "add_generation_prompt", "continue_final_message"),
        *("chat_template", "tokenize"),
    }
)
"""What the server says to the template, or other servers to their tokenizer."""


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """``variables`` are seen by the template as they are."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)


DEFAULT_TEMPLATE = TemplateOptions()


def _check_names(variables: dict[str, Any]) -> dict[str, Any]:
    for name in sorted(_RESERVED & variables.keys()):
        problem = (
            f"Invalid key in 'chat_template_kwargs': '{name}' is not a variable of chat templates. "
            "Leave it out, or send it as a field of the request."
        )
        context = {"problem": problem, "param": "chat_template_kwargs"}
        raise PydanticCustomError("disorder", "{problem}", context)
    return variables


class TemplateVariables(Strict):
    """Variables for the template, such as ``enable_thinking``."""

    chat_template_kwargs: Annotated[dict[str, Any], AfterValidator(_check_names)] | None = None


class TemplateFields(TemplateVariables):
    """The variables, and where the rendered conversation ends."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def template(self) -> TemplateOptions:
        """What the chat template is told."""
        continues = self.continue_final_message is True
        return TemplateOptions(
            not continues and self.add_generation_prompt is not False,
            continues,
            self.chat_template_kwargs or {},
        )

    @model_validator(mode="after")
    def _one_ending(self) -> Self:
        if self.add_generation_prompt and self.continue_final_message:
            raise combination(
                "'add_generation_prompt' and 'continue_final_message' cannot both be true.",
                "continue_final_message",
            )
        return self
