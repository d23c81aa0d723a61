"""Which parsers an answer's text goes through, for one request."""

from dataclasses import dataclass

from backend.scheduler.types import GrammarKind
from backend.server.constraints import Constraint
from backend.server.reasoning import PromptEnd, ReasoningFormat
from backend.server.tools.events import ToolCallParser
from backend.server.tools.use import ToolUse


@dataclass(frozen=True, slots=True)
class AnswerReading:
    """How the text of an answer is read: its reasoning first, then calls of functions."""

    tools: ToolUse | None
    reasoning: ReasoningFormat | None
    prompt_end: PromptEnd

    @property
    def demanded(self) -> bool:
        """Whether a call can be cut short, but the answer never be anything else."""
        return self.tools is not None and self.tools.demanded

    def parser(self, *, eager: bool) -> ToolCallParser:
        """Return fresh state for one choice. See ``CallReader`` for the two tempers."""
        calls = None if self.tools is None else self.tools.parser(eager=eager)
        if self.reasoning is not None:
            return self.reasoning.parser(self.prompt_end, calls)
        if calls is None:
            raise RuntimeError("there is nothing to be read")
        return calls


def answer_reading(
    tools: ToolUse | None,
    reasoning: ReasoningFormat | None,
    end: PromptEnd,
    constraint: Constraint | None,
) -> AnswerReading | None:
    """Return how an answer is read, None where its text is the answer.

    A grammar that holds from the first token on leaves no room for reasoning.
    """
    if constraint and constraint.grammar.kind is not GrammarKind.TEXT_WITH_STRUCTURE:
        reasoning = None
    if tools is None and reasoning is None:
        return None
    return AnswerReading(tools, reasoning, end)
