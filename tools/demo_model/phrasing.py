"""The ways in which one question is asked, and which of them training may see.

Law: what evaluation calls held out never reaches training. A phrasing is held out for one of three
reasons, from easy to hard: its ``combination`` of template and phrase (every eighth, by hash), its
``template`` (the HELD_ templates below), or its ``wording`` (the hand-written ``held`` of a topic).
"""

import hashlib
import random
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from tools.demo_model.knowledge import Topic

DO_TEMPLATES = (
    "How do I {}?",
    "How can I {}?",
    "How to {}?",
    "How do you {}?",
    "How would I {}?",
    "How should I {}?",
    "How could I {}?",
    "How do we {}?",
    "What's the way to {}?",
    "What is the best way to {}?",
    "What is the easiest way to {}?",
    "What do I have to do to {}?",
    "What must I do to {}?",
    "What do I need to {}?",
    "What are the steps to {}?",
    "Where can I {}?",
    "Where do I {}?",
    "Can I {}?",
    "Am I able to {}?",
    "Is it possible to {}?",
    "Is there a way to {}?",
    "Is there an option to {}?",
    "I want to {}.",
    "I want to {}, what do I do?",
    "I need to {}.",
    "I need to {}. How does that work?",
    "I'd like to {}.",
    "I would like to {}, please.",
    "I have to {}.",
    "I am trying to {}.",
    "I'm trying to {} but I can't find it.",
    "I don't know how to {}.",
    "I can't figure out how to {}.",
    "I was wondering how to {}.",
    "We want to {}.",
    "Help me {}.",
    "Can you help me {}?",
    "Can you help me to {}?",
    "Please help me to {}.",
    "I need help to {}.",
    "Can you tell me how to {}?",
    "Could you tell me how I can {}?",
    "Can you show me how to {}?",
    "Tell me how to {}.",
    "Show me how to {}.",
    "Explain how to {}.",
    "Please explain how I {}.",
    "Do you know how to {}?",
    "Any idea how to {}?",
    "My question is how to {}.",
    "Steps to {}",
    "{}",
)
HELD_DO_TEMPLATES = (
    "Could you walk me through how to {}?",
    "What's the procedure to {}?",
    "Which steps are needed to {}?",
    "How does one {}?",
    "Would you mind telling me how to {}?",
    "Please describe how I can {}.",
    "What is the quickest way to {}?",
    "I'm looking for a way to {}.",
    "May I {}?",
    "It is time for me to {}, what now?",
)
KNOW_TEMPLATES = (
    "Can you tell me {}?",
    "Could you tell me {}?",
    "Can you please tell me {}?",
    "Tell me {}.",
    "Please tell me {}.",
    "I'd like to know {}.",
    "I would like to know {}, please.",
    "I want to know {}.",
    "I need to know {}.",
    "I have to know {}.",
    "We want to know {}.",
    "Do you know {}?",
    "Can you explain {}?",
    "Please explain {}.",
    "Explain {}.",
    "Let me know {}.",
    "I don't know {}.",
    "I don't understand {}.",
    "My question is {}.",
    "Can you help me understand {}?",
    "{}",
)
HELD_KNOW_TEMPLATES = (
    "Would you mind telling me {}?",
    "May I know {}?",
    "I'm trying to find out {}.",
    "Could you let me know {}?",
    "Are you able to say {}?",
    "I'd be glad to learn {}.",
)
COMBINATION_HELD_ONE_IN = 8


class Reason(StrEnum):
    """Why a phrasing is kept from training."""

    COMBINATION = "combination"
    TEMPLATE = "template"
    WORDING = "wording"


@dataclass(frozen=True, slots=True)
class Phrasing:
    """One way to ask; ``held`` says why training may not see it, None that it may."""

    text: str
    held: Reason | None = None


def normalise(text: str) -> str:
    """Fold what does not make a phrasing another one: case, punctuation, white space."""
    return " ".join(re.findall(r"\w+", text.casefold()))


@cache
def phrasings(topic: Topic) -> tuple[Phrasing, ...]:
    """All phrasings of ``topic`` but ``topic.ask``, each normalised text once."""
    found: dict[str, Phrasing] = {}
    for text in topic.held:
        found[normalise(text)] = Phrasing(text, Reason.WORDING)
    for text in topic.say:
        found.setdefault(normalise(text), Phrasing(text))
    for phrases, seen, held in (
        (topic.do, DO_TEMPLATES, HELD_DO_TEMPLATES),
        (topic.know, KNOW_TEMPLATES, HELD_KNOW_TEMPLATES),
    ):
        for phrase in phrases:
            for template in seen:
                text = _fill(template, phrase)
                reason = Reason.COMBINATION if _chosen(topic.id, text) else None
                found.setdefault(normalise(text), Phrasing(text, reason))
            for template in held:
                text = _fill(template, phrase)
                found.setdefault(normalise(text), Phrasing(text, Reason.TEMPLATE))
    found.pop(normalise(topic.ask), None)
    return tuple(found.values())


def _fill(template: str, phrase: str) -> str:
    text = template.format(phrase)
    return text[0].upper() + text[1:]


def _chosen(topic_id: str, text: str) -> bool:
    digest = hashlib.sha256(f"{topic_id}\n{normalise(text)}".encode()).digest()
    return digest[0] % COMBINATION_HELD_ONE_IN == 0


# Word for word exchanges that never turn one topic of the FAQ into another.
SYNONYMS: dict[str, tuple[str, ...]] = {
    "two-factor authentication": ("2FA", "two factor authentication", "2-factor authentication"),
    "single sign-on": ("SSO", "single sign on"),
    "email address": ("email", "e-mail address", "mail address"),
    "email": ("e-mail", "mail"),
    "administrator": ("admin",),
    "colleague": ("coworker", "teammate", "co-worker"),
    "picture": ("photo", "image"),
    "credit card": ("card",),
    "sign in": ("log in", "login"),
    "sign out": ("log out",),
    "signed in": ("logged in",),
    "phone": ("smartphone", "mobile phone"),
    "turn on": ("enable", "activate", "switch on"),
    "turn off": ("disable", "deactivate", "switch off"),
    "enable": ("turn on", "activate", "switch on"),
    "delete": ("remove", "erase", "get rid of"),
    "change": ("modify", "update", "edit"),
    "create": ("make", "add", "set up"),
    "restore": ("recover", "bring back"),
    "buy": ("purchase", "order"),
    "see": ("view", "check", "look at"),
    "find": ("locate", "see"),
    "want to": ("wish to", "would like to", "wanna"),
    "need to": ("have to", "must"),
    "do not": ("don't", "dont"),
    "don't": ("do not", "dont"),
    "cannot": ("can't", "cant", "can not"),
    "can't": ("cannot", "cant"),
    "I'd": ("I would", "Id"),
    "I'm": ("I am", "Im"),
    "I am": ("I'm",),
    "what's": ("what is", "whats"),
    "no longer": ("not anymore",),
    "my": ("our", "the"),
    "a": ("one", "the"),
}
_SYNONYM = re.compile(
    r"\b(" + "|".join(re.escape(word) for word in sorted(SYNONYMS, key=len, reverse=True)) + r")\b"
)
_DROPPABLE = re.compile(r" (?:my|our|the|a|an|please)(?= )")
_OPENINGS = (
    "Hi, ",
    "Hello, ",
    "Hey, ",
    "Hi! ",
    "Hello! ",
    "Hi there, ",
    "Good morning, ",
    "Good evening. ",
    "Excuse me, ",
    "Sorry, ",
    "Quick question: ",
    "Question: ",
    "Please help. ",
    "Dear support team, ",
    "Hello support, ",
    "I have a question. ",
    "OK, ",
    "And ",
    "So ",
)
_CLOSINGS = (
    " Thanks!",
    " Thank you.",
    " Thanks in advance.",
    " Please help.",
    " Please.",
    " Can you help?",
    " Thanks a lot!",
)


def decorate(rng: random.Random, text: str) -> str:
    """Return ``text`` as somebody in a hurry, or somebody polite, might have typed it."""
    if rng.random() < 0.3:
        text = _SYNONYM.sub(
            lambda m: rng.choice(SYNONYMS[m[0]]) if rng.random() < 0.5 else m[0], text
        )
    if rng.random() < 0.1:
        text = _DROPPABLE.sub("", text, count=1)
    if rng.random() < 0.05 and text[-1] in "?.":
        text = f"{text[:-1]} in Acme Cloud{text[-1]}"
    if rng.random() < 0.25:
        text = _punctuate(rng, text)
    if rng.random() < 0.2:
        text = rng.choice(_OPENINGS) + (text if text[:2] in {"I ", "I'"} else _lower_first(text))
    if rng.random() < 0.12:
        text += rng.choice(_CLOSINGS)
    if rng.random() < 0.12:
        text = _mistype(rng, text)
    return _recase(rng, text)


def _lower_first(text: str) -> str:
    return text[0].lower() + text[1:]


def _punctuate(rng: random.Random, text: str) -> str:
    bare = text.rstrip("?.!")
    return bare + rng.choice(("", "", "", "?", "!", "??", ".", " ?"))


def _recase(rng: random.Random, text: str) -> str:
    draw = rng.random()
    if draw < 0.2:
        return text.lower()
    if draw < 0.23:
        return text.upper()
    if draw < 0.28:
        return _lower_first(text)
    return text


def _mistype(rng: random.Random, text: str) -> str:
    """Drop, double or swap one letter inside a word of five letters or more."""
    words = list(re.finditer(r"[A-Za-z]{5,}", text))
    if not words:
        return text
    word = rng.choice(words)
    at = rng.randrange(word.start() + 1, word.end() - 1)
    match rng.randrange(3):
        case 0:
            return text[:at] + text[at + 1 :]
        case 1:
            return text[: at + 1] + text[at:]
        case _:
            return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
