"""The engine that `refrain backend tune` measures: loaded once, with a fresh loop for each cap."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from backend.engine.engine import Engine
from backend.engine.messages import EngineOptions
from backend.engine.tune import Load, measure
from backend.executor.model_loader import load_model
from backend.scheduler.tuning import Trial


def device_of(name: str) -> str:
    """Return cpu or cuda for what ``--device`` says."""
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


@contextmanager
def engine_to_tune(
    options: EngineOptions, load: tuple[int, int]
) -> Iterator[Callable[[int, int | None, float], Trial]]:
    """Load the model and yield what measures it at a cap and a budget, for so many seconds.

    ``options`` have the largest cap and budget; ``load`` is the mean length of prompts and answers.
    Raises ModelLoadError; what is yielded raises RequestRejectedError and EngineError.
    """
    loaded = load_model(options)
    lengths = Load(*load, vocab_size=loaded.description.vocab_size)

    def trial(cap: int, budget: int | None, seconds: float) -> Trial:
        limits = loaded.core.limits
        limits = replace(
            limits,
            max_num_seqs=cap,
            max_tokens_per_step=max(budget or limits.max_tokens_per_step, cap),
        )
        engine = Engine(loaded.core.limited(limits), loaded.tokenizer, loaded.description)
        engine.start()
        try:
            return asyncio.run(
                measure(
                    engine, lengths, max_num_seqs=cap, max_tokens_per_step=budget, seconds=seconds
                )
            )
        finally:
            engine.stop()

    yield trial
