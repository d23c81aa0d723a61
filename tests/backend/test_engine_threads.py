"""Small operations are not shared among threads, and what comes after them is again."""

import pytest
import torch

from backend.models.cpu_decoder import SingleThreadIfSmall


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_small_operation_has_one_thread():
    with SingleThreadIfSmall(2**20 - 1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_a_large_operation_has_all_threads():
    with SingleThreadIfSmall(2**20):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 2


def test_an_operation_that_fails_leaves_all_threads_to_the_next():
    with pytest.raises(RuntimeError), SingleThreadIfSmall(1):
        torch.mm(torch.ones(1, 2), torch.ones(3, 1))
    assert torch.get_num_threads() == 2
