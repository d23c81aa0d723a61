"""The compression plan: from a request as it is sent to one that says the same in fewer tokens.

Law: only declared context changes (``blocks``), and what is no prose loses nothing but white space.
What is made of a block depends on its own turn and those before it, on nothing later. A question's
context that would gain too little stays as it was; what cannot be sure raises RefusedError, and the
request is sent as it was.

``begin`` cuts, minifies and drops duplicates; ``next`` takes the vectors of ``texts``, which may be
none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from gateway.prompts.compress.asking import Question, question_of
from gateway.prompts.compress.blocks import declared
from gateway.prompts.compress.drafts import Draft, came_size, draft_of, drop_duplicates, size
from gateway.prompts.compress.forms import records_among
from gateway.prompts.compress.outcome import Compression, Refusal, RefusedError, Step
from gateway.prompts.compress.readable import readable
from gateway.prompts.compress.relevance import related
from gateway.prompts.json_splice import Edit, Places, all_replaced, printed, spliced
from gateway.prompts.texts import Path
from gateway.protocol.endpoint import Endpoint
from gateway.protocol.tokens import BYTES_A_TOKEN
from gateway.semantic.eligibility.rules import is_prose
from policies.decision import CompressSettings

MOST_CHARACTERS = 2**19
"""Of all declared context; more is left as it is."""
MOST_TEXTS = 512
"""Questions and passages whose vectors are asked for."""
Vector = Sequence[float]


class Compressed(NamedTuple):
    """A request as it is sent: ``raw`` is the JSON of ``body``."""

    body: dict[str, Any]
    raw: bytes
    told: Compression


class Asking(NamedTuple):
    """The context of one question; ``places`` are the passages whose vectors are asked for."""

    question: Question
    drafts: tuple[Draft, ...]
    places: tuple[tuple[Draft, int], ...]


@dataclass(frozen=True, slots=True)
class Compressing:
    """A request that is being compressed, and the texts whose vectors it waits for."""

    body: dict[str, Any]
    raw: bytes
    settings: CompressSettings
    askings: tuple[Asking, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """Each question that asks for vectors, its passages behind it."""
        return tuple(
            readable(text)
            for asking in self.askings
            if asking.places
            for text in (
                asking.question.text,
                *(draft.passages[index].text for draft, index in asking.places),
            )
        )

    def next(self, vectors: Sequence[Vector]) -> Compressed:
        """Take the vectors of ``texts``. Raises RefusedError."""
        at = 0
        refused = None if self.settings.keep >= 1 else self._refused()
        for asking in self.askings:
            if asking.places:
                end = at + 1 + len(asking.places)
                if not self._drop_unrelated(asking, vectors[at], vectors[at + 1 : end]):
                    refused = refused or Refusal.NEEDS_ALL
                at = end
            for draft in asking.drafts:
                draft.restore_if_empty()
            came = came_size(asking.drafts)
            if came - size(asking.drafts) < self.settings.min_gain * came:
                for draft in asking.drafts:
                    draft.undo()
        drafts = [draft for asking in self.askings for draft in asking.drafts]
        tokens, now = _tokens(draft.came for draft in drafts), _tokens(d.text for d in drafts)
        if now >= tokens:
            raise RefusedError(refused or Refusal.NOTHING_GAINED)
        taken = set().union(*(draft.steps for draft in drafts))
        steps = tuple(step for step in Step if step in taken)
        told = Compression(steps, tokens, tokens - now, refused)
        return Compressed(*_sent(self.body, self.raw, drafts), told)

    def _refused(self) -> Refusal | None:
        """Tell why passages may not go for the first question for which they may not."""
        whys = (asking.question.refusal for asking in self.askings if asking.drafts)
        return next((why for why in whys if why is not None), None)

    def _drop_unrelated(self, asking: Asking, asked: Vector, given: Sequence[Vector]) -> bool:
        """Let go what does not bear on the question; False where it may need all."""
        stays = related(
            asking.question,
            [draft.passages[index] for draft, index in asking.places],
            _with_neighbours(
                asking.places,
                [sum(a * b for a, b in zip(asked, each, strict=True)) for each in given],
            ),
            self.settings.keep,
            self.settings.protect,
        )
        if stays is None:
            return False
        for (draft, index), sentences in zip(asking.places, stays, strict=True):
            draft.keep(index, sentences, Step.UNRELATED)
        return True


def applies(endpoint: Endpoint, settings: CompressSettings) -> bool:
    """Tell whether a request may hold declared context that is to be compressed."""
    declares = settings.markers or settings.tool_results
    return settings.enabled and declares and endpoint in (Endpoint.CHAT, Endpoint.RESPONSES)


def begin(
    endpoint: Endpoint, body: dict[str, Any], raw: bytes, settings: CompressSettings
) -> Compressing | None:
    """Return a request cut and minified, None where it declares nothing. Raises RefusedError.

    Neither ``body`` nor anything in it is changed.
    """
    found = declared(endpoint, body, settings)
    blocks = [block for block in found.blocks if block.end > block.start]
    if not blocks:
        return None
    if sum(block.end - block.start for block in blocks) > MOST_CHARACTERS:
        raise RefusedError(Refusal.TOO_LARGE)
    questions = [question_of(text, follows=index > 0) for index, text in enumerate(found.questions)]
    drafts = [
        draft_of(block, _at(body, block.path)[block.start : block.end], minify=settings.minify)
        for block in blocks
    ]
    if settings.duplicates:
        for group in _with_one_fate(drafts, questions, settings):
            drop_duplicates(group)
    askings = tuple(
        _asking(question, [d for d in drafts if d.block.question == index], settings)
        for index, question in enumerate(questions)
    )
    if sum(1 + len(asking.places) for asking in askings) > MOST_TEXTS + len(askings):
        raise RefusedError(Refusal.TOO_MANY)
    return Compressing(body, raw, settings, askings)


def _with_one_fate(
    drafts: Sequence[Draft], questions: Sequence[Question], settings: CompressSettings
) -> list[list[Draft]]:
    """Return the drafts of which one may stand for another.

    Where passages go for a question, those of another one may go for that: then they do not count.
    """
    able = [draft for draft in drafts if not questions[draft.block.question].counts]
    if settings.keep >= 1:
        return [able]
    return [
        [draft for draft in able if draft.block.question == index]
        for index in range(len(questions))
    ]


def _asking(question: Question, drafts: list[Draft], settings: CompressSettings) -> Asking:
    """Return the context of a question; no vectors are asked for where no passage may go."""
    none = Asking(question, tuple(drafts), ())
    if settings.keep >= 1 or question.refusal or size(drafts) <= settings.keep * came_size(drafts):
        return none
    places = [(draft, index) for draft in drafts for index in draft.candidates]
    texts = [draft.passages[index].text for draft, index in places]
    movable = tuple(
        place
        for place, text, is_record in zip(places, texts, records_among(texts), strict=True)
        if not is_record and is_prose(text)
    )
    return none if len(movable) < 2 else Asking(question, tuple(drafts), movable)


def _with_neighbours(
    places: Sequence[tuple[Draft, int]], similarities: Sequence[float]
) -> list[float]:
    """Lift what stands beside a passage that is nearer: it may be what that one leans on."""
    found = list(similarities)
    for at, ((one, first), (other, second)) in enumerate(pairwise(places)):
        if one is other and second == first + 1 and not _ends_paragraph(one.passages[first].text):
            between = (similarities[at] + similarities[at + 1]) / 2
            found[at] = max(found[at], between)
            found[at + 1] = max(found[at + 1], between)
    return found


def _ends_paragraph(text: str) -> bool:
    return text[len(text.rstrip()) :].count("\n") > 1


def _sent(
    body: dict[str, Any], raw: bytes, drafts: Sequence[Draft]
) -> tuple[dict[str, Any], bytes]:
    """Return body and bytes with the drafts in the place of their blocks."""
    by_path: dict[Path, list[Draft]] = {}
    for draft in drafts:
        by_path.setdefault(draft.block.path, []).append(draft)
    places = Places(raw, body)
    edits, texts = [], []
    for path, changed in by_path.items():
        came = _at(body, path)
        pieces: list[str] = []
        at = 0
        for draft in changed:
            pieces += (came[at : draft.block.start], draft.text)
            at = draft.block.end
        text = "".join((*pieces, came[at:]))
        if text != came:
            edits.append(Edit(*places.of(path), _printed(text)))
            texts.append((path, text))
    return all_replaced(body, texts), spliced(raw, sorted(edits))


def _printed(text: str) -> bytes:
    try:
        return printed(text)
    except TypeError:  # half of a surrogate pair
        raise RefusedError(Refusal.UNREADABLE) from None


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def _tokens(texts: Iterable[str]) -> int:
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    return -(-size // BYTES_A_TOKEN)
