"""The loop over keys as it was before ids were carried: each turn loads the blocks of its own tile.

Triton then waits for each tile, because the load of keys hangs on the load of ids. It is the
engine's own loop with the lines of ids changed, so a card compares nothing but these.
"""

import inspect
import linecache
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any
from unittest import mock

import triton

from backend.kernels import decode_attention, prefill_attention
from backend.kernels.attention import attend_keys

# Kernels with the loop in them, and where the engine looks them up.
_KERNELS = ((decode_attention, "_attend_splits"), (prefill_attention, "_attend_tile"))
_CHANGES = (
    (r"^ *ahead = tl\.load\(.*\n", "", 2),
    (r"= ahead$", "= tl.load(table + key // BLOCK_SIZE, mask=key < stop, other=0)", 1),
)
"""Lines of the loop: what they are, what they become, how many there are."""


def _loop_in_turn() -> Any:
    """Return the engine's loop, which loads the ids of a tile in the turn that needs them."""
    source = inspect.getsource(attend_keys.fn)
    for pattern, new, expected in _CHANGES:
        source, count = re.subn(pattern, new, source, flags=re.MULTILINE)
        if count != expected:
            raise RuntimeError(f"attend_keys has {count} lines like {pattern}, not {expected}")
    # Triton reads a kernel's source by the name of its file.
    file = f"<{__name__}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names = dict(attend_keys.fn.__globals__)
    exec(compile(source, file, "exec"), names)
    return names[attend_keys.fn.__name__]


def _with_loop(kernel: Any, loop: Any) -> Any:
    """Return a copy of ``kernel`` with another loop over keys."""
    names = {**kernel.fn.__globals__, attend_keys.fn.__name__: loop}
    own = FunctionType(kernel.fn.__code__, names, kernel.fn.__name__)
    own.__annotations__ = kernel.fn.__annotations__  # they say which parameters are constants
    return triton.jit(own, do_not_specialize=getattr(kernel, "do_not_specialize", None))


_LOOP = _loop_in_turn()
_IN_TURN = tuple(
    (module, name, _with_loop(getattr(module, name), _LOOP)) for module, name in _KERNELS
)


@contextmanager
def ids_in_turn() -> Iterator[None]:
    """Attend with that loop for the time of the context."""
    with ExitStack() as stack:
        for module, name, kernel in _IN_TURN:
            stack.enter_context(mock.patch.object(module, name, kernel))
        # How many programs fit on a processor is noted for each kernel of the engine.
        stack.enter_context(mock.patch.dict(decode_attention._fitting, clear=True))  # noqa: SLF001
        yield
