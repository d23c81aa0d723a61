"""A model's tokenizer: text to tokens, messages to text, and the tokens that end an answer.

Reads ``tokenizer.json`` with the ``tokenizers`` library, what ``files`` finds beside it, and end
tokens in ``generation_config.json`` and ``config.json``.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import tokenizers

from backend.models.config import ModelLoadError, read_json
from backend.scheduler.stopping import (
    ByteLevelDetokenizer,
    IncrementalDetokenizer,
    WindowDetokenizer,
)
from backend.tokenizer.chat_template import ChatTemplate, ChatTemplateError
from backend.tokenizer.files import add_tokens, load_template

_BYTE_FALLBACK = re.compile("<0x[0-9A-F]{2}>")


class Tokenizer:
    """Safe to use from any thread."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_token_ids: frozenset[int],
        template: ChatTemplate | None,
    ) -> None:
        """Wrap a loaded ``tokenizers.Tokenizer``; see ``load`` for the usual way."""
        # Batching options that some checkpoints leave behind would cut or pad prompts.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._template = template
        self.chat_template = "" if template is None else template.source
        self.tool_template = "" if template is None else template.tool_source
        """The chat template for requests with tools."""
        self.special_tokens = {
            token.content: token_id
            for token_id, token in backend.get_added_tokens_decoder().items()
            if token.special
        }
        """They have no text, unless a parser reads them."""
        self._special_ids = frozenset(self.special_tokens.values())
        decoder = json.loads(backend.to_str()).get("decoder") or {}
        self._byte_level = decoder.get("type") == "ByteLevel"
        self._bytes: dict[int, bytes] = {}
        self.eos_token_ids = eos_token_ids
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)

    @classmethod
    def load(cls, directory: Path, chat_template: tuple[str, str] | None = None) -> Self:
        """Read the tokenizer of a model directory. Raises ModelLoadError naming the file.

        ``chat_template``, a path and what it holds, takes the place of the model's own.
        """
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ModelLoadError(f"{path}: not found; only models with a tokenizer.json are served")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for a bad file
            raise ModelLoadError(f"{path}: {error}") from error
        config = read_json(directory / "tokenizer_config.json", optional=True)
        special = add_tokens(backend, directory, config)
        template = load_template(directory, config, special, chat_template)
        eos = _generation_eos(directory)
        eos_token = special.get("eos_token")
        token_id = None if eos_token is None else backend.token_to_id(eos_token)
        if token_id is not None:
            eos |= {token_id}
        return cls(backend, eos_token_ids=eos, template=template)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the tokens of ``text``; special tokens written in it are recognised.

        ``add_special_tokens`` adds what the model expects around a bare text (often a beginning
        token): wanted for completion prompts, not for text made by a chat template.
        """
        # The library lets other threads run while it encodes a batch, and only then.
        batch = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = batch[0].ids
        return ids

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        batch = self._backend.decode_batch([list(tokens)], skip_special_tokens=skip_special_tokens)
        text: str = batch[0]
        return text

    def token_strings(self, tokens: Sequence[int]) -> list[str]:
        return [self._backend.id_to_token(token) or "" for token in tokens]

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        # Its ValueError is ChatTemplateError, also where the model has no template.
        if self._template is None:
            raise ChatTemplateError("this model has no chat template; use /v1/completions")
        return self._template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            variables=variables or {},
        )

    def token_bytes(self, token: int) -> bytes:
        if token in self._special_ids:
            return str(self._backend.id_to_token(token)).encode()
        return self.visible_bytes(token)

    def visible_bytes(self, token: int) -> bytes:
        """Return what ``token`` adds to a text: nothing if it is a special one."""
        cached = self._bytes.get(token)
        if cached is None:
            cached = self._bytes[token] = self._look_up_bytes(token)
        return cached

    def detokenizer(
        self, markup: Sequence[str] = (), context: Sequence[int] = ()
    ) -> IncrementalDetokenizer:
        """Return fresh state for one choice.

        The special tokens among ``markup`` are text. ``context`` are tokens before the text.
        """
        special = self.special_tokens
        shown = {special[tag]: tag for tag in markup if tag in special}
        if not self._byte_level:
            return WindowDetokenizer(self.decode, context, shown)
        if not shown:
            return ByteLevelDetokenizer(self.visible_bytes)
        spelled = {token: tag.encode() for token, tag in shown.items()}
        return ByteLevelDetokenizer(lambda token: spelled.get(token) or self.visible_bytes(token))

    def _look_up_bytes(self, token: int) -> bytes:
        # Models pad their vocabulary: ids that the tokenizer does not know have no text.
        name = None if token in self._special_ids else self._backend.id_to_token(token)
        if name is None:
            return b""
        if self._byte_level:
            try:
                return bytes(_BYTE_OF_CHARACTER[character] for character in name)
            except KeyError:
                return name.encode()
        if _BYTE_FALLBACK.fullmatch(name):
            return bytes([int(name[3:5], 16)])
        return name.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's reversible map from printable characters to bytes.

    Printable Latin-1 stands for itself; every other byte, in order, for U+0100 and up.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + offset): byte for offset, byte in enumerate(others)
    }


_BYTE_OF_CHARACTER = _byte_alphabet()


def _generation_eos(directory: Path) -> frozenset[int]:
    for name in ("generation_config.json", "config.json"):
        values = read_json(directory / name, optional=True)
        text = values.get("text_config")  # of a model that reads images too
        for each in (values, text if isinstance(text, dict) else {}):
            value = each.get("eos_token_id")
            if isinstance(value, int):
                return frozenset({value})
            if isinstance(value, list):
                return frozenset(value)
    return frozenset()
