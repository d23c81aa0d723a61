"""What lies between two attentions, captured: the same numbers as one operation after the other.

A recorder that runs captured work again stands for CUDA's; the buffers are those of a GPU.
"""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from backend.executor.cuda_graphs import PieceGraphs, graph_sizes, size_for
from backend.models.decoder import Decoder
from backend.models.families import parse_config
from backend.models.layers import TorchOperations
from backend.models.rope import rotation_table
from backend.models.weights import random_weights

CPU = torch.device("cpu")
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}


class Rerun:
    """Runs what was recorded again, and counts."""

    def __init__(self):
        self.replays = 0

    def forget(self):
        self.num_forgotten = getattr(self, "num_forgotten", 0) + 1

    def record(self, run):
        run()

        def replay():
            self.replays += 1
            run()

        return replay, None


class Attend:
    """Attention whose result depends on all that it is given."""

    def forward(self, layer, qkv, rotations):
        queries, keys_values = qkv[:, :4] * rotations.real.mean(), qkv[:, 4:]
        keys, values = keys_values.repeat_interleave(2, dim=1).chunk(2, dim=1)
        return (queries * torch.tanh(keys) + values * (layer.index + 1)).flatten(1)


class OverwritingOperations(TorchOperations):
    """Writes the sum over the residual, as the kernels do."""

    def add_norm(self, hidden, update, norm):
        hidden += update
        return hidden, norm(hidden)


@pytest.fixture
def decoder():
    config = parse_config(CONFIG, "config.json")
    weights = random_weights(config, device=CPU, dtype=torch.float32)
    rotations = rotation_table(config.rotary, config.head_dim, 64, CPU)
    return Decoder(config, replace(weights), rotations, OverwritingOperations())


@torch.inference_mode()
def test_pieces_compute_what_the_decoder_does(decoder):
    recorder = Rerun()
    pieces = PieceGraphs(decoder, recorder, (4, 8))
    for size in (8, 4):
        pieces.capture(size)
    generator = torch.Generator().manual_seed(0)
    for count, wanted in ((3, 4), (8, 8), (5, 8), (4, 4)):
        tokens = torch.randint(50, (count,), generator=generator, dtype=torch.int32)
        positions = torch.randint(64, (count,), generator=generator, dtype=torch.int32)
        for rows in (None, torch.tensor([count - 1, 0])):
            size = pieces.size_for(count)
            assert size == wanted
            found = pieces.forward(size, tokens, positions, Attend(), rows)
            expected = decoder.forward(tokens, positions, Attend(), rows)
            torch.testing.assert_close(found, expected)
    assert recorder.replays == 8 * 3


class Copies(TorchDispatchMode):
    """Counts copies."""

    number = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.number += function is torch.ops.aten.copy_.default
        return function(*args, **(kwargs or {}))


@torch.inference_mode()
@pytest.mark.parametrize(("operations", "each"), [(OverwritingOperations, 1), (TorchOperations, 2)])
def test_what_is_summed_in_place_is_not_copied_onto_itself(decoder, operations, each):
    decoder._operations = operations()
    pieces = PieceGraphs(decoder, Rerun(), (8,))
    with Copies() as copies:
        pieces._between(0, 8)
    assert copies.number == each


@torch.inference_mode()
def test_more_tokens_than_were_captured_run_one_operation_after_the_other(decoder):
    pieces = PieceGraphs(decoder, Rerun(), (4, 8))
    assert pieces.size_for(3) is None
    pieces.capture(8)
    assert (pieces.size_for(3), pieces.size_for(8), pieces.size_for(9)) == (None, 8, None)


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (16, (1, 2, 4, 8, 16)),
        (100, (1, 2, 4, *range(8, 65, 8), 80, 96, 100)),
    ],
)
def test_sizes_of_graphs(most, sizes):
    assert graph_sizes(most) == sizes


def test_a_batch_runs_in_the_next_size():
    sizes = graph_sizes(16)
    assert [size_for(count, sizes) for count in (1, 3, 9, 16, 17)] == [1, 4, 16, 16, None]
