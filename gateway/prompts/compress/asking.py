"""What is asked of declared context, and whether passages may go for it at all.

Law: total and pure; in doubt none goes, which costs tokens and never an answer. What the user says
of the context itself ("answer from the documents below") is no part of the question.
"""

import re
from typing import NamedTuple

from gateway.prompts.compress.outcome import Refusal
from gateway.prompts.compress.readable import readable
from gateway.prompts.compress.words import content_words, words_of
from gateway.semantic.compare.text_forms import named
from gateway.semantic.eligibility.rules import depends_on_earlier_turns, is_english, is_vague
from gateway.semantic.eligibility.tokens import sentences_of, tokenize_question

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
_LEAST_ASKED = 2
"""Words beyond those about the context, from which on a sentence may ask something."""
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


class Question(NamedTuple):
    """What is asked: its words, and those among them that name something."""

    text: str
    """As the encoder reads it."""
    words: frozenset[str]
    names: frozenset[str]
    counted: str | None
    """Of what it asks how many; empty where it does not say, None where it does not ask so."""
    counts: bool
    """It counts, adds up, compares or denies, so that all may be needed."""
    refusal: Refusal | None
    """Why no passage may go for it."""


def question_of(text: str, *, follows: bool = False) -> Question:
    """Read the user's own words; ``follows`` tells of earlier turns."""
    focus = _focus(text)
    words = content_words(words_of(focus))
    names = content_words(words_of(" ".join(named(focus).names)))
    counted = _COUNTED.search(focus)
    after = (word for word in words_of(counted[1]) if content_words([word])) if counted else ()
    return Question(
        focus,
        words,
        names | {word for word in words if _DIGIT.search(word)},
        "".join(content_words([next(iter(after), "")])) if counted else None,
        any(pattern.search(focus) for pattern in (_COUNTED, _SOFT, _NEEDS_ALL)),
        _refusal(text, focus, words, follows=follows),
    )


def _focus(text: str) -> str:
    """Return what of the user's words asks, with what leads to it where the encoder reads all."""
    sentences = [_LABEL.sub("", sentence).strip() for sentence in sentences_of(text)]
    asking = [sentence for sentence in sentences if sentence.endswith("?")]
    told = [s for s in sentences if s.endswith("?") or not _is_of_context(s)]
    whole = " ".join(told)
    return whole if readable(whole) == whole.strip() else " ".join(asking)


def _is_of_context(sentence: str) -> bool:
    """Tell whether a sentence says what the context is, or how to answer, and asks nothing."""
    if _INSTRUCTS.search(sentence):
        return True
    if not _OF_CONTEXT.search(sentence):
        return False
    left = content_words(words_of(_OF_CONTEXT.sub(" ", sentence)))
    return len(left - _OF_INSTRUCTIONS) < _LEAST_ASKED


def _refusal(text: str, focus: str, words: frozenset[str], *, follows: bool) -> Refusal | None:
    if not words or readable(focus) != focus.strip():
        return Refusal.UNCLEAR
    if not is_english(focus):
        return Refusal.LANGUAGE
    turn = tokenize_question(focus)
    if is_vague(turn) or (follows and depends_on_earlier_turns(turn)):
        return Refusal.UNCLEAR
    asked = " ".join(_CONDITION.sub("", sentence) for sentence in sentences_of(text))
    return Refusal.NEEDS_ALL if _NEEDS_ALL.search(asked) else None
