"""Train the demo model from nothing: ``python -m tools.demo_model.train --out DIR [--seed 0]``.

Writes a Hugging Face directory (config, bf16 weights, tokenizer, chat template). The same arguments
on the same machine and thread count give the same weights. Progress goes to stderr.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from tools.demo_model.corpus import Corpus
from tools.demo_model.knowledge import Knowledge, load_knowledge
from tools.demo_model.muon import Muon
from tools.demo_model.phrasing import phrasings
from tools.demo_model.tokenizer import (
    END_ID,
    IGNORED,
    TEXT_END_ID,
    Encoder,
    save_tokenizer,
    train_tokenizer,
)

VOCAB_SIZE = 4096
CONTEXT = 4096
SORTED_TOGETHER = 2048  # examples; long enough that batches hold sequences of one length
WARMUP = 0.03  # shares of all steps
DECAY = 0.4
CHECKPOINT_SECONDS = 300
ROUNDED_STEPS = 47  # fewer cost answers, more cost bytes

Encoded = tuple[list[int], list[int]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the training; returns the exit code."""
    args = _arguments(argv)
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    device = args.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    args.out.mkdir(parents=True, exist_ok=True)

    knowledge = load_knowledge()
    corpus = Corpus(knowledge, args.seed)
    tokenizer = train_tokenizer(_tokenizer_texts(knowledge), VOCAB_SIZE)
    save_tokenizer(tokenizer, args.out, CONTEXT)
    encoder = Encoder(tokenizer)
    encoded = [encoder.encode(example) for example in corpus.examples(args.examples)]
    batches = list(in_batches(encoded, args.batch_tokens, random.Random(args.seed)))

    model = build_model(tokenizer.get_vocab_size()).to(device)
    _say(
        f"{model.num_parameters():,} parameters, vocabulary {tokenizer.get_vocab_size()}, "
        f"{len(encoded):,} examples, {len(batches)} steps on {device}"
    )
    torch.set_flush_denormal(True)
    try:
        fit(model, batches, args, device)
    finally:
        torch.set_flush_denormal(False)  # it holds for the whole thread, whoever runs in it next
    save_model(model, args.out)
    return 0


def build_model(vocab_size: int) -> LlamaForCausalLM:
    """Return the model with fresh weights, in float32."""
    config = LlamaConfig(
        vocab_size=-(-vocab_size // 64) * 64,  # rows in whole vectors
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=TEXT_END_ID,
        eos_token_id=END_ID,
        pad_token_id=TEXT_END_ID,
    )
    model = LlamaForCausalLM(config)
    # Greedy unless a request says otherwise: the engine follows this recommendation.
    model.generation_config = GenerationConfig(
        do_sample=False,
        bos_token_id=TEXT_END_ID,
        eos_token_id=[END_ID, TEXT_END_ID],
        pad_token_id=TEXT_END_ID,
    )
    return model


def save_model(model: LlamaForCausalLM, directory: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors in bfloat16, rounded."""
    config = LlamaConfig.from_dict(model.config.to_dict())
    copy = LlamaForCausalLM(config)
    copy.load_state_dict(model.state_dict())
    copy.generation_config = model.generation_config
    with torch.no_grad():
        for weight in copy.parameters():
            if weight.ndim == 2:
                weight.copy_(rounded(weight))
    copy.to(torch.bfloat16).save_pretrained(directory)


def rounded(matrix: Tensor) -> Tensor:
    """Return a matrix of fewer values, which a wheel compresses to less than half.

    A row has whole multiples of a power of two, the largest of ROUNDED_STEPS at most.
    """
    largest = matrix.abs().amax(1, keepdim=True).clamp_min(torch.finfo(matrix.dtype).tiny)
    step = torch.exp2(torch.ceil(torch.log2(largest / ROUNDED_STEPS)))
    return torch.round(matrix / step) * step


def fit(
    model: LlamaForCausalLM,
    batches: Sequence[Sequence[Encoded]],
    args: argparse.Namespace,
    device: str,
) -> None:
    """Train ``model`` on ``batches``, one step each."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    optimizers: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=args.lr),
        torch.optim.AdamW(others, lr=args.embedding_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    rates = [args.lr, args.embedding_lr]
    checkpoint = args.out / "checkpoint.pt"
    recipe = {"seed": args.seed, "batch_tokens": args.batch_tokens}
    first = _resume(checkpoint, model, optimizers, recipe) if args.resume else 0
    began = saved = time.monotonic()
    average = 0.0
    tokens = 0
    for step in range(first, len(batches)):
        factor = _schedule(step / len(batches))
        for optimizer, rate in zip(optimizers, rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
        ids, labels = _tensors(batches[step], device)
        loss = _loss(model, ids, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        tokens += ids.numel()
        latest = float(loss.detach())
        average = latest if step == first else 0.95 * average + 0.05 * latest
        now = time.monotonic()
        if step % 20 == 0 or step == len(batches) - 1:
            spent = now - began
            speed = f"{tokens / spent:,.0f} tok/s {spent:.0f} s"
            _say(f"step {step}/{len(batches)} loss {average:.4f} {speed}")
        if now - saved > CHECKPOINT_SECONDS:
            saved = now
            _save_checkpoint(checkpoint, model, optimizers, recipe, step + 1)
    checkpoint.unlink(missing_ok=True)


def _loss(model: LlamaForCausalLM, ids: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy over learnt tokens only; logits of the others are never computed.

    Padding is on the right, where causal attention cannot see it, so there is no mask.
    """
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    targets = labels[:, 1:]
    learnt = targets != IGNORED
    return functional.cross_entropy(model.lm_head(hidden[learnt]), targets[learnt])


def _schedule(progress: float) -> float:
    """Factor of the learning rate: warm-up, constant, then linear to zero."""
    return min(1.0, (progress + 1e-3) / WARMUP, (1 - progress) / DECAY)


def in_batches(
    encoded: Sequence[Encoded], budget: int, rng: random.Random
) -> Iterator[list[Encoded]]:
    """Yield batches of at most ``budget`` tokens, padding included, lengths alike."""
    for start in range(0, len(encoded), SORTED_TOGETHER):
        rows = sorted(encoded[start : start + SORTED_TOGETHER], key=lambda row: len(row[0]))
        chunk: list[list[Encoded]] = [[]]
        for row in rows:
            if chunk[-1] and (len(chunk[-1]) + 1) * len(row[0]) > budget:
                chunk.append([])
            chunk[-1].append(row)
        rng.shuffle(chunk)
        yield from chunk


def _tensors(batch: Sequence[Encoded], device: str) -> tuple[Tensor, Tensor]:
    """Pad to one length; two (sequences, tokens) tensors of int64."""
    length = max(len(ids) for ids, _ in batch)
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    for row, (row_ids, row_labels) in enumerate(batch):
        ids[row, : len(row_ids)] = torch.tensor(row_ids)
        labels[row, : len(row_labels)] = torch.tensor(row_labels)
    return ids.to(device), labels.to(device)


def _tokenizer_texts(knowledge: Knowledge) -> list[str]:
    """Return all texts of the knowledge that training may see, also in lower case."""
    texts: list[str] = list(knowledge.system_prompts)
    for topic in (*knowledge.faq, *knowledge.smalltalk, knowledge.offtopic):
        ways = [way.text for way in phrasings(topic) if way.held is None]
        # Answers count more: their words should be single tokens.
        texts += [topic.ask, *ways, *[topic.answer] * 8]
    for follow_up in knowledge.follow_ups:
        texts += follow_up.ask
    return texts + [text.lower() for text in texts]


def _save_checkpoint(
    path: Path,
    model: LlamaForCausalLM,
    optimizers: Sequence[torch.optim.Optimizer],
    recipe: dict[str, int],
    step: int,
) -> None:
    state = {
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "recipe": recipe,
        "step": step,
    }
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def _resume(
    path: Path,
    model: LlamaForCausalLM,
    optimizers: Sequence[torch.optim.Optimizer],
    recipe: dict[str, int],
) -> int:
    """Load the checkpoint and return the step to go on with; 0 without a checkpoint.

    Raises ValueError where the checkpoint saw other batches. The number of examples may differ: a
    longer corpus begins like a shorter one, and the learning rate is constant up to the decay.
    """
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    if state["recipe"] != recipe:
        raise ValueError(f"{path} belongs to a run with {state['recipe']}, not {recipe}")
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return int(state["step"])


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="train the demo model")
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--examples", type=int, default=80_000)
    parser.add_argument("--batch-tokens", type=int, default=3072)
    parser.add_argument("--lr", type=float, default=0.02, help="of the matrices")
    parser.add_argument("--embedding-lr", type=float, default=0.004)
    parser.add_argument("--resume", action="store_true", help="go on from OUT/checkpoint.pt")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
