"""POST /v1/chat/completions."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from backend.server.protocol.fields import combination, only
from backend.server.protocol.generation import ChatLogprobFields, CompletionFields, ResponseFormat
from backend.server.protocol.messages import (
    AnyMessage,
    NamedChoice,
    TemplateFields,
    ToolChoice,
    Tools,
    check_choice,
    check_order,
)


class ChatRequest(CompletionFields, ChatLogprobFields, TemplateFields):
    """POST /v1/chat/completions."""

    messages: Annotated[list[AnyMessage], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    # The template writes the special tokens.
    add_special_tokens: Annotated[Any, only(False)] = None
    functions: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only("none", "auto")] = None
    modalities: Annotated[Any, only(["text"])] = None
    audio: Annotated[Any, only()] = None
    reasoning_effort: Annotated[Any, only("none")] = None
    verbosity: Annotated[Any, only("medium")] = None
    web_search_options: Annotated[Any, only()] = None
    moderation: Annotated[Any, only()] = None

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise combination(
                "'max_tokens' and 'max_completion_tokens' cannot be set at the same time.",
                "max_tokens",
            )
        self.check_min_tokens(self.most_tokens)
        return self

    @model_validator(mode="after")
    def _calls_belong_together(self) -> Self:
        check_order(self.messages)
        choice = self.tool_choice
        check_choice(
            (tool.function.name for tool in self.tools or ()),
            demanded=choice == "required",
            named=choice.function.name if isinstance(choice, NamedChoice) else None,
        )
        return self

    @property
    def most_tokens(self) -> int | None:
        """The limit, under whichever name."""
        return self.max_completion_tokens or self.max_tokens
