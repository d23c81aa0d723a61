"""The committed demo model: its files, its tokenizer and template, and a few of its answers."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools.demo_model.corpus import Corpus
from tools.demo_model.evaluate import MODEL, Answerer
from tools.demo_model.knowledge import load_knowledge
from tools.demo_model.tokenizer import END, END_ID, IGNORED, Encoder

WEIGHTS = MODEL / "model.safetensors"
TOKENIZER = Tokenizer.from_file(str(MODEL / "tokenizer.json"))


@pytest.fixture(scope="module")
def chat():
    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def answerer():
    return Answerer(MODEL)


def test_weights_are_small_and_bfloat16():
    assert WEIGHTS.stat().st_size <= 18_000_000
    with safe_open(WEIGHTS, framework="pt") as tensors:
        slices = [tensors.get_slice(name) for name in tensors.keys()]  # noqa: SIM118
        assert {s.get_dtype() for s in slices} == {"BF16"}
        assert 4_000_000 <= sum(math.prod(s.get_shape()) for s in slices) <= 9_000_000


def test_config_is_a_llama_with_room_for_four_thousand_tokens():
    config = json.loads((MODEL / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["max_position_embeddings"] >= 4096
    assert config["vocab_size"] >= TOKENIZER.get_vocab_size()
    assert config["eos_token_id"] == END_ID == TOKENIZER.token_to_id(END)
    generation = json.loads((MODEL / "generation_config.json").read_text())
    assert END_ID in generation["eos_token_id"]


@given(st.text())
def test_any_text_round_trips(text):
    ids = TOKENIZER.encode(text).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


def test_dialogue_renders_with_the_generation_prompt(chat):
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": " Hello\n"},
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": [{"type": "text", "text": "And now?"}]},
    ]
    assert chat.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|system|>Be kind.<|end|><|user|>Hello<|end|><|assistant|>Hi!<|end|>"
        "<|user|>And now?<|end|><|assistant|>"
    )


@pytest.mark.parametrize(
    ("messages", "rendered"),
    [
        ([{"role": "assistant", "content": "Hi"}], "<|assistant|>Hi<|end|>"),
        ([{"role": "developer", "content": "x"}], "<|system|>x<|end|>"),
        ([{"role": "tool", "content": "42", "tool_call_id": "1"}], "<|user|>42<|end|>"),
        ([{"role": "assistant", "content": None}], "<|assistant|><|end|>"),
        ([{"role": "assistant", "tool_calls": []}], "<|assistant|><|end|>"),
        ([{"role": "user", "content": "a"}] * 2, "<|user|>a<|end|>" * 2),
        (
            [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}],
            "<|user|>a<|end|><|system|>b<|end|>",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "<|user|><|end|>",
        ),
    ],
)
def test_template_refuses_no_order_of_roles(chat, messages, rendered):
    assert chat.apply_chat_template(messages, tokenize=False) == rendered


def test_training_encodes_dialogues_as_the_template_renders_them(chat):
    encoder = Encoder(TOKENIZER)
    examples = list(Corpus(load_knowledge(), seed=3).examples(600))
    whole = [e for e in examples if not e.plain and not e.messages[-1].cut]
    assert len(whole) > 50
    for example in whole:
        ids, labels = encoder.encode(example)
        messages = [{"role": m.role, "content": m.content} for m in example.messages]
        rendered = chat.apply_chat_template(messages, tokenize=False)
        assert ids == TOKENIZER.encode(rendered).ids
        learnt = [label for label in labels if label != IGNORED]
        said = "".join(m.content + END for m in example.messages if m.learn)
        assert TOKENIZER.decode(learnt, skip_special_tokens=False) == said


def test_faq_questions_are_answered_word_for_word(answerer):
    knowledge = load_knowledge()
    ids = ("password-reset", "account-delete", "project-delete", "2fa-enable", "2fa-disable")
    topics = [knowledge.topic(topic_id) for topic_id in ids]
    answers = answerer.answer([[("user", topic.ask)] for topic in topics])
    assert answers == [topic.answer for topic in topics]


def test_the_same_words_after_another_topic_get_another_answer(answerer):
    knowledge = load_knowledge()

    def after(topic_id):
        topic = knowledge.topic(topic_id)
        asked = "And how do I undo that?"
        return [("user", topic.ask), ("assistant", topic.answer), ("user", asked)]

    answers = answerer.answer([after("2fa-enable"), after("account-delete")])
    assert answers == [
        knowledge.topic("2fa-disable").answer,
        knowledge.topic("account-restore").answer,
    ]


def test_a_full_context_stays_finite():
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    ids = torch.randint(5, 1000, (1, 4096), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        logits = model(ids, logits_to_keep=1).logits
    assert torch.isfinite(logits).all()
