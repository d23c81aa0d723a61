"""A model on several ranks answers as on one: every family and way through the scheduler."""

import asyncio
import json
from dataclasses import replace

import pytest
import torch
import transformers
from model_configs import load_config
from quantized_checkpoints import LAYOUTS, quantize_checkpoint
from safetensors.torch import load_file
from thread_ranks import parallel_engine

from backend.engine.loading import load_engine
from backend.executor.kv_cache import block_bytes
from backend.models.checkpoint import Checkpoint
from backend.models.config import ModelLoadError, read_json
from backend.models.parallel import (
    Cut,
    VocabularyParallelEmbedding,
    check_sharded,
    sharded,
)
from backend.models.quantization.formats import checkpoint_format
from backend.models.weights import Builder, load_weights
from backend.scheduler import drafts
from backend.scheduler.drafts import Drafter
from backend.scheduler.request import GenerationRequest, SamplingParams

pytest_plugins = ["tiny_checkpoints"]

CPU = torch.device("cpu")
FAMILIES = (
    *("llama", "mistral", "qwen2", "qwen2_windows", "qwen3", "phi3", "phi3_longrope"),
    *("mixtral", "qwen3_moe"),
)
WITHOUT_REPETITIONS = {"qwen2_windows", "phi3"}
"""Nothing in their texts could be a draft."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=0.9, top_p=0.95, seed=5, repetition_penalty=1.1)
SCORED = replace(GREEDY, max_tokens=4, logprobs=2, prompt_logprobs=1)
PROMPTS = [
    *(tuple((seed * 37 + at * at * 11) % 320 for at in range(length)) for seed, length in
      enumerate((100, 1, 19, 60, 14, 33))),
    tuple([7, 8, 9, 10] * 5),
]  # fmt: skip


@pytest.fixture
def drafting(monkeypatch):
    """Let sequences draft wherever they can."""
    monkeypatch.setattr(Drafter, "_pays", lambda *_, **__: True)
    monkeypatch.setattr(drafts, "_ENOUGH_RIGHT", 0.0)
    monkeypatch.setattr(drafts, "_FEW_ROWS", drafts.MOST_ROWS)


@pytest.fixture
def engine_for(checkpoint):
    started = []

    def start(family, ranks=1, **options):
        model, others = checkpoint(family)[0], None
        if ranks > 1:
            engine, others = parallel_engine(model, ranks, **options)
        else:
            engine, _ = load_engine(str(model), device="cpu", **options)
        started.append((engine, others))
        engine.start()
        return engine

    yield start
    for engine, others in started:
        engine.stop()
        engine._core.scheduler.check_integrity()
        assert engine.stats().kv_blocks_used == 0
        if others is not None:
            others.close()


async def answer(engine, prompt, sampling):
    text, logprobs = "", []
    async for delta in engine.generate(GenerationRequest("r", prompt, sampling)):
        text += delta.text
        logprobs += [*delta.prompt_logprobs, *delta.logprobs]
    return text, logprobs, delta.cached_tokens


async def answers(engine, sampling):
    return await asyncio.gather(*(answer(engine, prompt, sampling) for prompt in PROMPTS))


async def all_answers(engine):
    """Return the texts of every kind of request; the prompts come again, so blocks are hit."""
    texts = [[text for text, _, _ in await answers(engine, each)] for each in (GREEDY, SAMPLED)]
    again = PROMPTS[0] + tuple(int(word) for word in texts[0][0].split()[:12])
    hit, _, cached = await answer(engine, again, GREEDY)
    assert cached > 0
    # Alone it has room for drafts, and soon repeats itself.
    alone, _, _ = await answer(engine, PROMPTS[-1], replace(GREEDY, max_tokens=150))
    return [*texts, hit, alone]


def test_every_family_of_the_decoder_is_here():
    from tiny_checkpoints import DECODER_CHECKPOINTS  # a plugin: not before pytest

    assert set(FAMILIES) == set(DECODER_CHECKPOINTS)


@pytest.mark.parametrize("family", FAMILIES)
async def test_two_ranks_answer_as_one(checkpoint, engine_for, drafting, family):
    """In chunks of 37 tokens, with drafts, in a pool for two thirds of the texts."""
    config = load_config(checkpoint(family)[0])
    options = {"max_num_seqs": 6, "max_tokens_per_step": 37, "max_model_len": 200}
    options["overlap"] = len(family) % 2 == 0
    one = engine_for(family, **options, kv_bytes=16 * block_bytes(config, torch.float32))
    own = sharded(config, 2, "config.json")
    two = engine_for(family, 2, **options, kv_bytes=16 * block_bytes(own, torch.float32))
    assert two.stats().kv_blocks_total == one.stats().kv_blocks_total == 16
    assert await all_answers(two) == await all_answers(one)
    assert two.stats().preemptions > 0
    assert (two.stats().draft_tokens > 0) is (family not in WITHOUT_REPETITIONS)


async def test_a_step_of_which_no_row_samples_is_computed_by_all(engine_for):
    options = {"max_tokens_per_step": 32, "max_num_seqs": 2}
    one, two = engine_for("llama", **options), engine_for("llama", 2, **options)
    prompt = tuple(number % 250 for number in range(100))
    assert await answer(two, prompt, GREEDY) == await answer(one, prompt, GREEDY)


async def test_more_ranks_than_kv_heads_share_them(engine_for):
    one, four = engine_for("qwen2"), engine_for("qwen2", 4)
    assert await all_answers(four) == await all_answers(one)
    for (text, ours, _), (expected, theirs, _) in zip(
        await answers(four, SCORED), await answers(one, SCORED), strict=True
    ):
        assert text == expected
        assert [each.token for each in ours] == [each.token for each in theirs]
        assert [each.logprob for each in ours] == pytest.approx(
            [each.logprob for each in theirs], abs=1e-4
        )


class OneOf:
    """One rank of several whose others hand over nothing."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def all_reduce(self, part):
        return part

    def all_gather(self, part):
        return part


def test_a_vocabulary_that_does_not_divide_is_filled_up(checkpoint):
    directory, model = checkpoint("llama")
    config = replace(load_config(directory), num_heads=6, num_kv_heads=3)
    cuts = [Cut(config, rank, 3) for rank in range(3)]
    assert [cut.vocabulary for cut in cuts] == [(0, 107), (107, 214), (214, 320)]
    whole = model.model.embed_tokens.weight
    tokens = torch.tensor([0, 106, 107, 213, 214, 319])
    total = torch.zeros(6, 64)
    for rank in range(3):
        builder = Builder(
            replace(config, intermediate_size=96),
            Checkpoint(directory),
            CPU,
            torch.float32,
            str,
            held=None,
            int8=False,
            ranks=OneOf(rank, 3),
        )
        part, _ = builder._embedding()
        assert len(part.rows) == 107
        total += VocabularyParallelEmbedding(part, cuts[rank].vocabulary, OneOf(rank, 3))(tokens)
    assert torch.equal(total, whole[tokens])


@pytest.fixture(scope="module")
def divisible(checkpoint, tmp_path_factory):
    """Return a packed copy of a checkpoint whose halves are whole blocks and groups."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
    )
    model = transformers.LlamaForCausalLM(config)

    def make(layout):
        directory = tmp_path_factory.mktemp("packed") / "model"
        model.save_pretrained(directory)
        return directory, quantize_checkpoint(directory, layout)

    return make


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_of_each_layout_are_parts_of_the_whole(divisible, layout):
    directory, plain = divisible(layout)
    held = checkpoint_format(read_json(directory / "config.json"), "config.json")
    tensors, expected = Checkpoint(directory), load_file(plain / "model.safetensors")
    names = [name for name in expected if name.endswith("_proj.weight")]
    assert len(names) == 7
    for name in names:
        matrix = expected[name]
        rows, columns = matrix.shape
        half, middle = rows // 2, columns // 2
        for at in (
            ((0, half), (0, columns)),
            ((half, rows), (0, columns)),
            ((0, rows), (0, middle)),
            ((0, rows), (middle, columns)),
        ):
            read = held.read(tensors, name.removesuffix(".weight"), (rows, columns), at)
            part = matrix[slice(*at[0]), slice(*at[1])]
            torch.testing.assert_close(read.dequantized(), part, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("layout", [*LAYOUTS, "int8 at load"])
def test_parts_of_quantised_weights_compute_as_the_whole(divisible, layout):
    directory, plain = divisible(layout if layout in LAYOUTS else "awq")
    int8 = {"int8": True} if layout not in LAYOUTS else {}
    source = plain if int8 else directory
    config = load_config(source)

    def loaded(**ranks):
        return load_weights(source, config, device=CPU, dtype=torch.float32, **int8, **ranks)

    (whole,) = loaded().layers
    halves = [loaded(ranks=OneOf(rank, 2)).layers[0] for rank in range(2)]
    rows = torch.randn(5, 128, generator=torch.Generator().manual_seed(0))
    attended = [half.output(part) for half, part in zip(halves, rows.split(64, 1), strict=True)]
    expected = whole.output(rows)
    assert (sum(attended) - expected).norm() < 0.02 * expected.norm()
    joined = torch.cat([half.qkv(rows)[:, :64] for half in halves], 1)
    queries = whole.qkv(rows)[:, :128]
    assert (joined - queries).norm() < 0.001 * queries.norm()


def test_a_cut_within_a_group_a_block_or_a_word_is_refused(divisible):
    for layout, at, why in (
        ("fp8 in blocks", ((0, 128), (0, 32)), "columns, 0 to 32 of 128, begin or end within a gr"),
        ("awq", ((0, 128), (0, 48)), "columns, 0 to 48 of 128, begin or end within a group of 32"),
        ("gptq", ((0, 128), (16, 128)), "columns, 16 to 128 of 128, begin or end within a group"),
        ("gptq", ((0, 4), (0, 128)), "rows, 0 to 4 of 128, do not fill words of 32 bits"),
    ):
        directory, _ = divisible(layout)
        held = checkpoint_format(read_json(directory / "config.json"), "config.json")
        name = "model.layers.0.self_attn.q_proj"
        with pytest.raises(ModelLoadError, match=why) as caught:
            held.read(Checkpoint(directory), name, (128, 128), at)
        assert name in str(caught.value)


class Reads(Checkpoint):
    """Notes how many numbers were read."""

    def __init__(self, directory, **options):
        super().__init__(directory, **options)
        self.numbers = 0

    def _fetch(self, name, part, dtypes):
        tensor = super()._fetch(name, part, dtypes)
        self.numbers += tensor.numel()
        return tensor


@pytest.mark.parametrize("family", ["phi3", "mixtral", "qwen3_vl_moe"])
def test_a_rank_reads_its_part_alone(checkpoint, monkeypatch, family):
    directory = checkpoint(family)[0]
    checkpoints = []
    monkeypatch.setattr(
        "backend.models.weights.Checkpoint",
        lambda path, **options: checkpoints.append(Reads(path, **options)) or checkpoints[-1],
    )
    config = load_config(directory)
    for ranks in ({}, {"ranks": OneOf(1, 2)}):
        load_weights(directory, config, device=CPU, dtype=torch.float32, **ranks)
    whole, part = (each.numbers for each in checkpoints)
    # Norms and routers are whole.
    assert 0.5 < part / whole < 0.52


@pytest.mark.parametrize(
    ("changes", "size", "why"),
    [
        ({}, 3, "num_attention_heads: 4 does not divide by tensor-parallel-size 3"),
        ({"intermediate_size": 97}, 2, "intermediate_size: 97 does not divide by"),
        (
            {"num_attention_heads": 6, "num_key_value_heads": 3},
            2,
            "num_key_value_heads: 3 KV heads can be neither divided among tensor-parallel-size 2",
        ),
        (
            {"architectures": ["GPT2LMHeadModel"]},
            2,
            r"\['GPT2LMHeadModel'\]: transformers' code computes it, which tensor-parallel-size 2",
        ),
    ],
)
def test_what_does_not_divide_is_refused_with_its_numbers(edited_checkpoint, changes, size, why):
    path = edited_checkpoint(**changes) / "config.json"
    with pytest.raises(ModelLoadError, match=why) as caught:
        check_sharded(json.loads(path.read_text()), str(path), size)
    assert str(path) in str(caught.value)


def test_the_experts_inner_size_is_what_has_to_divide(checkpoint):
    values = read_json(checkpoint("qwen3_moe")[0] / "config.json")
    with pytest.raises(ModelLoadError, match="experts' intermediate size: 41 does not divide"):
        check_sharded(values | {"moe_intermediate_size": 41}, "config.json", 2)


def test_a_shard_that_is_missing_is_named_by_every_rank(edited_checkpoint):
    directory = edited_checkpoint()
    weights = {"model.norm.weight": "model-1.safetensors", "lm_head.weight": "gone.safetensors"}
    (directory / "model.safetensors").rename(directory / "model-1.safetensors")
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weights}))
    with pytest.raises(ModelLoadError, match=r"gone\.safetensors: not found, of 2 shards"):
        parallel_engine(directory)


def test_an_engine_in_a_thread_and_a_single_gpu_have_one_rank(checkpoint):
    model = str(checkpoint("llama")[0])
    with pytest.raises(ModelLoadError, match="tensor-parallel-size 2: ranks are processes"):
        load_engine(model, device="cpu", tensor_parallel_size=2)
    with pytest.raises(ModelLoadError, match="cuda:1 is one GPU, and tensor-parallel-size 2 takes"):
        parallel_engine(model, device="cuda:1")
