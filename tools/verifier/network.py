"""The cross-encoder as a torch module: MiniLM's first layers, slimmed, and a head over all tokens.

Each token says how surely it tells the two texts apart; the pair's logit is what the most certain
of them leave over: ``bias - logsumexp(tokens @ weight) + log(tokens)``. That one word makes two
questions different is thus built in and need not be learned: beside a head on the first token alone
it learns in far fewer steps (benchmarks/LOG.md). Without the last term long texts would score less
for their length alone.
"""

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from embeddings.verify.features import TOKEN_TYPES

_PADDING: Final = -1e4


class PairNetwork(nn.Module):
    """Ids, types and mask of shape (pairs, tokens) to logits of shape (pairs,)."""

    def __init__(self, encoder: Path, *, layers: int, inner: int) -> None:
        """Take the first ``layers`` of the encoder, each with its ``inner`` largest inner units."""
        super().__init__()
        given = json.loads((encoder / "config.json").read_text(encoding="utf-8"))
        kept = {name: value for name, value in given.items() if not name.startswith("_")}
        kept |= {
            "num_hidden_layers": layers,
            "intermediate_size": inner,
            "type_vocab_size": TOKEN_TYPES,
            # There is more to learn than time to learn it: nothing is seen often enough to be
            # learned by heart.
            "attention_probs_dropout_prob": 0.0,
            "hidden_dropout_prob": 0.0,
        }
        self.config: dict[str, Any] = kept
        self.bert = BertModel(BertConfig(**kept), add_pooling_layer=False)
        weights = _slimmed(load_file(encoder / "model.safetensors"), layers, inner)
        missing = self.bert.load_state_dict(weights, strict=False).missing_keys
        if any(not name.endswith("position_ids") for name in missing):
            raise ValueError(f"{encoder} lacks {missing}")
        # What words mean is known; to move it would only fit the words of the training set.
        self.bert.embeddings.word_embeddings.weight.requires_grad_(False)
        self.classifier = nn.Linear(int(kept["hidden_size"]), 1)
        nn.init.normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        """Return the logits."""
        tokens = self.bert(input_ids=ids, token_type_ids=types, attention_mask=mask)
        differs = (tokens.last_hidden_state @ self.classifier.weight.T)[:, :, 0]
        total = torch.logsumexp(differs.masked_fill(mask == 0, _PADDING), 1)
        logits: Tensor = self.classifier.bias - total + mask.sum(1).log()
        return logits


def _slimmed(weights: dict[str, Tensor], layers: int, inner: int) -> dict[str, Tensor]:
    found = {
        name: value
        for name, value in weights.items()
        if name.startswith("embeddings.") or _layer(name) < layers
    }
    types = "embeddings.token_type_embeddings.weight"
    both = found[types][:2]
    found[types] = torch.cat([both, both + 0.02 * torch.randn_like(both)])
    for number in range(layers):
        into, out = (f"encoder.layer.{number}.{part}.dense" for part in ("intermediate", "output"))
        size = found[f"{into}.weight"].norm(dim=1) * found[f"{out}.weight"].norm(dim=0)
        units = size.topk(inner).indices.sort().values
        found[f"{into}.weight"] = found[f"{into}.weight"][units]
        found[f"{into}.bias"] = found[f"{into}.bias"][units]
        found[f"{out}.weight"] = found[f"{out}.weight"][:, units]
    return found


def _layer(name: str) -> int:
    parts = name.split(".")
    return int(parts[2]) if parts[:2] == ["encoder", "layer"] else 1_000_000
