"""The mixture of experts against the plainest way to compute it: token by token."""

from dataclasses import dataclass

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.nn import functional

from backend.models import moe
from backend.models.layers import DenseLinear, TorchOperations
from backend.models.moe import Experts, multiply_in_torch

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
    mixture, by_group = experts(dtype=dtype), experts(dtype=dtype)
    by_group.product = multiply_in_torch
    rows = torch.randn(30, 32, generator=torch.Generator().manual_seed(3)).to(dtype)
    torch.testing.assert_close(by_group(rows, OPERATIONS), mixture(rows, OPERATIONS))


@dataclass
class Device:
    """Experts on a GPU that need not be there: tensors without memory."""

    monkeypatch: pytest.MonkeyPatch

    def experts(self, dtype, capability=(8, 0), *, inner=24, why_not=None):
        self.monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        self.monkeypatch.setattr(moe, "unavailable_reason", lambda: why_not)
        with FakeTensorMode(allow_non_fake_inputs=True):
            router, gate_up, down = (
                torch.empty(shape, device="cuda", dtype=dtype)
                for shape in ((4, 32), (4, 2 * inner, 32), (4, 32, inner))
            )
        return Experts(router, gate_up, down, top_k=2, normalised=True)


@pytest.fixture
def device(monkeypatch):
    return Device(monkeypatch)


@pytest.mark.parametrize(
    ("dtype", "capability", "inner", "in_torch"),
    [
        (torch.bfloat16, (9, 0), 24, True),
        (torch.bfloat16, (10, 0), 24, True),
        (torch.bfloat16, (9, 0), 20, False),
        (torch.float16, (9, 0), 24, False),
        (torch.bfloat16, (8, 0), 24, False),
        (torch.bfloat16, (8, 9), 24, False),
        (torch.bfloat16, (12, 0), 24, False),
        (torch.float16, (8, 6), 20, False),
    ],
    ids=str,
)
def test_torch_multiplies_where_its_product_is_a_kernel_and_else_ours(
    device, dtype, capability, inner, in_torch
):
    pytest.importorskip("triton", reason="Triton is not installed")
    from backend.kernels.grouped_matmul import grouped_matmul

    mixture = device.experts(dtype, capability, inner=inner)
    assert mixture.product is (multiply_in_torch if in_torch else grouped_matmul)
    mixture.compute_in_torch()
    assert mixture.product is (multiply_in_torch if in_torch else None)


def test_where_triton_is_missing_torch_multiplies_or_experts_are_computed_one_by_one(device):
    hopper = device.experts(torch.bfloat16, (9, 0), why_not="no C compiler")
    assert hopper.product is multiply_in_torch
    assert device.experts(torch.bfloat16, (8, 0), why_not="no C compiler").product is None


def test_only_experts_that_are_computed_one_by_one_have_the_host_wait(device):
    """A tensor without memory has no values that the host could learn."""
    mixture = device.experts(torch.float16)
    mixture.product = lambda pairs, weights, _: pairs.new_empty(len(pairs), weights.shape[1])
    with FakeTensorMode(allow_non_fake_inputs=True):
        rows = torch.empty(5, 32, device="cuda", dtype=torch.float16)
        assert mixture(rows, OPERATIONS).shape == rows.shape
        mixture.product = None
        with pytest.raises(DataDependentOutputException):
            mixture(rows, OPERATIONS)


def test_float32_and_quantised_experts_are_computed_one_by_one(device):
    assert device.experts(torch.float32).product is None
    half = device.experts(torch.float16)
    linears = tuple(DenseLinear(weight) for weight in half.gate_up)
    assert Experts(half.router, linears, half.down, top_k=2, normalised=True).product is None
    assert experts(dtype=torch.bfloat16).product is None


def test_the_result_does_not_depend_on_who_else_is_in_the_batch():
    mixture = experts()
    rows = torch.randn(20, 32, generator=torch.Generator().manual_seed(4))
    together = mixture(rows, OPERATIONS)
    alone = torch.cat([mixture(row.unsqueeze(0), OPERATIONS) for row in rows])
    torch.testing.assert_close(together, alone)
