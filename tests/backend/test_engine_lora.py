"""LoRA adapters: texts equal those of merged weights, whoever shares a step; KV is never shared."""

import asyncio
import json
import random
from dataclasses import replace
from functools import cache

import pytest
import torch
from lora_adapters import ATTENTION, merge, write_adapter
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from backend.engine.loading import load_engine
from backend.executor.cuda_graphs import PieceGraphs
from backend.models.adapters import LowRank, load_adapter
from backend.models.config import ModelLoadError
from backend.models.families import parse_config
from backend.models.layers import TorchOperations
from backend.models.loading import load_network
from backend.models.lora import RowAdapters, Span, adaptable_modules, stack_adapters
from backend.models.model import network_of
from backend.models.weights import random_weights
from backend.ports import EngineError
from backend.scheduler.prefix_cache import root_hash
from backend.scheduler.request import GenerationRequest, SamplingParams
from backend.settings import AdapterSource

pytest_plugins = ["tiny_checkpoints"]

FUSED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
KINDS = {
    "llama": [
        {"rank": 2},
        {"rank": 7, "targets": ("q_proj", "v_proj"), "use_rslora": True},
        {"rank": 4, "rank_pattern": {"up_proj": 9}, "alpha_pattern": {"q_proj": 3}},
    ],
    "phi3": [{"rank": 3, "targets": FUSED}, {"rank": 4, "targets": ("qkv_proj",)}],
    "qwen3_moe": [{"targets": ATTENTION}],
}
CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def adapters_for(checkpoint, tmp_path_factory):
    """Return a family's base, its adapters, and the base with each merged into it."""

    @cache
    def make(family):
        base, scratch = checkpoint(family)[0], tmp_path_factory.mktemp(f"{family}_adapters")
        adapters = [
            write_adapter(scratch / f"adapter{seed}", base, seed=seed, **kind)
            for seed, kind in enumerate(KINDS[family])
        ]
        merged = [merge(base, each, scratch / f"merged_{each.name}") for each in adapters]
        return base, adapters, merged

    return make


def sources(adapters):
    return tuple(AdapterSource(each.name, str(each)) for each in adapters)


def answers(model, requests, adapters=(), **options):
    """Return what the engine says to all of ``requests``, which run together."""

    async def answer(engine, request):
        words, cached = [], 0
        async for delta in engine.generate(request):
            words += delta.text.split()
            cached = max(cached, delta.cached_tokens)
        return words, cached

    async def together(engine):
        return await asyncio.gather(*(answer(engine, each) for each in requests))

    engine, _ = load_engine(str(model), device="cpu", lora=sources(adapters), **options)
    engine.start()
    try:
        return asyncio.run(together(engine))
    finally:
        engine.stop()
        engine._core.scheduler.check_integrity()


def request(length, adapter, *, temperature=0.0):
    generator = random.Random(length)
    prompt = tuple(generator.randrange(320) for _ in range(length))
    sampling = SamplingParams(temperature=temperature, seed=length, max_tokens=20, ignore_eos=True)
    return GenerationRequest("r", prompt, sampling, adapter=adapter)


@pytest.mark.parametrize("family", KINDS)
def test_a_mixed_batch_says_what_merged_weights_say(adapters_for, family):
    base, adapters, merged = adapters_for(family)
    requests = [
        request(length, number % (1 + len(adapters)), temperature=temperature)
        for number, (length, temperature) in enumerate(
            [(70, 0.0), (3, 0.0), (33, 0.9), (1, 0.9), (100, 0.0), (17, 0.0), (40, 0.9), (5, 0.0)]
        )
    ]
    found = [words for words, _ in answers(base, requests, adapters, max_tokens_per_step=64)]
    for adapter, model in enumerate([base, *merged]):
        own = [each for each in requests if each.adapter == adapter]
        alone = answers(model, [replace(each, adapter=0) for each in own])
        expected = [words for words, _ in alone]
        assert [found[requests.index(each)] for each in own] == expected
        if adapter:
            by_base = answers(base, [replace(each, adapter=0) for each in own])
            assert expected != [words for words, _ in by_base]


def test_an_adapter_beside_weights_in_int8_is_as_near_as_merged_weights_in_int8(adapters_for):
    base, [adapter, *_], [merged, *_] = adapters_for("llama")
    sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    prompt = request(60, 0).prompt_tokens

    async def logprobs(model, number, **options):
        engine, _ = load_engine(str(model), device="cpu", **options)
        engine.start()
        try:
            asked = GenerationRequest("r", prompt, sampling, adapter=number)
            deltas = [delta async for delta in engine.generate(asked)]
            return torch.tensor([each.logprob for each in deltas[0].prompt_logprobs])
        finally:
            engine.stop()

    exact = asyncio.run(logprobs(merged, 0))
    beside = asyncio.run(logprobs(base, 1, lora=sources([adapter]), quantization="int8"))
    rounded = asyncio.run(logprobs(merged, 0, quantization="int8"))
    unlike = asyncio.run(logprobs(base, 0))
    error = (beside - exact).abs().mean()
    assert error < 2 * (rounded - exact).abs().mean()
    assert error < 0.1 * (unlike - exact).abs().mean()


def test_kv_is_shared_with_no_other_adapter_and_not_with_the_base(adapters_for):
    base, adapters, _ = adapters_for("llama")
    asked = request(64, 0)
    order = [0, 1, 2, 0, 1]

    async def one_by_one():
        engine, _ = load_engine(str(base), device="cpu", lora=sources(adapters))
        engine.start()
        try:
            return [
                max(
                    [
                        each.cached_tokens
                        async for each in engine.generate(replace(asked, adapter=number))
                    ]
                )
                for number in order
            ]
        finally:
            engine.stop()

    assert asyncio.run(one_by_one()) == [0, 0, 0, 48, 48]


def test_the_root_of_block_hashes_names_adapter_and_content(adapters_for):
    base, [first, second, _], _ = adapters_for("llama")

    def roots(*lora):
        engine, _ = load_engine(str(base), device="cpu", lora=lora)
        described = engine._description
        numbers = range(1 + len(lora))
        return [root_hash(described.fingerprint_of(number), "") for number in numbers]

    one, same, renamed, other = (
        roots(AdapterSource(name, str(path)))
        for name, path in (("a", first), ("a", first), ("b", first), ("a", second))
    )
    assert one == same
    assert one[0] == renamed[0] == other[0]
    assert len({*one, *renamed, *other}) == 4


class Attend:
    """Attention whose result depends on all that it is given."""

    def forward(self, layer, qkv, rotations):
        queries, keys_values = qkv[:, :4] * rotations.real.mean(), qkv[:, 4:]
        keys, values = keys_values.repeat_interleave(2, dim=1).chunk(2, dim=1)
        return (queries * torch.tanh(keys) + values * (layer.index + 1)).flatten(1)


class Rerun:
    """Runs what was recorded again, in place of a CUDA graph."""

    def record(self, run):
        run()
        return run, None


@pytest.fixture
def network():
    config = parse_config(
        {
            "architectures": ["Qwen3ForCausalLM"],
            "vocab_size": 50,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 256,
        },
        "config.json",
    )
    weights = random_weights(config, device=CPU, dtype=torch.float32)
    torch.manual_seed(1)
    adapters = [
        {
            name: LowRank(torch.randn(rank, columns) * 0.1, torch.randn(rows, rank) * 0.1)
            for name, (rows, columns) in adaptable_modules(config).items()
        }
        for rank in (1, 3, 4)
    ]
    stacked = stack_adapters(config, weights, adapters, torch.float32)
    return network_of(config, weights, torch.float32, stacked)


@torch.inference_mode()
@pytest.mark.parametrize("count", [12, 100])
def test_mask_spans_and_captured_pieces_compute_the_same(network, count):
    plain = network.with_context(200, TorchOperations())
    decoder = network.adapters.decoder(plain, 128)
    numbers = torch.tensor([2, 0, 1, 3], dtype=torch.int32).repeat_interleave(count // 4)
    rows = RowAdapters(numbers.numpy(), 0)
    tokens = torch.randint(50, (count,))
    picked = torch.tensor([count - 1, 0, count // 2])

    decoder.rows.start(rows, numbers)
    by_mask = decoder.rows.spans == ()
    assert by_mask == (count <= 64)
    if by_mask:
        decoder.rows.num_masked, spans = 0, [(2, 0, 3), (1, 6, 9), (3, 9, 12)]
        decoder.rows.spans = tuple(Span(*each) for each in spans)
    by_spans = decoder.forward(tokens, tokens, Attend(), None)
    decoder.rows.mask_all()
    masked = decoder.forward(tokens, tokens, Attend(), None)
    assert_close(by_spans, masked)
    assert_close(decoder.forward(tokens, tokens, Attend(), picked), masked[picked])

    pieces = PieceGraphs(decoder, Rerun(), (128,))
    pieces.capture(128)
    found = pieces.forward(128, tokens.int(), tokens.int(), Attend(), picked)
    assert_close(found, masked[picked])
    base = plain.forward(tokens, tokens, Attend(), None)
    own = numbers == 0
    assert_close(masked[own], base[own])
    assert (masked[~own] - base[~own]).abs().amin(dim=1).max() > 1e-3


def test_half_precision_stays_near(adapters_for):
    base, adapters, merged = adapters_for("llama")
    network = load_network(base, device=CPU, dtype="bfloat16", adapters=adapters[:1])
    exact = load_network(merged[0], device=CPU, dtype="float32")
    plain = network.with_context(64, TorchOperations())
    decoder = network.adapters.decoder(plain, 64)
    tokens = torch.arange(10)
    numbers = torch.ones(10, dtype=torch.int32)

    class First:
        def forward(self, layer, qkv, rotations):
            return qkv[:, :4].flatten(1)

    with torch.inference_mode():
        decoder.rows.start(RowAdapters(numbers.numpy(), 10), numbers)
        found = decoder.forward(tokens, tokens, First(), None).float()
        wanted = exact.with_context(64, TorchOperations()).forward(tokens, tokens, First(), None)
        other = plain.forward(tokens, tokens, First(), None).float()
    assert (found - wanted).abs().mean() < 0.05 * (other - wanted).abs().mean()


def test_an_adapter_of_some_layers_changes_these_alone(checkpoint, tmp_path):
    base = checkpoint("llama")[0]
    path = write_adapter(
        tmp_path / "a",
        base,
        seed=1,
        targets=("layers.1.self_attn.q_proj", "layers.1.self_attn.k_proj"),
        target_modules=r".*\.[qk]_proj",
        exclude_modules=[
            f"model.layers.{at}.self_attn.{each}_proj" for at in (0, 2) for each in "qk"
        ],
    )
    modules = {f"model.layers.{at}.self_attn.{each}_proj" for at in range(3) for each in "qkvo"}
    shapes = dict.fromkeys(modules, (64, 64)) | {
        f"model.layers.{at}.self_attn.{each}_proj": (32, 64) for at in range(3) for each in "kv"
    }
    assert set(load_adapter(path, shapes, base)) == {
        "model.layers.1.self_attn.q_proj",
        "model.layers.1.self_attn.k_proj",
    }


async def outcome(engine, adapter, first):
    sampling = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    asked = GenerationRequest("r", tuple(range(first, first + 10)), sampling, adapter=adapter)
    try:
        return "".join([delta.text async for delta in engine.generate(asked)])
    except EngineError as error:
        return error


async def test_an_adapter_whose_numbers_overflow_fails_its_own_rows_alone(checkpoint, tmp_path):
    base = checkpoint("llama")[0]
    directory = write_adapter(tmp_path / "a", base, seed=1)
    file = directory / "adapter_model.safetensors"
    tensors = load_file(file)
    for name in tensors:
        if "lora_A" in name:
            tensors[name][:] = 3e38
    save_file(tensors, file)
    lora = (AdapterSource("a", str(directory)),)
    engine, _ = load_engine(str(base), device="cpu", lora=lora)
    engine.start()
    try:
        alone = await outcome(engine, 0, 40)
        own, other = await asyncio.gather(outcome(engine, 1, 10), outcome(engine, 0, 40))
    finally:
        engine.stop()
    assert isinstance(own, EngineError)
    assert other == alone


def test_an_adapter_beyond_its_type_is_refused(checkpoint, tmp_path):
    base = checkpoint("llama")[0]
    directory = write_adapter(tmp_path / "a", base, seed=1)
    config = directory / "adapter_config.json"
    for alpha, problem in ((1e7, "beyond torch.float16"), (10**400, "expected a number")):
        config.write_text(json.dumps(json.loads(config.read_text()) | {"lora_alpha": alpha}))
        with pytest.raises(ModelLoadError, match=problem):
            load_engine(
                str(base), device="cpu", dtype="float16", lora=(AdapterSource("a", str(directory)),)
            )
