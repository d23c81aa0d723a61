"""What is made of one block of declared context.

Law: what a tool returned is never emptied; between markers nothing may be left, and the markers
stay. A block that is mostly code, tables, keys and values or JSON loses only white space.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gateway.prompts.compress.blocks import Block
from gateway.prompts.compress.duplicates import duplicates
from gateway.prompts.compress.forms import are_records, is_json
from gateway.prompts.compress.minify import json_minified
from gateway.prompts.compress.outcome import Step
from gateway.prompts.compress.passages import Passage, passages_of


@dataclass(slots=True)
class Draft:
    """A block as it came, and what of its passages stays."""

    block: Block
    came: str
    passages: tuple[Passage, ...]
    is_prose: bool
    kept: list[tuple[str, ...]] = field(init=False)
    steps: set[Step] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.kept = [passage.sentences for passage in self.passages]
        if self.text != self.came:
            self.steps.add(Step.MINIFIED)

    @property
    def text(self) -> str:
        """What stands in its place now."""
        core = "".join("".join(sentences) for sentences in self.kept)
        if len(core) == sum(len(passage.text) for passage in self.passages):
            return core
        came = "".join(passage.text for passage in self.passages)
        before = came[: len(came) - len(came.lstrip())]
        behind = came[len(came.rstrip()) :]
        return before + core.strip() + behind

    @property
    def candidates(self) -> list[int]:
        """Passages that may go if they do not bear on the question."""
        if not self.is_prose:
            return []
        return [
            index
            for index, passage in enumerate(self.passages)
            if not passage.formed and self.kept[index]
        ]

    def keep(self, index: int, sentences: tuple[str, ...], step: Step) -> None:
        """Let go what of a passage is not among the sentences."""
        if len(sentences) < len(self.kept[index]):
            self.kept[index] = sentences
            self.steps.add(step)

    def restore_if_empty(self) -> None:
        """Undo what would leave a tool's answer without a word."""
        if self.block.is_result and not self.text.strip():
            self.kept = [passage.sentences for passage in self.passages]
            self.steps -= {Step.DUPLICATES, Step.UNRELATED}

    def undo(self) -> None:
        """Take the block as it came."""
        self.kept = [(self.came,)]
        self.passages = (Passage(self.came, formed=True, sentences=(self.came,)),)
        self.steps.clear()


def draft_of(block: Block, came: str, *, minify: bool) -> Draft:
    """Cut a block into passages."""
    if is_json(came):
        text = _json(came) if minify else came
        whole = Passage(text, formed=True, sentences=(text,))
        return Draft(block, came, (whole,), is_prose=False)
    passages = tuple(passages_of(came, minify=minify))
    formed = sum(len(passage.text) for passage in passages if passage.formed)
    texts = [passage.text for passage in passages]
    return Draft(block, came, passages, is_prose=2 * formed < len(came) and not are_records(texts))


def drop_duplicates(drafts: Sequence[Draft]) -> None:
    """Let passages go that an earlier one of any block says."""
    places = [
        (draft, index)
        for draft in drafts
        for index, passage in enumerate(draft.passages)
        if draft.is_prose and not passage.formed
    ]
    told = duplicates([draft.passages[index].text for draft, index in places])
    for (draft, index), again in zip(places, told, strict=True):
        if again:
            draft.keep(index, (), Step.DUPLICATES)


def came_size(drafts: Iterable[Draft]) -> int:
    """Return the characters of blocks as they came."""
    return sum(len(draft.came) for draft in drafts)


def size(drafts: Iterable[Draft]) -> int:
    """Return the characters of blocks as they are now."""
    return sum(len(draft.text) for draft in drafts)


def _json(text: str) -> str:
    """Minify one JSON value, or one to a line."""
    stripped = text.strip()
    whole = json_minified(stripped)
    if is_json(whole) and "\n" not in stripped:
        return whole
    lines = stripped.splitlines()
    if len(lines) > 1 and all(is_json(line) for line in lines if line.strip()):
        return "\n".join(json_minified(line) for line in lines if line.strip())
    return whole
