"""The cross-encoder as a torch module: a BERT or MPNet body, and a head over all tokens.

Each token says how surely it tells the two texts apart; the pair's logit is what the most certain
of them leave over: ``bias - logsumexp(tokens @ weight) + log(tokens)``. That one word makes two
questions different is thus built in and need not be learned: beside a head on the first token alone
it learns in far fewer steps (benchmarks/LOG.md). Without the last term long texts would score less
for their length alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from embeddings.verify.recipe import SPECIAL_TOKENS, TOKEN_TYPES, pair_features

MAX_TOKENS: Final = 256
_PADDING: Final = -1e4
_NOISE: Final = 0.02
_SPECIAL: Final = {"bert": ("[CLS]", "[SEP]", "[PAD]"), "mpnet": ("<s>", "</s>", "<pad>")}

Features = tuple[list[int], list[int]]


class PairNetwork(nn.Module):
    """Ids, types and mask of shape (pairs, tokens) to logits of shape (pairs,).

    `directory` holds a BERT or an MPNet in the layout of transformers. Its word embeddings stay as
    they are: what words mean is known, and to move it would only fit the words of the training set.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__()
        config = AutoConfig.from_pretrained(directory)
        # There is more to learn than time to learn it: nothing is seen often enough to be learned
        # by heart. The fused attention's backward pass takes half of a step on a CPU.
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
        self.kind = str(config.model_type)
        if self.kind not in _SPECIAL:
            raise ValueError(f"{directory}: {self.kind}, expected one of {', '.join(_SPECIAL)}")
        self.config: dict[str, Any] = {**config.to_dict(), "type_vocab_size": TOKEN_TYPES}
        self.bert = AutoModel.from_pretrained(
            directory, config=config, add_pooling_layer=False, attn_implementation="eager"
        ).float()
        self.bert.embeddings.word_embeddings.weight.requires_grad_(False)
        if self.kind == "bert":
            # The first two types are BERT's own; the other two start beside them.
            both = self.bert.embeddings.token_type_embeddings.weight.data[:2]
            types = torch.cat([both, both + _NOISE * torch.randn_like(both)])
            added = nn.Embedding(TOKEN_TYPES, config.hidden_size)
            added.weight.data.copy_(types)
            self.bert.embeddings.token_type_embeddings = added
        else:
            self.types = nn.Embedding(TOKEN_TYPES, config.hidden_size)
            nn.init.normal_(self.types.weight, std=_NOISE)
        self.classifier = nn.Linear(config.hidden_size, 1)
        nn.init.normal_(self.classifier.weight, std=_NOISE)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        """Return the logits."""
        if self.kind == "bert":
            body = self.bert(input_ids=ids, token_type_ids=types, attention_mask=mask)
        else:
            words = self.bert.embeddings.word_embeddings(ids) + self.types(types)
            body = self.bert(inputs_embeds=words, attention_mask=mask)
        with torch.autocast("cpu", enabled=False):
            differs = (body.last_hidden_state.float() @ self.classifier.weight.T)[:, :, 0]
            total = torch.logsumexp(differs.masked_fill(mask == 0, _PADDING), 1)
            logits: Tensor = self.classifier.bias - total + mask.sum(1).float().log()
        return logits

    def new_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that start at random."""
        added = [*self.classifier.parameters()]
        return added if self.kind == "bert" else [*added, *self.types.parameters()]


class PairReader:
    """Makes features of pairs as the verifier does, with the tokenizer of a network's folder."""

    def __init__(self, directory: Path, kind: str, max_tokens: int = MAX_TOKENS) -> None:
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        found = [self._tokenizer.token_to_id(token) for token in _SPECIAL[kind]]
        self._cls, self._sep, self.padding = (int(number or 0) for number in found)
        self._max_tokens = max_tokens

    def features(self, a: str, b: str) -> Features:
        """Return ids and types; of texts that are too long, of their beginnings."""
        most = (self._max_tokens - SPECIAL_TOKENS) // 2
        one, two = (
            self._tokenizer.encode(text, add_special_tokens=False).ids[:most] for text in (a, b)
        )
        return pair_features(one, two, self._cls, self._sep)

    def collate(self, features: Sequence[Features]) -> tuple[Tensor, Tensor, Tensor]:
        """Return ids, types and mask, shape (pairs, longest)."""
        longest = max(len(ids) for ids, _ in features)
        ids = torch.full((len(features), longest), self.padding)
        types, mask = (torch.zeros(len(features), longest, dtype=torch.long) for _ in range(2))
        for row, (tokens, kinds) in enumerate(features):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            types[row, : len(tokens)] = torch.tensor(kinds)
            mask[row, : len(tokens)] = 1
        return ids, types, mask
