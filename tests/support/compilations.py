"""What Triton would compile on a GPU that need not be there, counted from our own launches.

Triton compiles a kernel once for each key: types, alignment of pointers, integers that are 1 or
multiples of 16, constants, warps and stages. Here Triton's own binder makes the key from tensors on
the CPU, and nothing is computed.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from backend import kernels

_HOPPER = make_backend(GPUTarget("cuda", 90, 32))


class Compilations:
    """A set of keys; ``recording`` replaces every launch of our kernels by a note of its key."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self._binders: dict[str, Any] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Launch nothing in the block, and note what would be compiled."""
        modules = [
            importlib.import_module(f"{kernels.__name__}.{found.name}")
            for found in pkgutil.iter_modules(kernels.__path__)
            if found.name != "launch"
        ]
        launching = [module for module in modules if hasattr(module, "launch")]
        before = [module.launch for module in launching]
        for module in launching:
            module.launch = self._launch
        try:
            yield
        finally:
            for module, launch in zip(launching, before, strict=True):
                module.launch = launch

    def _launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **meta: Any) -> None:
        if 0 in grid:
            return
        name = kernel.__name__
        if name not in self._binders:
            self._binders[name] = create_function_from_signature(
                kernel.signature, kernel.params, _HOPPER
            )
        _, specialization, options = self._binders[name](*arguments, **meta)
        described = zip(kernel.arg_names, specialization, strict=True)
        self.keys.add(f"{name} {dict(described)} {options}")
        # Tokens that nobody chose must be some of the vocabulary.
        for each in arguments:
            if isinstance(each, torch.Tensor) and each.dtype is torch.int64:
                each.zero_()
