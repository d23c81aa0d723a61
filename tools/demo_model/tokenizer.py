"""The demo model's tokenizer: byte-level BPE, five special tokens, and the chat template.

A dialogue is ``<|role|>content<|end|>`` for each message; the generation prompt is
``<|assistant|>``.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.demo_model.corpus import Example

TEXT_END = "<|endoftext|>"
END = "<|end|>"
ROLES = ("system", "user", "assistant")
SPECIAL_TOKENS = (TEXT_END, END, *(f"<|{role}|>" for role in ROLES))  # ids 0 to 4, in order
TEXT_END_ID = 0
END_ID = 1
ROLE_IDS = {role: 2 + place for place, role in enumerate(ROLES)}
IGNORED = -100  # the label that torch's cross entropy leaves out

# Refuses no role and no order of roles: what is neither assistant nor instruction reads as user.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- set role = message['role'] -%}
{%- if role == 'developer' -%}{%- set role = 'system' -%}
{%- elif role not in ['system', 'user', 'assistant'] -%}{%- set role = 'user' -%}{%- endif -%}
{%- set content = message['content'] if 'content' in message else '' -%}
{{- '<|' + role + '|>' -}}
{%- if content is string -%}
{{- content | trim -}}
{%- elif content -%}
{%- for part in content -%}
{%- if part['text'] is defined -%}{{- part['text'] | trim -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn a byte-level BPE of at most ``vocab_size`` tokens; any Unicode text round-trips."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path, max_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json (with the chat template)."""
    values = json.loads(tokenizer.to_str())
    # Merges as text compress better in the wheel than pairs do.
    values["model"]["merges"] = [" ".join(pair) for pair in values["model"]["merges"]]
    compact = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    (directory / "tokenizer.json").write_text(compact, encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": TEXT_END,
        "eos_token": END,
        "pad_token": TEXT_END,
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=2) + "\n"
    (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")


class Encoder:
    """Turns examples into token ids and labels, as the chat template would render them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, example: Example) -> tuple[list[int], list[int]]:
        """Return ids and labels of one length; labels are IGNORED where nothing is to be learnt."""
        ids: list[int] = []
        labels: list[int] = []
        for message in example.messages:
            if not example.plain:
                ids.append(ROLE_IDS[message.role])
                labels.append(IGNORED)
            content: list[int] = self._tokenizer.encode(message.content).ids
            ids += content
            labels += content if message.learn else [IGNORED] * len(content)
            if not message.cut and (not example.plain or message.learn):
                ids.append(END_ID)
                labels.append(END_ID if message.learn else IGNORED)
        return ids, labels
