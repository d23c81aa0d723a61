"""The mixture of experts against the plainest way to compute it: token by token."""

import pytest
import torch
from torch.nn import functional

from backend.models.layers import TorchOperations
from backend.models.moe import Experts

OPERATIONS = TorchOperations()


def experts(*, num=8, top_k=3, hidden=32, inner=24, normalised=True, dtype=torch.float32):
    generator = torch.Generator().manual_seed(5)

    def random(*shape):
        return torch.randn(shape, generator=generator).to(dtype)

    return Experts(
        router=random(num, hidden),
        gate_up=random(num, 2 * inner, hidden) * 0.3,
        down=random(num, hidden, inner) * 0.3,
        top_k=top_k,
        normalised=normalised,
    )


def token_by_token(mixture, rows):
    result = []
    for row in rows:
        shares = torch.softmax((mixture.router @ row).float(), -1)
        best = shares.argsort(descending=True)[: mixture.top_k].tolist()
        total = sum(shares[expert] for expert in best) if mixture.normalised else 1.0
        output = torch.zeros(len(row))
        for expert in best:
            gate, up = (mixture.gate_up[expert] @ row).chunk(2)
            inner = functional.silu(gate) * up
            output += shares[expert] / total * (mixture.down[expert] @ inner).float()
        result.append(output)
    return torch.stack(result)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("tokens", [1, 2, 17, 100])
def test_sorted_by_expert_is_the_same_as_token_by_token(tokens, normalised):
    mixture = experts(normalised=normalised)
    rows = torch.randn(tokens, 32, generator=torch.Generator().manual_seed(tokens))
    torch.testing.assert_close(mixture(rows, OPERATIONS), token_by_token(mixture, rows))


@pytest.mark.parametrize(("num", "top_k"), [(1, 1), (4, 4), (64, 2)])
def test_all_experts_one_expert_and_most_of_them_idle(num, top_k):
    mixture = experts(num=num, top_k=top_k)
    rows = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(mixture(rows, OPERATIONS), token_by_token(mixture, rows))


def test_every_token_at_the_same_expert():
    mixture = experts(top_k=1)
    rows = torch.randn(1, 32, generator=torch.Generator().manual_seed(2)).expand(40, 32)
    torch.testing.assert_close(mixture(rows, OPERATIONS), token_by_token(mixture, rows))


def test_no_tokens_are_no_work():
    assert experts()(torch.empty(0, 32), OPERATIONS).shape == (0, 32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_grouped_product_of_cuda_equals_one_product_for_each_expert(dtype):
    """torch computes it on CPU too, so the way that CUDA takes is tested here."""
    mixture = experts(dtype=dtype)
    pairs = torch.randn(30, 32, generator=torch.Generator().manual_seed(3)).to(dtype)
    ends = [4, 4, 9, 20, 20, 21, 29, 30]
    grouped = mixture._grouped(pairs, torch.tensor(ends, dtype=torch.int32), OPERATIONS)
    torch.testing.assert_close(grouped, mixture._one_by_one(pairs, ends, OPERATIONS))


def test_the_result_does_not_depend_on_who_else_is_in_the_batch():
    mixture = experts()
    rows = torch.randn(20, 32, generator=torch.Generator().manual_seed(4))
    together = mixture(rows, OPERATIONS)
    alone = torch.cat([mixture(row.unsqueeze(0), OPERATIONS) for row in rows])
    torch.testing.assert_close(together, alone)
