"""Which library computes prefill attention on CUDA, and how it is called; they are fakes."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from backend.executor.cuda_prefill import (
    KernelPrefill,
    PrefillSpans,
    TorchPrefill,
    choose_backend,
    make_prefill,
)
from backend.kernels import reference
from backend.kernels.prefill_attention import Span, query_tiles

CPU = torch.device("cpu")
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16


def installed(*names):
    return lambda name: object() if name in names else None


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (("flashinfer", "flash_attn", "triton"), "flashinfer"),
        (("flash_attn", "triton"), "flash_attn"),
        (("triton",), "triton"),
        ((), "torch"),
    ],
)
def test_the_first_that_is_installed_is_taken(modules, expected):
    find = installed(*modules)
    assert choose_backend(find, device="cuda", dtype=torch.bfloat16, head_dim=128) == expected


def test_the_libraries_are_for_half_precision_on_cuda_alone():
    find = installed("flashinfer", "flash_attn", "triton")
    assert choose_backend(find, device="cuda", dtype=torch.float32, head_dim=128) == "triton"
    assert choose_backend(find, device="cpu", dtype=torch.float16, head_dim=128) == "triton"


def test_heads_of_a_size_that_a_library_does_not_know_go_to_another():
    find = installed("flashinfer", "flash_attn", "triton")
    how = {"device": "cuda", "dtype": torch.bfloat16}
    assert choose_backend(find, **how, head_dim=96) == "flash_attn"
    assert choose_backend(find, **how, head_dim=100) == "triton"


def test_an_unknown_one_is_refused():
    with pytest.raises(ValueError, match="expected one of flashinfer, flash_attn, triton, torch"):
        make_prefill("xformers", device=CPU)


def step(*spans):
    """A step of one single token and ``spans``, (prefix, new tokens) each."""
    counts = [-(-(prefix + new) // 16) for prefix, new in spans]
    tables = [1 + sum(counts[:row]) for row in range(len(spans))]
    starts = [1 + sum(new for _, new in spans[:row]) for row in range(len(spans) + 1)]
    tiles = query_tiles(
        [
            Span(table, start, new, prefix)
            for table, start, (prefix, new) in zip(tables, starts, spans, strict=False)
        ],
        32,
    )
    # The first block is the single token's.
    blocks = torch.randperm(1 + sum(counts)).int() + 1
    cache = torch.randn(2 + sum(counts), 2 * KV_HEADS, 16, HEAD_DIM)
    new = torch.randn(starts[-1], HEADS + 2 * KV_HEADS, HEAD_DIM)
    for start, table, (prefix, count) in zip(starts, tables, spans, strict=False):
        for at in range(count):
            block = blocks[table + (prefix + at) // 16]
            cache[block, :, (prefix + at) % 16] = new[start + at, HEADS:]
    laid_out = PrefillSpans(
        first_row=1,
        blocks=blocks,
        tiles=torch.tensor(tiles, dtype=torch.int32),
        starts=tuple(starts),
        prefixes=tuple(prefix for prefix, _ in spans),
        tables=tuple(tables),
    )
    return new[:, :HEADS], new[:, HEADS:], cache, laid_out, tiles


@pytest.mark.parametrize("window", [None, 5])
def test_torch_attends_like_the_oracle(window):
    queries, keys_values, cache, spans, tiles = step((0, 20), (35, 3))
    output = torch.zeros_like(queries)
    TorchPrefill().attend(queries, keys_values, cache, spans, window=window, output=output)
    expected = reference.prefill_attention(queries, cache, spans.blocks, tiles, window=window)
    torch.testing.assert_close(output, expected)


def test_torch_keeps_masks_for_one_step_alone(monkeypatch):
    prefill, masks = TorchPrefill(), []
    attend = torch.nn.functional.scaled_dot_product_attention

    def noting(*tensors, attn_mask, **options):
        masks.append(attn_mask)
        return attend(*tensors, attn_mask=attn_mask, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noting)
    for lengths in (35, 3), (19, 3), (19, 4):
        queries, keys_values, cache, spans, tiles = step(lengths)
        for window in (5, None, 5, None):  # four layers
            output = torch.zeros_like(queries)
            prefill.attend(queries, keys_values, cache, spans, window=window, output=output)
            expected = reference.prefill_attention(
                queries, cache, spans.blocks, tiles, window=window
            )
            torch.testing.assert_close(output, expected)
    assert [masks[layer] is masks[layer - 2] for layer in range(2, 12)] == [
        layer % 4 > 1 for layer in range(2, 12)
    ]


class FlashAttn:
    """The library's function, computed plainly; remembers its arguments."""

    def __init__(self):
        self.calls = []

    def flash_attn_varlen_func(self, q, k, v, *lengths, **options):
        starts, key_starts, *longest = lengths
        self.calls.append((starts.tolist(), key_starts.tolist(), *longest, options))
        parts = []
        for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            attended = torch.nn.functional.scaled_dot_product_attention(
                q[start:stop].transpose(0, 1),
                k[start:stop].transpose(0, 1),
                v[start:stop].transpose(0, 1),
                is_causal=True,
                enable_gqa=True,
            )
            parts.append(attended.transpose(0, 1))
        return torch.cat(parts)


def test_flash_attn_takes_spans_that_begin_their_sequences():
    library = FlashAttn()
    prefill = make_prefill("flash_attn", {"flash_attn": library}.__getitem__, device=CPU)
    queries, keys_values, cache, spans, tiles = step((0, 20), (0, 7))
    output = torch.zeros_like(queries)
    prefill.attend(queries, keys_values, cache, spans, window=None, output=output)
    expected = reference.prefill_attention(queries, cache, spans.blocks, tiles)
    torch.testing.assert_close(output, expected)
    options = {"causal": True, "window_size": (-1, 0)}
    assert library.calls == [([0, 20, 27], [0, 20, 27], 20, 20, options)]
    assert prefill.reads_new_keys


def test_flash_attn_leaves_spans_with_a_prefix_to_the_kernel(monkeypatch):
    library = FlashAttn()
    prefill = make_prefill("flash_attn", lambda _: library, device=CPU)
    taken = []
    monkeypatch.setattr(KernelPrefill, "attend", lambda *_, **options: taken.append(options))
    queries, keys_values, cache, spans, _ = step((16, 4))
    prefill.attend(queries, keys_values, cache, spans, window=3, output=queries)
    assert not library.calls
    assert [options["window"] for options in taken] == [3]


def test_flashinfer_plans_once_for_each_step_and_window():
    plans, runs = [], []

    class Wrapper:
        def __init__(self, workspace, layout):
            assert layout == "HND"

        def plan(self, starts, table_starts, blocks, last, *shape, **options):
            lists = [each.tolist() for each in (starts, table_starts, blocks, last)]
            plans.append((lists, shape, options["window_left"]))

        def run(self, queries, paged):
            runs.append((len(queries), tuple(paged.shape)))
            return queries + 1

    library = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=Wrapper)
    prefill = make_prefill("flashinfer", lambda _: library, device=CPU)
    queries, keys_values, cache, spans, _ = step((0, 20), (16, 4))
    output = torch.zeros_like(queries)
    for window in (None, None, 8):
        prefill.attend(queries, keys_values, cache, spans, window=window, output=output)
    blocks = spans.blocks.tolist()
    first = ([[0, 20, 24], [0, 2, 4], blocks[1:5], [4, 4]], (HEADS, KV_HEADS, HEAD_DIM, 16), -1)
    assert plans == [first, (*first[:2], 7)]
    assert runs == [(24, (6, 2, KV_HEADS, 16, HEAD_DIM))] * 3
    torch.testing.assert_close(output[1:], queries[1:] + 1)


def test_a_plan_waits_until_the_one_before_has_left_pinned_memory(monkeypatch):
    heard = []

    class Event:
        def synchronize(self):
            heard.append("copied")

        def record(self):
            heard.append("recorded")

    class Wrapper:
        def __init__(self, workspace, layout):
            pass

        def plan(self, *arguments, **options):
            heard.append(f"planned {options['window_left']}")

        def run(self, queries, paged):
            return queries

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    library = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=Wrapper)
    prefill = make_prefill("flashinfer", lambda _: library, device=torch.device("cuda"))
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "Event", Event)
    for queries, keys_values, cache, spans, _ in (step((0, 20)), step((0, 3))):
        for window in (None, 8, None, 8):
            output = torch.zeros_like(queries)
            prefill.attend(queries, keys_values, cache, spans, window=window, output=output)
    each = ["copied", "planned -1", "recorded", "copied", "planned 7", "recorded"]
    assert heard == each + each
