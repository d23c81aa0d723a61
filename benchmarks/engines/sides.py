"""What the engine's benchmarks compare: the engine, transformers two ways, and a bare loop.

All answer greedily, with end tokens ignored, on the same weights in float32, and return text as
the engine does. Nothing here measures.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import tokenizers
import torch
import transformers
from torch import Tensor
from torch.nn import functional

from backend.engine.loading import load_engine
from backend.scheduler.request import GenerationRequest, SamplingParams

BUNDLED = Path(__file__).parents[2] / "backend" / "demo" / "model"

Prompts = Sequence[Sequence[int]]


def write_random_model(directory: Path) -> None:
    """Write a checkpoint of the bundled model's shape, for machines where it is not."""
    config = transformers.LlamaConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    _write(transformers.LlamaForCausalLM, config, directory)


def write_random_qwen3(directory: Path) -> None:
    """Write a checkpoint of 0.5 billion random parameters, shaped as Qwen3's small ones."""
    config = transformers.Qwen3Config(
        vocab_size=32768,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        dtype="bfloat16",
    )
    _write(transformers.Qwen3ForCausalLM, config, directory)


def write_random_qwen2(directory: Path) -> None:
    """Write a checkpoint of 0.5 billion random parameters, shaped as Qwen2-0.5B."""
    config = transformers.Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        dtype="bfloat16",
    )
    _write(transformers.Qwen2ForCausalLM, config, directory)


def _write(model: Any, config: Any, directory: Path) -> None:
    torch.manual_seed(0)
    model(config).to(config.dtype or torch.float32).save_pretrained(directory)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))


def bundled_or_random(scratch: Path) -> Path:
    """Return the bundled model's directory, or one with random weights of its shape."""
    if (BUNDLED / "model.safetensors").is_file():
        return BUNDLED
    write_random_model(scratch)
    return scratch


def random_prompts(count: int, length: int, *, vocabulary: int = 4096, seed: int = 1) -> Prompts:
    """Return ``count`` prompts of ``length`` tokens."""
    generator = torch.Generator().manual_seed(seed)
    prompts: list[list[int]] = torch.randint(
        2, vocabulary, (count, length), generator=generator
    ).tolist()
    return prompts


class EngineSide:
    """Requests to our engine as its callers make them: plain ones, answered in one piece."""

    def __init__(self, directory: Path, *, threads: int, **options: Any) -> None:
        self.engine, _ = load_engine(str(directory), device="cpu", threads=threads, **options)

    def __enter__(self) -> Self:
        self.engine.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.stop()

    def run(self, prompts: Prompts, new_tokens: int) -> list[str]:
        return asyncio.run(self._gather(prompts, new_tokens))

    async def _gather(self, prompts: Prompts, new_tokens: int) -> list[str]:
        return await asyncio.gather(*(self.answer(prompt, new_tokens) for prompt in prompts))

    async def answer(self, prompt: Sequence[int], new_tokens: int, temperature: float = 0.0) -> str:
        """Return the answer to one request."""
        sampling = SamplingParams(
            temperature=temperature, max_tokens=new_tokens, ignore_eos=True, seed=1
        )
        request = GenerationRequest("benchmark", tuple(prompt), sampling, stream=False)
        return "".join([delta.text async for delta in self.engine.generate(request)])


class TransformersSide:
    """``generate`` on one static batch."""

    def __init__(self, directory: Path) -> None:
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32
        ).eval()
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.pad_token_id = 0
        self.tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))

    def run(self, prompts: Prompts, new_tokens: int) -> list[str]:
        batch = torch.tensor(prompts)
        with torch.inference_mode():
            output = self.model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                max_new_tokens=new_tokens,
                do_sample=False,
            )
        return self.decode(output[:, batch.shape[1] :].tolist())

    def decode(self, tokens: list[list[int]]) -> list[str]:
        return self.tokenizer.decode_batch(tokens)


class ContinuousTransformersSide:
    """transformers' own continuous batching, its pages cut to this very batch.

    Its defaults size the cache by the machine's memory at each call, which takes ten times as long
    as the generation here.
    """

    def __init__(self, static: TransformersSide, directory: Path) -> None:
        self._static = static
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()

    def run(self, prompts: Prompts, new_tokens: int) -> list[str]:
        settings = transformers.GenerationConfig(
            max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        pages = len(prompts) * (-(-(len(prompts[0]) + new_tokens) // 256) + 1)
        paging = transformers.ContinuousBatchingConfig(
            num_blocks=pages, max_batch_tokens=512, page_size=256
        )
        outputs = self._model.generate_batch(
            [list(prompt) for prompt in prompts], settings, paging, progress_bar=False
        )
        return self._static.decode([output.generated_tokens for output in outputs.values()])


class BareLoopSide:
    """What is left without an engine: a plain eager loop over fused weights and contiguous KV.

    All prompts must be of one length. It does one thing, so it has no scheduler, pages, sampler or
    messages to pay for: the engine is measured against it.
    """

    def __init__(self, peer: TransformersSide) -> None:
        self._peer = peer
        config, model = peer.model.config, peer.model.model
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._head_dim, self._eps = config.head_dim, config.rms_norm_eps
        self._embedding = model.embed_tokens.weight.detach()
        self._head = peer.model.lm_head.weight.detach()
        self._final_norm = model.norm.weight.detach()
        self._layers = [_fused(layer) for layer in model.layers]
        self._head_norms = [_head_norm(layer.self_attn, self._heads) for layer in model.layers]
        rotary = model.rotary_emb
        positions = torch.arange(config.max_position_embeddings).unsqueeze(0)
        with torch.inference_mode():
            cos, sin = rotary(self._embedding, positions)
        self._cos, self._sin = cos[0], sin[0]

    @torch.inference_mode()
    def run(self, prompts: Prompts, new_tokens: int) -> list[str]:
        tokens = torch.tensor(prompts)
        batch, length = tokens.shape
        shape = (2, batch, self._kv_heads, length + new_tokens, self._head_dim)
        caches = [torch.empty(shape) for _ in self._layers]
        chosen: list[Tensor] = []
        start = 0
        for _ in range(new_tokens):
            tokens = self._step(tokens, start, caches).argmax(-1, keepdim=True)
            start = length + len(chosen)
            chosen.append(tokens)
        return self._peer.decode(torch.cat(chosen, dim=1).tolist())

    def _step(self, tokens: Tensor, start: int, caches: list[Tensor]) -> Tensor:
        stop = start + tokens.shape[1]
        cos, sin = self._cos[start:stop], self._sin[start:stop]
        hidden = functional.embedding(tokens, self._embedding)
        for (input_norm, qkv, output, mlp_norm, gate_up, down), head_norm, cache in zip(
            self._layers, self._head_norms, caches, strict=True
        ):
            heads = functional.linear(self._norm(hidden, input_norm), qkv)
            heads = heads.view(*tokens.shape, -1, self._head_dim).transpose(1, 2)
            turned = self._heads + self._kv_heads
            queries_keys = heads[:, :turned]
            if head_norm is not None:
                weight = (self._head_dim,)
                queries_keys = functional.rms_norm(queries_keys, weight, None, self._eps)
                queries_keys = queries_keys * head_norm
            queries_keys = queries_keys * cos + _half_turned(queries_keys) * sin
            cache[0, :, :, start:stop] = queries_keys[:, self._heads :]
            cache[1, :, :, start:stop] = heads[:, turned:]
            attended = functional.scaled_dot_product_attention(
                queries_keys[:, : self._heads],
                cache[0, :, :, :stop],
                cache[1, :, :, :stop],
                is_causal=start == 0,
                enable_gqa=True,
            )
            hidden = hidden + functional.linear(attended.transpose(1, 2).flatten(2), output)
            gate, up = functional.linear(self._norm(hidden, mlp_norm), gate_up).chunk(2, -1)
            hidden = hidden + functional.linear(functional.silu(gate) * up, down)
        return functional.linear(self._norm(hidden[:, -1], self._final_norm), self._head)

    def _norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(rows, weight.shape, weight, self._eps)


def _fused(layer: Any) -> tuple[Tensor, ...]:
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    return (
        layer.input_layernorm.weight.detach(),
        torch.cat([projection.weight.detach() for projection in projections]),
        attention.o_proj.weight.detach(),
        layer.post_attention_layernorm.weight.detach(),
        torch.cat([mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach()]),
        mlp.down_proj.weight.detach(),
    )


def _head_norm(attention: Any, num_heads: int) -> Tensor | None:
    """Return the norms' weights of queries and keys as [heads, 1, head_dim]; None: it has none."""
    if not hasattr(attention, "q_norm"):
        return None
    queries, keys = attention.q_norm.weight.detach(), attention.k_norm.weight.detach()
    num_kv_heads = attention.config.num_key_value_heads
    return torch.stack([queries] * num_heads + [keys] * num_kv_heads).unsqueeze(1)


def _half_turned(heads: Tensor) -> Tensor:
    first, second = heads.chunk(2, -1)
    return torch.cat((-second, first), dim=-1)
