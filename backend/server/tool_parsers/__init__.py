"""Which parsers read an answer: its reasoning first, then calls of functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backend.scheduler.request import Grammar, GrammarKind, ReasoningSpan
from backend.server.protocol.errors import invalid
from backend.server.protocol.messages import Function, FunctionName, ToolChoice
from backend.server.tool_parsers.families import (
    OPEN_TAG,
    PYTHON_TAG,
    HermesToolCallParser,
    LlamaToolCallParser,
)
from backend.server.tool_parsers.reasoning import PromptEnd, ReasoningFormat
from backend.server.tool_parsers.streaming_json import CallsParser, ToolCallParser

ToolFormat = type[CallsParser]
"""How one family of models calls functions: how to read calls, and how to demand them."""

FORMATS: Mapping[str, ToolFormat] = {"qwen": HermesToolCallParser, "llama": LlamaToolCallParser}
_KNOWN = "Qwen's and Hermes' JSON between <tool_call> tags, and Llama 3's JSON"
# Markup of calls in formats that no parser here reads. Some of them share a tag with one that is.
_FOREIGN = (
    "<function=",  # XML of Qwen3-Coder and Nemotron 3; Functionary
    "<arg_key>",  # GLM
    "<|START_ACTION|>",  # Command
    "[TOOL_CALLS]",  # Mistral
    "<|tool_call",  # LFM2, Granite, Kimi
    "<tool_calls>",
    "<TOOLCALL>",  # Nemotron 2
    "<seed:tool_call>",
    "<minimax:tool_call>",
    "<|channel|>",  # gpt-oss
    "<\N{FULLWIDTH VERTICAL LINE}tool",  # DeepSeek
)


def format_of(template: str) -> ToolFormat | None:
    """Return the format that a chat template teaches, None if it teaches none that is known."""
    if "tools" not in template or any(tag in template for tag in _FOREIGN):
        return None
    if OPEN_TAG in template:
        return HermesToolCallParser
    # Templates of Llama 3.2's small models ask for JSON alone, without the tag.
    if PYTHON_TAG in template or ('"parameters"' in template and '"name"' in template):
        return LlamaToolCallParser
    return None


def without_format(template: str) -> str:
    """Return why ``tools`` are refused where a chat template teaches no format that is known."""
    if "tools" not in template:
        return "the model's chat template knows nothing of tools"
    return f"the format of calls in the model's chat template is not supported; supported: {_KNOWN}"


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
            names = [function.name for function in tools.functions]
            calls = tools.form(names, max_calls=None if tools.several else 1, eager=eager)
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
