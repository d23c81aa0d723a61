"""A cross-encoder of random weights that loads as the trained one does, with MiniLM's tokenizer."""

from pathlib import Path

import numpy as np

from embeddings.encoder.model_files import DEFAULT_MODEL, locate
from tools.verifier.export import AS_BERT, save_second, save_verifier

VOCABULARY, HIDDEN, INNER = 30522, 32, 64
CONFIG = {
    "name": "tiny",
    "model_type": "bert",
    "hidden_act": "gelu",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "layer_norm_eps": 1e-12,
    "max_tokens": 64,
}


def random_weights(seed: int = 0) -> dict[str, np.ndarray]:
    """All that a BERT of two layers with a head of one logit has."""
    random = np.random.default_rng(seed)
    weights: dict[str, np.ndarray] = {}

    def matrix(name: str, rows: int, columns: int, bias: bool = True) -> None:
        weights[f"{name}.weight"] = random.normal(0, 0.3, (rows, columns)).astype(np.float32)
        if bias:
            weights[f"{name}.bias"] = random.normal(0, 0.3, rows).astype(np.float32)

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = random.normal(1, 0.3, HIDDEN).astype(np.float32)
        weights[f"{name}.bias"] = random.normal(0, 0.3, HIDDEN).astype(np.float32)

    for kind, rows in (("word", VOCABULARY), ("position", 512), ("token_type", 4)):
        matrix(f"embeddings.{kind}_embeddings", rows, HIDDEN, bias=False)
    norm("embeddings.LayerNorm")
    for layer in range(CONFIG["num_hidden_layers"]):
        name = f"encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            matrix(f"{name}.attention.{part}", HIDDEN, HIDDEN)
        matrix(f"{name}.intermediate.dense", INNER, HIDDEN)
        matrix(f"{name}.output.dense", HIDDEN, INNER)
        norm(f"{name}.attention.output.LayerNorm")
        norm(f"{name}.output.LayerNorm")
    matrix("classifier", 1, HIDDEN)
    return weights


def write_tiny_verifier(directory: Path, seed: int = 0, **changed: np.ndarray) -> Path:
    """Write one; `changed` weights take the place of those of their name."""
    tokenizer = locate(DEFAULT_MODEL).directory / "tokenizer.json"
    save_verifier({**random_weights(seed), **changed}, CONFIG, tokenizer, directory)
    return directory


def write_tiny_second(first: Path, *, gate: float, first_weighs: float = 0.0) -> Path:
    """Write a second network of random weights, an MPNet, for the verifier in `first`."""
    weights = {_mpnets_name(name): value for name, value in random_weights(seed=9).items()}
    random = np.random.default_rng(9)
    for table, rows in (("word", 4), ("position", 2)):
        name = f"embeddings.{table}_embeddings.weight"
        more = random.normal(0, 0.3, (rows, HIDDEN)).astype(np.float32)
        weights[name] = np.concatenate([more, weights[name]])
    heads = CONFIG["num_attention_heads"]
    bias = random.normal(0, 0.3, (32, heads)).astype(np.float32)
    weights["encoder.relative_attention_bias.weight"] = bias
    config = {**CONFIG, "name": "tiny second", "model_type": "mpnet"}
    return save_second(weights, config, first, gate=gate, first_weighs=first_weighs)


def _mpnets_name(name: str) -> str:
    for mpnets, berts in AS_BERT:
        name = name.replace(berts, mpnets)
    return name
