"""A pair for speculative decoding: ``python -m tools.demo_model.draft --out DIR``.

``DIR/target`` is the bundled model grown to ten times its size. It computes what the bundled model
computes, for what was added is multiplied by zeros (as Net2Net grows networks: Chen et al., 2016);
a step of it costs what a step of its size costs. ``DIR/draft`` is a model of a fifth of the bundled
one's size, trained on the same corpus in a few minutes. Both have the bundled model's tokenizer.
"""

import argparse
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tools.demo_model.corpus import Corpus
from tools.demo_model.knowledge import load_knowledge
from tools.demo_model.tokenizer import Encoder
from tools.demo_model.train import fit, in_batches

BUNDLED = Path(__file__).parents[2] / "backend" / "demo" / "model"
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
_TEMPLATE = "chat_template.jinja"

TARGET = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12}
DRAFT = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2}


def main(argv: Sequence[str] | None = None) -> int:
    """Make both; returns the exit code."""
    parser = argparse.ArgumentParser(description="make a target and a draft model")
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--examples", type=int, default=40_000)
    parser.add_argument("--batch-tokens", type=int, default=3072)
    parser.add_argument("--lr", type=float, default=0.02, help="of the matrices")
    parser.add_argument("--embedding-lr", type=float, default=0.004)
    parser.add_argument("--resume", action="store_true", help="go on from OUT/draft/checkpoint.pt")
    args = parser.parse_args(argv)
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    bundled = LlamaForCausalLM.from_pretrained(BUNDLED, dtype=torch.float32)
    _save(grown(bundled), args.out / "target")
    draft = LlamaForCausalLM(
        _config(bundled.config, num_attention_heads=4, num_key_value_heads=2, **DRAFT)
    )
    encoder = Encoder(Tokenizer.from_file(str(BUNDLED / "tokenizer.json")))
    examples = Corpus(load_knowledge(), args.seed).examples(args.examples)
    encoded = [encoder.encode(example) for example in examples]
    batches = list(in_batches(encoded, args.batch_tokens, random.Random(args.seed)))
    args.out /= "draft"
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_flush_denormal(True)
    try:
        fit(draft, batches, args, "cpu")
    finally:
        torch.set_flush_denormal(False)  # it holds for the whole thread
    _save(draft, args.out)
    return 0


def grown(small: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return a model of the shape ``TARGET`` whose logits are those of ``small``."""
    heads = small.config.num_attention_heads * TARGET["hidden_size"] // small.config.hidden_size
    kv_heads = heads * small.config.num_key_value_heads // small.config.num_attention_heads
    config = _config(
        small.config, num_attention_heads=heads, num_key_value_heads=kv_heads, **TARGET
    )
    # The mean of squares is taken over more numbers, and those that are new are zero.
    share = small.config.hidden_size / TARGET["hidden_size"]
    config.rms_norm_eps = small.config.rms_norm_eps * share
    large = LlamaForCausalLM(config)
    own = small.state_dict()
    with torch.no_grad():
        for name, weight in large.state_dict().items():
            _grow(name, weight, own.get(name), share)
    return large


def _grow(name: str, weight: Tensor, own: Tensor | None, share: float) -> None:
    """Put ``own`` into a corner of ``weight``; zeros keep the rest out of the residual."""
    if weight.ndim == 1:
        if own is not None:
            weight[: len(own)] = own * share**0.5
        return
    if "embed" in name or "lm_head" in name or "o_proj" in name or "down_proj" in name:
        weight.zero_()
    if own is not None:
        weight[: own.shape[0], : own.shape[1]] = own


def _config(like: LlamaConfig, **shape: int) -> LlamaConfig:
    return LlamaConfig.from_dict({**like.to_dict(), **shape, "dtype": "float32"})


def _save(model: LlamaForCausalLM, directory: Path) -> None:
    model.save_pretrained(directory)
    for name in (*_TOKENIZER, _TEMPLATE):
        if (BUNDLED / name).is_file():
            shutil.copyfile(BUNDLED / name, directory / name)


if __name__ == "__main__":
    sys.exit(main())
