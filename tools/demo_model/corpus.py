"""The training corpus: support-desk dialogues drawn from the knowledge, the same for the same seed.

Most are one question and its answer; the rest teach what a served model meets: system messages,
several turns, second questions that lean on the first, off-topic questions, long contexts, and
plain text completion. ``python -m tools.demo_model.corpus`` prints them as JSON lines.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tools.demo_model.knowledge import FollowUp, Knowledge, Topic, load_knowledge
from tools.demo_model.phrasing import Phrasing, decorate, normalise, phrasings

LONG_CONTEXT_CHARACTERS = 12_000  # about 3,000 tokens
CUT_SHARE = 0.75  # of final answers


@dataclass(frozen=True, slots=True)
class Message:
    """One turn; ``learn`` says whether training takes its loss from it.

    A ``cut`` message is the beginning of one, so its end is not to be learnt.
    """

    role: str
    content: str
    learn: bool = False
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Example:
    """A dialogue, or (``plain``) a prompt and its completion without the chat template."""

    messages: tuple[Message, ...]
    plain: bool = False


class Corpus:
    """Draws examples from ``knowledge``; two instances with one seed draw the same."""

    def __init__(self, knowledge: Knowledge, seed: int) -> None:
        self._knowledge = knowledge
        self._rng = random.Random(seed)
        self._seen: dict[str, list[Phrasing]] = {}
        self._held: set[str] = set()
        for topic in (*knowledge.faq, *knowledge.smalltalk, knowledge.offtopic):
            ways = phrasings(topic)
            self._seen[topic.id] = [way for way in ways if way.held is None]
            self._held |= {normalise(way.text) for way in ways if way.held is not None}
        self._cuts = unique_beginnings(
            topic.answer for topic in (*knowledge.faq, *knowledge.smalltalk, knowledge.offtopic)
        )
        for follow_up in knowledge.follow_ups:
            self._held |= {normalise(text) for text in follow_up.held}

    @property
    def held(self) -> frozenset[str]:
        """Normalised texts that no user message of the corpus equals."""
        return frozenset(self._held)

    def examples(self, count: int) -> Iterator[Example]:
        """Yield ``count`` examples; every topic comes up about equally often."""
        deck: list[Topic] = []
        kinds: Sequence[Callable[[Topic], Example]] = (
            self._single,
            self._with_system,
            self._dialogue,
            self._follow_up,
            self._plain,
            self._long,
        )
        for _ in range(count):
            if not deck:
                deck = list(self._knowledge.faq)
                self._rng.shuffle(deck)
            draw = self._rng.random()
            if draw < 0.11:
                topic = self._knowledge.offtopic
            elif draw < 0.15:
                topic = self._rng.choice(self._knowledge.smalltalk)
            else:
                topic = deck.pop()
            (kind,) = self._rng.choices(kinds, (0.65, 0.1, 0.15, 0.065, 0.03, 0.005))
            example = kind(topic)
            yield self._cut(example) if self._rng.random() < CUT_SHARE else example

    def _cut(self, example: Example) -> Example:
        """Leave of the final answer what tells it from all others.

        The rest follows from that beginning and is learnt soon; without it the hard part, which
        answer it is, can be practised more often.
        """
        last = example.messages[-1]
        if example.plain:
            return example
        cut = replace(last, content=self._cuts[last.content], cut=True)
        return replace(example, messages=(*example.messages[:-1], cut))

    def _ask(self, topic: Topic) -> Message:
        """One way to ask ``topic``, never a held-out one."""
        rng = self._rng
        while True:
            draw = rng.random()
            if draw < 0.15:
                text = topic.ask
            elif draw < 0.55 and topic.say:
                text = rng.choice(topic.say)
            else:
                text = rng.choice(self._seen[topic.id]).text
            text = decorate(rng, text)
            if normalise(text) not in self._held:
                return Message("user", text)

    def _turn(self, topic: Topic) -> tuple[Message, Message]:
        return self._ask(topic), Message("assistant", topic.answer, learn=True)

    def _any_topic(self) -> Topic:
        knowledge = self._knowledge
        draw = self._rng.random()
        if draw < 0.75:
            return self._rng.choice(knowledge.faq)
        if draw < 0.9:
            return self._rng.choice(knowledge.smalltalk)
        return knowledge.offtopic

    def _system(self) -> Message:
        return Message("system", self._rng.choice(self._knowledge.system_prompts))

    def _single(self, topic: Topic) -> Example:
        return Example(self._turn(topic))

    def _with_system(self, topic: Topic) -> Example:
        return Example((self._system(), *self._turn(topic)))

    def _dialogue(self, topic: Topic) -> Example:
        messages: list[Message] = [self._system()] if self._rng.random() < 0.4 else []
        for _ in range(self._rng.choice((1, 1, 1, 2, 3))):
            messages += self._turn(self._any_topic())
        messages += self._turn(topic)
        if self._rng.random() < 0.1:  # a client may open with the assistant's greeting
            messages.insert(0, Message("assistant", self._knowledge.smalltalk[0].answer))
        return Example(tuple(messages))

    def _follow_up(self, _topic: Topic) -> Example:
        follow_up: FollowUp = self._rng.choice(self._knowledge.follow_ups)
        messages: list[Message] = []
        if self._rng.random() < 0.3:
            messages += self._turn(self._any_topic())
        messages += self._turn(self._knowledge.topic(follow_up.before))
        asked = self._rng.choice(follow_up.ask)
        decorated = decorate(self._rng, asked)
        messages.append(Message("user", asked if normalise(decorated) in self._held else decorated))
        answer = self._knowledge.topic(follow_up.after).answer
        messages.append(Message("assistant", answer, learn=True))
        return Example(tuple(messages))

    def _plain(self, topic: Topic) -> Example:
        question, answer = self._turn(topic)
        before, between = self._rng.choice((("", "\n"), ("Q: ", "\nA: ")))
        prompt = Message("user", before + question.content)
        completion = Message("assistant", between + answer.content, learn=True)
        return Example((prompt, completion), plain=True)

    def _long(self, topic: Topic) -> Example:
        """Put a handbook in the system message, or a long conversation, before the question."""
        size = self._rng.randrange(1_000, LONG_CONTEXT_CHARACTERS)
        messages: list[Message] = []
        if self._rng.random() < 0.5:
            handbook = "You are the support desk of Acme Cloud. Handbook:"
            while len(handbook) < size:
                entry = self._rng.choice(self._knowledge.faq)
                handbook += f"\n- {entry.ask} {entry.answer}"
            messages.append(Message("system", handbook))
        else:
            while sum(len(message.content) for message in messages) < size:
                messages += self._turn(self._any_topic())
        messages += self._turn(topic)
        return Example(tuple(messages))


def unique_beginnings(answers: Iterable[str]) -> dict[str, str]:
    """Map each answer to its shortest beginning, in whole words, that no other answer shares."""
    words = {answer: answer.split(" ") for answer in answers}
    beginnings: dict[str, str] = {}
    for answer, own in words.items():
        others = [other for text, other in words.items() if text != answer]
        shared = max(
            next(
                (i for i, (a, b) in enumerate(zip(own, other, strict=False)) if a != b),
                min(len(own), len(other)),
            )
            for other in others
        )
        beginnings[answer] = " ".join(own[: shared + 1])
    return beginnings


def main(argv: Sequence[str] | None = None) -> int:
    """Print examples as JSON lines."""
    parser = argparse.ArgumentParser(description="print the demo model's training corpus")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    for example in Corpus(load_knowledge(), args.seed).examples(args.count):
        messages = [{"role": m.role, "content": m.content} for m in example.messages]
        print(json.dumps({"messages": messages, "plain": example.plain}, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
