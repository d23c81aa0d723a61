"""A model that sleeps: its weights lie on the host, its KV pool is gone, and all tensors stay.

On CUDA, a tensor's storage gives its memory back and takes other memory later, so nothing that
refers to the tensor has to know. Only what remembers addresses, which CUDA graphs do, must be made
anew. On the CPU the weights are on the host already, and the kernel takes the pages of the pool.
"""

import ctypes
import gc
import mmap
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from backend.executor.kv_cache import KVCache

_OURS = "backend."


@dataclass(frozen=True, slots=True)
class Asleep:
    """What comes back when a model wakes; empty for one that is awake.

    ``saved`` has the bytes of each storage of weights on the host, ``dropped`` the size of each
    storage whose content nobody needs.
    """

    saved: list[tuple[torch.UntypedStorage, Tensor]] = field(default_factory=list)
    dropped: list[tuple[torch.UntypedStorage, int]] = field(default_factory=list)

    def wake(self) -> None:
        """Take the memory again; what was dropped is zero."""
        while self.saved:
            storage, content = self.saved.pop()
            storage.resize_(content.nbytes)
            _bytes_of(storage).copy_(content)
        while self.dropped:
            storage, size = self.dropped.pop()
            storage.resize_(size)
            _bytes_of(storage).zero_()


def put_to_sleep(
    model: Any, cache: KVCache, states: Iterable[Tensor] = (), *, moves: bool | None = None
) -> Asleep:
    """Give back the memory of ``cache`` and ``states``, and of weights where they ``move``.

    ``moves`` None: on CUDA. On the CPU they are on the host already.
    """
    asleep = Asleep()
    blocks = [layer.blocks for layer in cache.layers]
    on_cuda = blocks[0].is_cuda
    moves = on_cuda if moves is None else moves
    for storage in _storages([*blocks, *states]):
        if on_cuda:
            asleep.dropped.append((storage, storage.nbytes()))
            storage.resize_(0)
        else:
            _discard_pages(_bytes_of(storage))
    for storage in _storages(tensors_of(model)) if moves else ():
        asleep.saved.append((storage, _to_host(_bytes_of(storage))))
        storage.resize_(0)
    if on_cuda:
        gc.collect()
        torch.cuda.empty_cache()
    return asleep


def tensors_of(root: Any) -> Iterator[Tensor]:
    """Yield every tensor that ``root`` holds: in containers, closures and objects of ours."""
    seen: set[int] = set()
    todo: list[Any] = [root]
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            yield value
        else:
            todo += _parts(value)


def _parts(value: Any) -> list[Any]:
    match value:
        case dict():
            return list(value.values())
        case list() | tuple() | set() | frozenset():
            return list(value)
        case partial():
            return [value.func, *value.args, *value.keywords.values()]
        case MethodType():
            return [value.__self__]
        case FunctionType():
            return [cell.cell_contents for cell in value.__closure__ or ()]
    kind = type(value)
    if not kind.__module__.startswith(_OURS) and not isinstance(value, nn.Module):
        return []
    slots = [name for each in kind.__mro__ for name in getattr(each, "__slots__", ())]
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, s, None) for s in slots)]


def _storages(tensors: Any) -> list[torch.UntypedStorage]:
    """Return each storage once, however many tensors share it."""
    found = {}
    for tensor in tensors:
        if tensor.layout is torch.strided and not tensor.is_mkldnn:
            storage = tensor.untyped_storage()
            if storage.nbytes() and storage.resizable():
                found[storage.data_ptr()] = storage
    return list(found.values())


def _discard_pages(content: Tensor) -> None:
    """Zero ``content``; on Linux its whole pages go back to the kernel until they are written."""
    start, stop = content.data_ptr(), content.data_ptr() + content.nbytes
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
    if sys.platform == "linux" and first < last:
        libc = ctypes.CDLL(None, use_errno=True)
        address, length = ctypes.c_void_p(first), ctypes.c_size_t(last - first)
        if not libc.madvise(address, length, mmap.MADV_DONTNEED):
            content[: first - start].zero_()
            content[last - start :].zero_()
            return
    content.zero_()


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _to_host(content: Tensor) -> Tensor:
    host = torch.empty(content.shape, dtype=torch.uint8, pin_memory=content.is_cuda)
    return host.copy_(content)
