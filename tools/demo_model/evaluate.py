"""Measure the demo model: ``python -m tools.demo_model.evaluate [--model DIR]``.

Greedy answers to every question of the FAQ: as phrased, in paraphrases like those of training, and
in paraphrases that training never saw. An answer is *exact* if it equals the expected one up to
white space, and *close* if the expected answer is the one it shares most words with. The last line
is JSON.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools.demo_model.knowledge import Knowledge, Topic, load_knowledge
from tools.demo_model.phrasing import Reason, decorate, phrasings

MODEL = Path(__file__).parents[2] / "backend" / "demo" / "model"
BATCH = 64
MAX_NEW_TOKENS = 96
SYSTEM_PROMPT = "You are a kind and competent assistant who helps our customers."  # not in training


@dataclass(frozen=True, slots=True)
class Question:
    """A conversation that ends with a user message, and the answer that is right."""

    messages: tuple[tuple[str, str], ...]
    answer: str


def main(argv: Sequence[str] | None = None) -> int:
    """Run all sets, print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description="measure the demo model")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--misses", type=int, default=0, help="wrong answers to show for each set")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    knowledge = load_knowledge()
    answerer = Answerer(args.model, args.temperature)
    answers = [t.answer for t in (*knowledge.faq, *knowledge.smalltalk, knowledge.offtopic)]
    report: dict[str, Any] = {"model": str(args.model), "questions": len(knowledge.faq)}
    began = time.monotonic()
    for name, questions in question_sets(knowledge, random.Random(args.seed)).items():
        given = answerer.answer([question.messages for question in questions])
        pairs = list(zip(questions, given, strict=True))
        wrong = [(q, text) for q, text in pairs if _words(text) != _words(q.answer)]
        close = sum(nearest(text, answers) == q.answer for q, text in pairs)
        exact_share, close_share = 1 - len(wrong) / len(pairs), close / len(pairs)
        report[name] = {
            "n": len(pairs),
            "exact": round(exact_share, 4),
            "close": round(close_share, 4),
        }
        print(f"{name:20} {len(pairs):5}  exact {exact_share:.1%}  close {close_share:.1%}")
        for question, text in wrong[: args.misses]:
            print(f"    asked    {question.messages[-1][1]}\n    answered {text}")
    held = [report[name] for name in ("held_combination", "held_template", "held_wording")]
    report["held_all"] = round(
        sum(h["exact"] * h["n"] for h in held) / sum(h["n"] for h in held), 4
    )
    report["seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps(report))
    return 0


class Answerer:
    """Answers conversations in batches, through the chat template, with ``transformers``."""

    def __init__(self, directory: Path, temperature: float = 0.0) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="left")
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self._temperature = temperature

    def answer(self, conversations: Sequence[Sequence[tuple[str, str]]]) -> list[str]:
        """Return one answer for each conversation of (role, content) pairs, in order."""
        prompts = [
            self._tokenizer.apply_chat_template(
                [{"role": role, "content": content} for role, content in conversation],
                tokenize=False,
                add_generation_prompt=True,
            )
            for conversation in conversations
        ]
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        answers = [""] * len(prompts)
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            for row, text in zip(rows, self._generate([prompts[i] for i in rows]), strict=True):
                answers[row] = text
        return answers

    @torch.inference_mode()
    def _generate(self, prompts: Sequence[str]) -> list[str]:
        batch = self._tokenizer(
            list(prompts), return_tensors="pt", padding=True, return_token_type_ids=False
        )
        sampling: dict[str, Any] = {"do_sample": False}
        if self._temperature > 0:
            sampling = {"do_sample": True, "temperature": self._temperature, "top_k": 0}
        output = self._model.generate(**batch, max_new_tokens=MAX_NEW_TOKENS, **sampling)
        new = output[:, batch["input_ids"].shape[1] :]
        texts: list[str] = self._tokenizer.batch_decode(new, skip_special_tokens=True)
        return texts


def question_sets(knowledge: Knowledge, rng: random.Random) -> dict[str, list[Question]]:
    """Return the sets by name; the same for the same seed."""
    sets: dict[str, list[Question]] = {"as_phrased": [_plain(t.ask, t) for t in knowledge.faq]}
    trained = sets["trained_paraphrase"] = []
    held = {reason: sets.setdefault(f"held_{reason}", []) for reason in Reason}
    for topic in knowledge.faq:
        ways = phrasings(topic)
        seen = [way.text for way in ways if way.held is None]
        trained += [_plain(text, topic) for text in rng.sample(seen, min(3, len(seen)))]
        for reason in Reason:
            texts = [way.text for way in ways if way.held is reason]
            held[reason] += [_plain(text, topic) for text in rng.sample(texts, min(2, len(texts)))]
    sets["typed_in_a_hurry"] = [_plain(decorate(rng, t.ask), t) for t in knowledge.faq]
    sets["new_system_message"] = [
        Question((("system", SYSTEM_PROMPT), ("user", t.ask)), t.answer) for t in knowledge.faq
    ]
    sets["second_turn"] = [
        Question((("user", first.ask), ("assistant", first.answer), ("user", t.ask)), t.answer)
        for t in knowledge.faq
        for first in [rng.choice(knowledge.faq)]
    ]
    sets["held_follow_up"] = [
        Question((("user", before.ask), ("assistant", before.answer), ("user", text)), after.answer)
        for follow_up in knowledge.follow_ups
        for before in [knowledge.topic(follow_up.before)]
        for after in [knowledge.topic(follow_up.after)]
        for text in follow_up.held
    ]
    sets["held_smalltalk"] = [_plain(x, t) for t in knowledge.smalltalk for x in t.held]
    sets["held_offtopic"] = [_plain(x, knowledge.offtopic) for x in knowledge.offtopic.held]
    return sets


def nearest(text: str, answers: Iterable[str]) -> str:
    """Return the answer that shares most words with ``text`` (Jaccard over multisets)."""
    words = Counter(_words(text.casefold()))

    def overlap(answer: str) -> float:
        other = Counter(_words(answer.casefold()))
        return (words & other).total() / max(1, (words | other).total())

    return max(answers, key=overlap)


def _plain(text: str, topic: Topic) -> Question:
    return Question((("user", text),), topic.answer)


def _words(text: str) -> list[str]:
    return text.split()


if __name__ == "__main__":
    sys.exit(main())
