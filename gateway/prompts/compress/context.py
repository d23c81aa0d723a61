"""Which texts of a request are declared context, and which question each belongs to.

Nothing outside of the markers is touched, nor what stands before a breakpoint of the client's own.
Context belongs to the question of its own turn, so the conversation's prefix repeats.
"""

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gateway.prompts.compress.facts import content_words, names_in, words_of
from gateway.prompts.compress.passages import Passage, are_prose
from gateway.prompts.outcome import NotRewritten
from gateway.prompts.rewrite.documents import pieces
from gateway.prompts.texts import Path, is_block, is_result, texts_of
from gateway.protocol.endpoints.table import SPECS
from gateway.semantic.eligibility import depends_on_earlier_turns, is_english, is_vague
from gateway.semantic.words import sentences_of, tokenize_question
from policies.decision import CompressSettings, Endpoint

MOST_PIECES = 240  # of words: the encoder reads 256 with its marks
MOST_CHARACTERS = 600


@dataclass(eq=False, slots=True)
class Block:
    """Declared context, and what is made of it."""

    came: str
    is_result: bool = False  # returned by a tool
    passages: list[Passage] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What stands in its place now; the white space around it stays."""
        came = "".join(passage.text for passage in self.passages)
        now = "".join(sentence for passage in self.passages for sentence in passage.kept)
        if len(now) == len(came):
            return now
        before, behind = len(came) - len(came.lstrip()), len(came.rstrip())
        return came[:before] + now.strip() + came[behind:]

    @property
    def prose(self) -> list[Passage]:
        """The passages that may go. None may of what is mostly code, tables or JSON."""
        if not are_prose(self.came, self.passages):
            return []
        return [passage for passage in self.passages if passage.kept and not passage.formed]


class Turn(NamedTuple):
    """What the user asks in a turn, and the parts of its texts and of those that tools returned."""

    words: str
    texts: list[tuple[Path, list[str | Block]]]

    @property
    def blocks(self) -> list[Block]:
        """Its declared context."""
        parts = (part for _, parts in self.texts for part in parts)
        return [part for part in parts if isinstance(part, Block) and part.came]


def declared(endpoint: Endpoint, body: dict[str, Any], settings: CompressSettings) -> list[Turn]:
    """Return the turns of the user. Raises NotRewrittenError."""
    field = SPECS[endpoint].question_field
    turns = body.get(field)
    if isinstance(turns, str):
        return [_turn((field,), turns, settings)]
    found: list[Turn] = []
    turns = turns if isinstance(turns, list) else []
    first = max((i for i, turn in enumerate(turns, 1) if _ends_cached(turn)), default=0)
    for index, turn in enumerate(turns):
        if not isinstance(turn, dict):
            continue
        if turn.get("role") == "user" and not is_block(turn):
            asked = _turn((field, index, "content"), turn.get("content"), settings)
            found.append(asked if index >= first else Turn(asked.words, []))
        elif settings.tool_results and is_result(turn) and found and index >= first:
            name = "output" if "output" in turn else "content"
            texts = texts_of((field, index, name), turn.get(name))
            found[-1].texts.extend((path, [Block(text, is_result=True)]) for path, text in texts)
    return found


def _turn(at: Path, content: Any, settings: CompressSettings) -> Turn:
    markers = settings.documents if settings.markers else None
    words: list[str] = []
    texts: list[tuple[Path, list[str | Block]]] = []
    for path, text in texts_of(at, content):
        parts: list[str | Block] = []
        for number, piece in enumerate([text] if markers is None else pieces(text, markers)):
            if markers is not None and number % 2:
                inside = piece[len(markers.begin) : -len(markers.end)]
                parts += (markers.begin, Block(inside), markers.end)
            else:
                parts.append(piece)
                words.append(piece)
        texts.append((path, parts))
    return Turn("\n".join(words), texts)


def _ends_cached(turn: Any) -> bool:
    """Tell whether a turn has a breakpoint of the client's own."""
    parts = turn.get("content") if isinstance(turn, dict) else None
    held = (turn, *(parts if isinstance(parts, list) else ()))
    return any(isinstance(each, dict) and "cache_control" in each for each in held)


_LABEL = re.compile(
    r"^\s*(?:(?:user |my |the )?(?:question|query|q|task|request))\s*[:\-]\s*", re.IGNORECASE
)
_OF_CONTEXT = re.compile(
    r"\b(?:documents?|contexts?|passages?|excerpts?|snippets?|attachments?)\b"
    r"|\b(?:the|these|this|following|above|given|provided|attached|search|tool) "
    r"(?:texts?|articles?|pages?|files?|materials?|reports?|sources?|results?|information)\b"
    r"|\b(?:above|below|the following|attached)\W*$"
    r"|^\W*(?:read|remember|keep in mind|i (?:will ask|attach))\b",
    re.IGNORECASE,
)
_INSTRUCTS = re.compile(
    r"^\W*(?:here (?:is|are)|this is|these are)\b"
    r"|^\W*(?:please )?(?:answer|respond|reply|use (?:only|just)|be (?:brief|concise|short))\b"
    r"|^\W*(?:do not|don't|if you|if it|if they|if none|if nothing"
    r"|if (?:the|no|there is no) answer)\b[^?]*$",
    re.IGNORECASE,
)
_OF_INSTRUCTIONS = frozenset(
    {"answer", "reply", "respond", "use", "using", "base", "based", "refer", "consult", "provide"}
    | {"provided", "question", "carefully", "please", "only", "following", "below", "above"}
    | {"given", "attached"}
)
_LEAST_ASKED = 2  # words beyond those about the context, of a sentence that may ask something
_CONDITION = re.compile(r"^\W*(?:if|when|unless)\b[^,?]*(?:,|$)", re.IGNORECASE)
_NEEDS_ALL = re.compile(
    r"\b(?:summar(?:y|ies|i[sz]\w+)|tl;?dr|recap|overview|outline|gist|synops[ie]s|take-?aways?"
    r"|(?:key|main) (?:point|fact|finding|insight|idea|topic|theme|argument)s?|in a nutshell"
    r"|translat\w+|rewrite|rephrase|paraphrase|proofread|reformat|transcribe|classif(?:y|ies)"
    r"|categori[sz]e|tabulate|extract|enumerate|(?:rank|sort)(?! of\b)"
    r"|compare|contrast|reconcile|deduplicate"
    r"|(?:make|create|draw|build|write|give|show) (?:me )?(?:up )?(?:an? |the )?"
    r"(?:\w+ )?(?:table|list|timeline|index|glossary)"
    r"|(?:list|name|find|give|show|tell|identify|collect|mention|quote|count)(?: me| us| up| out)?"
    r" (?:all|each|every|any)|(?:list|name|identify|count) (?:the )?"
    r"(?!(?:is|was|has|does|as|this)\b)\w+s"
    r"|(?:which|how many|who|what|any|each|all|every|some|none|most|one|two|several|number|count)"
    r" of (?:the|these|those|them)\b"
    r"|(?:how many|which|what|number of|any|all|every|each)(?: the| other)? (?:documents?"
    r"|passages?|entries|entry|records?|items?|rows?|lines?|paragraphs?|sentences?|texts?"
    r"|excerpts?)"
    r"|(?:add|sum) up|(?:order|group|arrange) (?:\w+ ){0,3}by|(?:what is|what are|what's) missing"
    r"|(?:what|who|which) (?:are |is )?all|(?:texts?|reports?|sources?) (?:dis)?agree|disagree"
    r"|different things|chang\w+ between|duplicates?|contradict\w*|inconsisten\w*|in common"
    r"|differences? (?:between|among)"
    r"|(?:what|who) (?:is|are) (?:it|this|that|these|they)(?: all)? about"
    r"|(?:first|second|third|last|next) (?:document|passage|paragraph|sentence|line|word|entry))\b",
    re.IGNORECASE,
)
_SOFT = re.compile(
    r"\b(?:maximum|minimum|max|min|(?:has|have|had|with) no|(?:first|last) to"
    r"|how (?:many|much|often)|number of|amount of|counts?|totals?|sum|average|mean|median"
    r"|percent\w*|share of|most|least|fewest|(?:more|fewer|less) than|highest|lowest|biggest"
    r"|largest|smallest|longest|shortest|oldest|youngest|newest|latest|earliest|cheapest"
    r"|fastest|slowest|worst|greatest|heaviest|lightest|tallest|richest"
    r"|all|each|every|every(?:one|body|thing)|any(?:one|body|thing)|none|nobody|no one|entire|whole"
    r"|overall|altogether|except|besides|excluding|other than|apart from|mention\w*|which \w+s"
    r"|(?:who|which(?: \w+){0,2}|what \w+|whose(?: \w+)?) (?:\w+ )?"
    r"(?:isn|aren|wasn|weren|hasn|haven|hadn|doesn|don|didn|can|couldn|won|wouldn|not|never"
    r"|cannot|without|lacks?)(?:['\u2019]t)?)\b",
    re.IGNORECASE,
)
_COUNTED = re.compile(
    r"\b(?:how (?:many|often)|(?:number|share|percentage|proportion|fraction|count) of)\b(.*)",
    re.IGNORECASE | re.DOTALL,
)
_DIGIT = re.compile(r"\d")
_PIECE = re.compile(r"([A-Za-z]+)|[^\sA-Za-z]")


class Question(NamedTuple):
    """What is asked: its words, and those among them that name something."""

    text: str
    words: frozenset[str]
    names: frozenset[str]
    counted: str | None  # of what it asks how many; empty where it does not say
    counts: bool  # it counts, adds up, compares or denies, so that all may be needed
    refusal: NotRewritten | None  # why no passage may go for it


def question_of(text: str, *, follows: bool) -> Question:
    """Read the user's own words; ``follows`` tells of earlier turns."""
    focus = _focus(text)
    words = content_words(words_of(focus))
    counted = _COUNTED.search(focus)
    behind = words_of(counted[1] if counted else "")
    after = (each for word in behind for each in content_words([word]))
    return Question(
        focus,
        words,
        content_words(names_in(focus)) | {word for word in words if _DIGIT.search(word)},
        next(after, "") if counted else None,
        any(pattern.search(focus) for pattern in (_COUNTED, _SOFT, _NEEDS_ALL)),
        _refusal(text, focus, words, follows=follows),
    )


def _focus(text: str) -> str:
    """Return what of the user's words asks, with what leads to it where the encoder reads all.

    What the user says of the context itself ("answer from the documents below") is no part of it.
    """
    sentences = [_LABEL.sub("", each).strip() for each in sentences_of(text, clauses=True)]
    whole = " ".join(s for s in sentences if s.endswith("?") or not _is_of_context(s))
    if readable(whole) == whole.strip():
        return whole
    return " ".join(sentence for sentence in sentences if sentence.endswith("?"))


def _is_of_context(sentence: str) -> bool:
    """Tell whether a sentence says what the context is, or how to answer, and asks nothing."""
    if _INSTRUCTS.search(sentence):
        return True
    if not _OF_CONTEXT.search(sentence):
        return False
    left = content_words(words_of(_OF_CONTEXT.sub(" ", sentence)))
    return len(left - _OF_INSTRUCTIONS) < _LEAST_ASKED


def _refusal(text: str, focus: str, words: frozenset[str], *, follows: bool) -> NotRewritten | None:
    if not words or readable(focus) != focus.strip():
        return NotRewritten.UNCLEAR
    if not is_english(focus):
        return NotRewritten.LANGUAGE
    turn = tokenize_question(focus)
    if is_vague(turn) or (follows and depends_on_earlier_turns(turn)):
        return NotRewritten.UNCLEAR
    asked = " ".join(_CONDITION.sub("", each) for each in sentences_of(text, clauses=True))
    return NotRewritten.NEEDS_ALL if _NEEDS_ALL.search(asked) else None


def readable(text: str) -> str:
    """Return as much of a text as the encoder surely reads.

    A text that it cannot read whole has no vector, and one without fails all. So what counts is
    the most pieces that a word may be cut into, three letters each.
    """
    beginning = text.strip()[:MOST_CHARACTERS]
    count = 0
    for found in _PIECE.finditer(beginning):
        count += -(-len(found[1] or "-") // 3)
        if count > MOST_PIECES:
            return beginning[: found.start()]
    return beginning or "-"
