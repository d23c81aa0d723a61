"""A step of one token computes what the same token does in the decoder of many."""

from dataclasses import replace

import pytest
import torch

from backend.models.cpu_decoder import CpuDecoder
from backend.models.decoder import Decoder
from backend.models.families import parse_config
from backend.models.layers import RMSNorm, TorchOperations
from backend.models.model import network_of
from backend.models.rope import rotate_
from backend.models.weights import random_weights

CPU = torch.device("cpu")
SHAPE = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
FAMILIES = {
    "plain": {"architectures": ["LlamaForCausalLM"]},
    "biases": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": True,
        "mlp_bias": True,
    },
    "head norms": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 12},
}


class Attend:
    """Attention that depends on all that it is given, and returns new memory."""

    def forward(self, layer, qkv, rotations):
        rotated = qkv[:, :6]
        if rotations is not None:
            if layer.head_norm is not None:
                rotated.copy_(layer.head_norm(rotated))
            rotate_(rotated, rotations)
        queries, keys_values = qkv[:, :4], qkv[:, 4:]
        keys, values = keys_values.repeat_interleave(2, dim=1).chunk(2, dim=1)
        return (queries * torch.tanh(keys) + values * (layer.index + 1)).flatten(1)


attend = Attend()


def decoder(family, dtype=torch.float32, operations=None):
    """Return weights, and the model that the executor gets for them."""
    config = parse_config(SHAPE | FAMILIES[family], "config.json")
    weights = random_weights(config, device=CPU, dtype=dtype)
    generator = torch.Generator().manual_seed(1)

    def uneven(norm):
        return norm and RMSNorm(torch.rand(norm.weight.shape, generator=generator).to(dtype), 1e-5)

    layers = tuple(
        replace(
            each,
            input_norm=uneven(each.input_norm),
            head_norm=uneven(each.head_norm),
            mlp_norm=uneven(each.mlp_norm),
        )
        for each in weights.layers
    )
    weights = replace(weights, layers=layers, final_norm=uneven(weights.final_norm))
    network = network_of(config, weights, dtype)
    return weights, network.with_context(64, operations or TorchOperations())


@pytest.mark.parametrize("family", FAMILIES)
def test_one_row_equals_the_same_row_among_many(family):
    _, model = decoder(family)
    for token, position in ((3, 0), (49, 63), (7, 20)):
        tokens, positions = torch.tensor([token]), torch.tensor([position])
        alone = model.forward(tokens, positions, attend, None)
        # With its rows named, and with another one beside it, a token goes the general way.
        named = model.forward(tokens, positions, attend, torch.tensor([0]))
        pair = model.forward(tokens.repeat(2), positions.repeat(2), attend, None)
        torch.testing.assert_close(alone, named, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(alone, pair[:1], rtol=1e-5, atol=1e-5)


def test_a_result_outlives_the_next_step():
    _, model = decoder("plain")
    first = model.forward(torch.tensor([3]), torch.tensor([5]), attend, None)
    kept = first.clone()
    model.forward(torch.tensor([9]), torch.tensor([6]), attend, None)
    assert torch.equal(first, kept)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_what_is_not_finite_shows_and_is_gone_with_the_next_step(value):
    weights, model = decoder("plain")
    weights.embedding.rows[3] = value
    one, other = torch.tensor([3]), torch.tensor([9])
    before = model.forward(other, one, attend, None)
    logits = model.logits(model.forward(one, one, attend, None))
    general = model.logits(model.forward(one, one, attend, torch.tensor([0])))
    assert torch.isfinite(logits).all() == torch.isfinite(general).all()
    assert torch.equal(model.forward(other, one, attend, None), before)


def test_other_types_than_float32_go_the_general_way():
    assert type(decoder("plain")[1]) is CpuDecoder
    assert type(decoder("plain", torch.bfloat16)[1]) is Decoder


def test_kernels_are_used_for_one_row_too():
    assert type(decoder("plain", operations=object())[1]) is Decoder
