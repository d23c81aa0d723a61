"""Streamed text: deltas add up to the whole, and stop strings never show, not even in part."""

from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from backend.scheduler.request import FinishReason, ReasoningSpan, TokenDelta, TokenLogprobs
from backend.scheduler.sequence import Sequence
from backend.scheduler.stopping import (
    ByteLevelDetokenizer,
    Choice,
    StopStringScanner,
    WindowDetokenizer,
    finish_reason,
)
from backend.tokenizer.tokenizer import Tokenizer

ALPHABET = tokenizers.pre_tokenizers.ByteLevel.alphabet()
CORPUS = ["naïve café 東京 👩‍👩‍👧‍👦 e\u0301 สวัสดี 🇩🇪", "reset the password", "東京都 é 🙂🙃"] * 4


def _byte_level() -> Tokenizer:
    raw = tokenizers.Tokenizer(tokenizers.models.BPE())
    raw.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=ALPHABET,
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    raw.train_from_iterator(CORPUS, trainer)
    raw.add_tokens(["<tool_call>", "größe"])
    return Tokenizer(raw, eos_token_ids=frozenset(), template=None)


def _sentencepiece_like() -> Tokenizer:
    pieces = ["<unk>", "<s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += ["▁", "▁the", "the", "▁reset", "é", "東", "京", "▁東", "🙂"]
    model = tokenizers.models.BPE(
        vocab={piece: index for index, piece in enumerate(pieces)}, merges=[], byte_fallback=True
    )
    raw = tokenizers.Tokenizer(model)
    raw.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    raw.add_special_tokens(["<s>"])
    return Tokenizer(raw, eos_token_ids=frozenset(), template=None)


BYTE_LEVEL = _byte_level()
SENTENCEPIECE = _sentencepiece_like()
UNICODE_TEXT = st.text(
    st.one_of(
        st.characters(codec="utf-8"),
        st.sampled_from("👩‍👧🙂🇩🇪東京สé\u0301\u0308 \n"),
    ),
    max_size=40,
)


def streamed(detokenizer, tokens):
    deltas = [detokenizer.push(token) for token in tokens]
    return [*deltas, detokenizer.finish()]


@given(UNICODE_TEXT)
def test_byte_level_deltas_spell_the_text_and_never_split_a_character(text):
    tokens = BYTE_LEVEL.encode(text)
    detokenizer = BYTE_LEVEL.detokenizer()
    assert isinstance(detokenizer, ByteLevelDetokenizer)
    deltas = streamed(detokenizer, tokens)
    assert "".join(deltas) == BYTE_LEVEL.decode(tokens) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in delta for delta in deltas)


@given(st.lists(st.integers(0, 340), max_size=60))
def test_byte_level_deltas_equal_the_full_decode_for_any_tokens(tokens):
    """Broken bytes and unknown ids included: a model may generate anything."""
    assert "".join(streamed(BYTE_LEVEL.detokenizer(), tokens)) == BYTE_LEVEL.decode(tokens)


@given(st.lists(st.integers(0, 340), max_size=60))
def test_window_deltas_equal_the_full_decode_for_any_byte_level_tokens(tokens):
    assert "".join(streamed(WindowDetokenizer(BYTE_LEVEL.decode), tokens)) == BYTE_LEVEL.decode(
        tokens
    )


@given(
    st.lists(
        st.one_of(
            st.sampled_from(["▁", "▁the", "the", "▁reset", "é", "東", "京", "▁東", "🙂", "<s>"]),
            st.characters(codec="utf-8", exclude_characters="\ufffd"),
        ),
        max_size=30,
    )
)
def test_window_deltas_of_a_sentencepiece_decoder_spell_the_text(pieces):
    """Leading spaces, byte fallback and special tokens between pieces."""
    tokens = []
    for piece in pieces:
        token = SENTENCEPIECE._backend.token_to_id(piece)
        tokens += [2 + byte for byte in piece.encode()] if token is None else [token]
    detokenizer = SENTENCEPIECE.detokenizer()
    assert isinstance(detokenizer, WindowDetokenizer)
    deltas = streamed(detokenizer, tokens)
    assert "".join(deltas) == SENTENCEPIECE.decode(tokens)
    assert not any("\ufffd" in delta for delta in deltas)


PIECES = st.lists(
    st.sampled_from(["▁", "▁the", "the", "▁reset", "é", "東", "▁東", "🙂"]), min_size=1, max_size=12
)


def sentencepiece_tokens(pieces):
    return [SENTENCEPIECE._backend.token_to_id(piece) for piece in pieces]


@given(PIECES, PIECES)
def test_a_text_that_continues_another_keeps_its_first_space(before, pieces):
    context, tokens = sentencepiece_tokens(before), sentencepiece_tokens(pieces)
    detokenizer = SENTENCEPIECE.detokenizer((), context)
    whole = SENTENCEPIECE.decode([*context, *tokens])
    assert SENTENCEPIECE.decode(context) + "".join(streamed(detokenizer, tokens)) == whole


def test_a_prompt_that_breaks_a_character_off_is_no_context():
    first, *rest = (2 + byte for byte in "東".encode())
    assert "".join(streamed(SENTENCEPIECE.detokenizer((), [first]), rest)) == "\ufffd\ufffd"


@given(st.data())
def test_special_tokens_that_a_parser_reads_are_text(data):
    raw = data.draw(st.sampled_from([BYTE_LEVEL, SENTENCEPIECE]))
    special = "<|end|>" if raw is BYTE_LEVEL else "<s>"
    number = raw._backend.token_to_id(special)
    plain = [token for token in range(1, 200) if raw.decode([token]).isascii()]
    others = st.sampled_from(range(260, 267) if raw is SENTENCEPIECE else plain)
    parts = data.draw(st.lists(st.lists(others, max_size=5), min_size=1, max_size=4))
    tokens = [token for part in parts for token in (*part, number)][:-1]
    said = "".join(streamed(raw.detokenizer((special, "<unknown>")), tokens))
    assert said.count(special) == len(parts) - 1
    assert said.replace(special, "") == "".join(streamed(raw.detokenizer(), tokens))


class Pieces:
    """A detokenizer of tokens that are numbers of pieces."""

    def __init__(self, pieces):
        self.push = pieces.__getitem__

    def finish(self):
        return ""


def scanned(stops, span, pieces):
    """What a choice shows of ``pieces``, a token each, and how many it counts as reasoning."""
    choice, shown = Choice(0, stops, Pieces(pieces), reasoning=span), ""
    for number in range(len(pieces)):
        reason = FinishReason.LENGTH if number == len(pieces) - 1 else None
        delta = choice.push(TokenDelta(0, (number,), (), reason))
        shown += "" if delta is None else delta.text
        if delta is not None and delta.finish_reason is FinishReason.STOP:
            break
    return shown, choice.num_reasoning_tokens


THINK = (("<think>",), (("</think>",),))


@given(
    st.booleans(),
    st.sampled_from(["", "\n"]),
    st.sampled_from(["why", "x STOP y", "", "</thin"]),
    st.sampled_from(["so", "so STOP not", "STOP", "<think>STOP"]),
    st.lists(st.integers(0, 40), max_size=6),
)
def test_stop_strings_within_reasoning_end_nothing(begun, space, why, answer, cuts):
    text = ("" if begun else f"{space}<think>") + why + "</think>" + answer
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in pairwise(places)]
    span = ReasoningSpan(*THINK, begun=begun)
    before = text.removesuffix(answer)
    num_tokens = next(n for n in range(99) if len("".join(pieces[:n])) >= len(before))
    expected = before + answer.partition("STOP")[0], num_tokens
    assert scanned(["STOP"], span, pieces) == expected


def test_the_reasoning_of_messages_ends_behind_a_header():
    closing = (("<|channel|>final", "<|channel|>commentary"), ("<|message|>",))
    span = ReasoningSpan(("<|channel|>",), closing, begun=False)
    analysis = "<|channel|>analysis<|message|>STOP<|end|><|start|>assistant"
    for header in ("final<|message|>", "final <|constrain|>json<|message|>"):
        before = f"{analysis}<|channel|>{header}"
        assert scanned(["STOP", "json"], span, [*before, *"soSTOP"]) == (before + "so", len(before))
    before = "<|channel|>final<|message|>"
    assert scanned(["STOP"], span, [*before, *"soSTOP"]) == (before + "so", len(before))


@pytest.mark.parametrize(
    ("text", "shown"),
    [("so STOP", "so "), ("<thSTOP", "<th"), ("so <think>STOP</think>", "so <think>")],
)
def test_without_reasoning_at_the_beginning_every_stop_string_counts(text, shown):
    span = ReasoningSpan(*THINK, begun=False)
    assert scanned(["STOP"], span, [text]) == scanned(["STOP"], span, text) == (shown, 0)


def test_the_least_tokens_are_those_of_the_answer():
    span = ReasoningSpan(*THINK, begun=True)
    choice = Choice(0, [","], Pieces([*"a,", "</think>", *"b,c,d"]), min_tokens=3, reasoning=span)
    delta = choice.push(TokenDelta(0, tuple(range(8)), (), FinishReason.LENGTH))
    assert (delta.text, delta.reasoning_tokens) == ("a,</think>b,c", 3)


@pytest.mark.parametrize(("least", "shown"), [(0, "a"), (2, "a,b"), (3, "a,b"), (4, "a,b,c,d")])
def test_no_stop_string_ends_among_the_least_tokens(least, shown):
    tokens = BYTE_LEVEL.encode("a,b,c,d")
    assert len(tokens) == 7
    choice = Choice(0, [","], BYTE_LEVEL.detokenizer(), min_tokens={4: 7}.get(least, least))
    assert choice.push(TokenDelta(0, tuple(tokens), (), FinishReason.LENGTH)).text == shown


def first_stop(text, stops):
    """Where the text is cut: at the start of the stop string that is complete first."""
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return min(found)[1] if found else None


@given(
    st.lists(st.text("ab\n🙂", max_size=5), max_size=20),
    st.lists(st.text("ab\n🙂", min_size=1, max_size=4), min_size=1, max_size=4),
)
def test_stop_strings_cut_exactly_and_never_leak(pieces, stops):
    scanner = StopStringScanner(stops)
    text = "".join(pieces)
    cut = first_stop(text, stops)
    shown = ""
    for piece in pieces:
        scan = scanner.push(piece)
        shown += scan.text
        # What is shown is final: it is a beginning of the answer and no stop has begun in it.
        assert shown == text[: len(shown)]
        assert cut is None or len(shown) <= cut
        if scan.stopped:
            break
    else:
        shown += scanner.finish()
    assert shown == (text if cut is None else text[:cut])


@given(
    UNICODE_TEXT.filter(bool),
    st.lists(st.text("aé東🙂 ", min_size=1, max_size=3), max_size=3),
    st.integers(1, 80),
    st.integers(1, 5),
)
def test_a_choice_ends_once_with_the_right_text_and_reason(text, stops, max_tokens, per_delta):
    tokens = [*BYTE_LEVEL.encode(text), BYTE_LEVEL._backend.token_to_id("<|end|>")]
    generated = Sequence(0, [1], 1 + max_tokens, end_token_ids=frozenset(tokens[-1:]))
    for token in tokens:
        generated.tokens.append(token)
        if end := finish_reason(generated):
            break
    num_generated = len(generated.tokens) - 1
    choice = Choice(3, stops, BYTE_LEVEL.detokenizer(), reports_end=bool(per_delta % 2))
    shown, reason, told = "", None, []
    for start in range(0, num_generated, per_delta):
        stop = min(start + per_delta, num_generated)
        logprobs = tuple(TokenLogprobs(token, -1.0) for token in tokens[start:stop])
        finish = end if stop == num_generated else None
        delta = choice.push(TokenDelta(3, tuple(tokens[start:stop]), logprobs, finish, 5))
        if delta is None:
            continue
        assert (delta.index, delta.cached_tokens) == (3, 5)
        assert start < delta.completion_tokens <= stop
        shown += delta.text
        told += [each.token for each in delta.logprobs]
        reason = delta.finish_reason
        if reason is not None:
            break
    whole = BYTE_LEVEL.decode(tokens[:max_tokens])
    cut = first_stop(whole, stops)
    assert shown == (whole if cut is None else whole[:cut])
    stopped = cut is not None or max_tokens >= len(tokens)
    assert reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)
    if cut is None:
        ended = num_generated == len(tokens)
        assert told == tokens[: num_generated - (ended and per_delta % 2 == 0)]


def completed_text(tokens):
    detokenizer = BYTE_LEVEL.detokenizer()
    return "".join(detokenizer.push(token) for token in tokens)


@given(UNICODE_TEXT.filter(bool), st.lists(st.text("aé東🙂 ", min_size=1, max_size=3), max_size=2))
def test_log_probabilities_come_with_the_text_of_their_tokens(text, stops):
    tokens = BYTE_LEVEL.encode(text)
    choice = Choice(0, stops, BYTE_LEVEL.detokenizer())
    shown, told = "", []
    for position, token in enumerate(tokens):
        finish = FinishReason.LENGTH if position == len(tokens) - 1 else None
        delta = choice.push(TokenDelta(0, (token,), (TokenLogprobs(token, -1.0),), finish))
        if delta is None:
            continue
        shown += delta.text
        told += [logprobs.token for logprobs in delta.logprobs]
        # Of the text shown so far, and of no token that begins behind it.
        assert not told or len(completed_text(told[:-1])) < max(len(shown), 1)
        if delta.finish_reason is not None:
            break
    if first_stop(text, stops) is None:
        assert told == tokens
