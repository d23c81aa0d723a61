"""Which parsers read an answer: its reasoning first, then calls of functions."""

from collections.abc import Sequence
from dataclasses import dataclass

from backend.scheduler.request import Grammar, GrammarKind, ReasoningSpan
from backend.server.protocol.errors import invalid
from backend.server.protocol.messages import Function, FunctionName, ToolChoice
from backend.server.tool_parsers.families import FORMATS, ToolFormat, format_of, without_format
from backend.server.tool_parsers.reasoning import PromptEnd, ReasoningFormat
from backend.server.tool_parsers.streaming_json import ToolCallParser

__all__ = ["FORMATS", "AnswerFormat", "ToolFormat", "ToolUse", "format_of", "without_format"]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """``functions`` may be called, as the model's ``form`` has it; ``demanded``: one must be.

    ``several``: more than one call in an answer is wanted.
    """

    form: ToolFormat
    functions: tuple[Function, ...]
    positions: tuple[int, ...]
    """The places of ``functions`` among the tools that were sent."""
    demanded: bool
    several: bool
    parameters_at: str
    """Where in a tool a client says the schema of its arguments."""


def tool_use(
    functions: Sequence[Function],
    choice: ToolChoice,
    parallel: bool | None,
    form: ToolFormat | str,
    *,
    parameters_at: str,
) -> ToolUse | None:
    """Return what is allowed, None for no tools at all. Raises ApiError.

    ``form`` is the model's, or why it has none.
    """
    if not functions or choice == "none":
        return None
    if isinstance(form, str):
        problem = f"'tools' cannot be used with this model: {form}. Leave it out."
        raise invalid(f"Unsupported parameter: {problem}", "tools", "unsupported_parameter")
    positions = tuple(range(len(functions)))
    named = isinstance(choice, FunctionName)
    if isinstance(choice, FunctionName):
        positions = (next(at for at in positions if functions[at].name == choice.name),)
    return ToolUse(
        form,
        tuple(functions[at] for at in positions),
        positions,
        demanded=named or choice == "required",
        several=parallel is not False and not named,
        parameters_at=parameters_at,
    )


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How the text of an answer is read: its reasoning first, then calls of functions."""

    tools: ToolUse | None
    reasoning: ReasoningFormat | None
    prompt_end: PromptEnd

    @property
    def demanded(self) -> bool:
        """Whether a call can be cut short, but the answer never be anything else."""
        return self.tools is not None and self.tools.demanded

    @property
    def markup(self) -> tuple[str, ...]:
        """The tags that parsers read; a tokenizer may have special tokens for them."""
        tags = () if self.reasoning is None else self.reasoning.markup
        return tags if self.tools is None else (*tags, *self.tools.form.markup)

    @property
    def span(self) -> ReasoningSpan | None:
        """Where the reasoning stands."""
        return None if self.reasoning is None else self.reasoning.span(self.prompt_end)

    def parser(self, *, eager: bool) -> ToolCallParser | None:
        """Return fresh state for one choice, None where its text is the answer.

        ``CallReader`` says what ``eager`` means.
        """
        calls: ToolCallParser | None = None
        if (tools := self.tools) is not None:
            functions = {each.name: each.parameters or {} for each in tools.functions}
            calls = tools.form(functions, max_calls=None if tools.several else 1, eager=eager)
        if self.reasoning is not None:
            return self.reasoning.parser(self.prompt_end, calls)
        return calls


def answer_format(
    tools: ToolUse | None,
    reasoning: ReasoningFormat | None,
    end: PromptEnd,
    grammar: Grammar | None,
) -> AnswerFormat:
    """Return how an answer is read: without reasoning if a grammar holds from its first token."""
    is_free = grammar is None or grammar.kind is GrammarKind.TEXT_WITH_STRUCTURE
    if end is PromptEnd.CLOSED and not is_free:
        reasoning = None
    return AnswerFormat(tools, reasoning, end)
