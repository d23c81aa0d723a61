"""A directory of safetensors files, read one tensor at a time into memory that is already there.

Presence, shape, type and values of every tensor are checked, and a refusal names file and tensor.
Only files of the directory itself are opened, whatever the index says, and nothing is unpickled.
"""

import hashlib
import itertools
import logging
import math
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from backend.models.config import ModelLoadError, read_json
from backend.models.wrappers import text_tensor

logger = logging.getLogger(__name__)

FLOATS = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})
_PICKLED = ("*.bin", "*.pt", "*.pth")
# Tensors that checkpoints carry and no model needs.
# Activations get scales of their own at every step.
_NEEDLESS = (
    "rotary_emb.inv_freq",
    "masked_bias",
    ".input_scale",
    ".activation_scale",
    ".weight_shape",
)

_FINGERPRINT_FILES = ("config.json", "tokenizer.json")
_SAMPLE_BYTES = 1 << 16
_SAMPLES = 8

Span = tuple[int, int]
"""From the first, and up to but without the second."""


class Slice(NamedTuple):
    """Of a tensor of ``shape``, what ``at`` picks along each dimension."""

    shape: tuple[int, ...]
    at: tuple[Span, ...]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left out."""
        return self.at == tuple((0, size) for size in self.shape)


class _Expert(NamedTuple):
    """The ``rows`` of a matrix in a tensor for all experts; ``is_turned``: they lie as columns."""

    number: int
    rows: Span
    is_turned: bool


class Tensors(Protocol):
    """Tensors by name; what is wrong with one is a ModelLoadError that names it."""

    @property
    def source(self) -> str:
        """Where the tensors come from."""

    def has(self, name: str) -> bool:
        """Return whether there is a tensor ``name``."""

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        """Refuse another shape than ``shape``."""

    def read_into(self, name: str, out: Tensor, part: Slice | None = None) -> None:
        """Copy floats into ``out``: all, or a ``part`` of its shape."""

    def read(
        self, name: str, shapes: Sequence[tuple[int, ...]], dtypes: Collection[torch.dtype]
    ) -> Tensor:
        """Return a tensor of one of ``shapes`` and ``dtypes``."""

    def read_part(self, name: str, part: Slice, dtypes: Collection[torch.dtype]) -> Tensor:
        """Return a part of a tensor; of the rest nothing is read."""


class Checkpoint:
    """Tensors by name, whichever shard holds them."""

    def __init__(
        self,
        directory: Path,
        stem: str = "model",
        *,
        described_by: str = "config.json",
        is_wrapped: bool = False,
    ) -> None:
        """Find all shards. Raises ModelLoadError, naming every one that is missing.

        ``stem`` is how the files' names begin, ``described_by`` what tells of shapes. Of what
        ``is_wrapped`` there is the text part alone, by the names that it has by itself.
        """
        self._directory = directory
        self._described_by = described_by
        self._files: dict[Path, Any] = {}
        self._read: set[str] = set()
        index = directory / f"{stem}.safetensors.index.json"
        if index.is_file():
            self.source = str(index)
            self._path_of = _shards(index)
        else:
            path = directory / f"{stem}.safetensors"
            self.source = str(path)
            self._path_of = dict.fromkeys(self._open(path).keys(), path)
        self._stored: dict[str, str] = {}
        self._experts: dict[str, _Expert] = {}
        if is_wrapped:
            self._stored = {own: name for name in self._path_of if (own := text_tensor(name))}
            self._path_of = {own: self._path_of[name] for own, name in self._stored.items()}
            self._split_experts()

    def has(self, name: str) -> bool:
        return name in self._path_of

    @property
    def names(self) -> Collection[str]:
        """Which tensors there are."""
        return self._path_of.keys()

    def check_files(self) -> None:
        """Open every shard, so that a damaged one is told before anything is computed."""
        for path in set(self._path_of.values()):
            self._open(path)

    def check_room(
        self,
        device: torch.device,
        dtype: torch.dtype,
        bits: int = 8,
        code_bytes: float = 1,
        *,
        ranks: int = 1,
    ) -> None:
        """Raise ModelLoadError when the tensors are more than ``device`` can hold.

        Floats are as wide as ``dtype``. Codes of ``bits`` bits take ``code_bytes`` each there. On
        CUDA each of ``ranks`` has a device for its part; on the CPU they share the memory.
        """
        # By the names that safetensors has for types; words hold several codes.
        codes = {"F8_E4M3": 1, "I8": 1, "U8": 8 // bits, "I32": 32 // bits}
        needed = 0.0
        for name, path in self._path_of.items():
            count = math.prod(self.shape(name))
            kind = self._open(path).get_slice(self._stored.get(name, name)).get_dtype()
            needed += count * (codes[kind] * code_bytes if kind in codes else dtype.itemsize)
        if device.type == "cuda":
            needed /= ranks
        room = _room(device)
        if needed > room:
            raise ModelLoadError(
                f"{self.source}: the weights take {needed / 2**30:.1f} GiB as {dtype}, "
                f"{device} has {room / 2**30:.1f} GiB"
            )

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        if (actual := self.shape(name)) != shape:
            raise _refusal(
                self._path_of[name],
                name,
                f"has shape {list(actual)}, {self._described_by} asks for {list(shape)}",
            )

    def read_into(self, name: str, out: Tensor, part: Slice | None = None) -> None:
        """Copy the tensor ``name`` into ``out``, which has the shape wanted; cast if need be."""
        shape = tuple(out.shape)
        out.copy_(self.read_part(name, part, FLOATS) if part else self.read(name, (shape,), FLOATS))
        if not _is_finite(out):
            raise _refusal(self._path_of[name], name, f"has values that do not fit {out.dtype}")

    def read(
        self, name: str, shapes: Sequence[tuple[int, ...]], dtypes: Collection[torch.dtype]
    ) -> Tensor:
        if self.shape(name) not in shapes[1:]:
            self.expect(name, shapes[0])
        return self._fetch(name, None, dtypes)

    def read_part(self, name: str, part: Slice, dtypes: Collection[torch.dtype]) -> Tensor:
        self.expect(name, part.shape)
        return self._fetch(name, None if part.is_whole else part, dtypes)

    def _fetch(self, name: str, part: Slice | None, dtypes: Collection[torch.dtype]) -> Tensor:
        path, stored = self._path_of[name], self._stored.get(name, name)
        self._read.add(name)
        tensor: Tensor
        try:
            file = self._open(path)
            if name in self._experts:
                expert = self._experts[name]
                start, stop = expert.rows
                at, columns = part.at if part else ((0, stop - start), (0, None))
                rows = slice(start + at[0], start + at[1])
                both = (slice(*columns), rows) if expert.is_turned else (rows, slice(*columns))
                tensor = file.get_slice(stored)[(expert.number, *both)]
                tensor = tensor.t() if expert.is_turned else tensor
            elif part is None:
                tensor = file.get_tensor(stored)
            else:
                tensor = file.get_slice(stored)[tuple(slice(*span) for span in part.at)]
        except SafetensorError as error:
            raise _refusal(path, name, f"cannot be read: {error}") from error
        if tensor.dtype not in dtypes:
            expected = "floats" if dtypes is FLOATS else " or ".join(sorted(map(str, dtypes)))
            raise _refusal(path, name, f"has dtype {tensor.dtype}, expected {expected}")
        if tensor.dtype.is_floating_point and not _is_finite(tensor):
            raise _refusal(path, name, "has values that are not finite")
        return tensor

    def close(self) -> None:
        """Tell of tensors that nobody read: a config that does not fit looks like that."""
        unread = sorted(self._path_of.keys() - self._read)
        unread = [name for name in unread if not name.endswith(_NEEDLESS)]
        if unread:
            logger.warning(
                "%s: %d tensors are not used, such as %s", self.source, len(unread), unread[0]
            )
        self._files.clear()

    def _split_experts(self) -> None:
        """Name each expert's matrices where one tensor holds those of all, as in Qwen3-VL."""
        last = ".experts.down_proj"
        for module in [name.removesuffix(last) for name in self._path_of if name.endswith(last)]:
            kinds = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
            shapes = [self.shape(f"{module}.experts.{fused}") for fused in kinds]
            if any(len(shape) != len(("expert", "row", "column")) for shape in shapes):
                raise ModelLoadError(f"{self.source}: tensor {module}{last} has shape {shapes[1]}")
            # Published ones are transposed, those that transformers writes are not.
            turned = shapes[0][1] == shapes[1][2]
            for (fused, names), (count, *size) in zip(kinds.items(), shapes, strict=True):
                path = self._path_of.pop(f"{module}.experts.{fused}")
                stored = self._stored.pop(f"{module}.experts.{fused}")
                rows = size[turned] // len(names)
                for expert, (place, each) in itertools.product(range(count), enumerate(names)):
                    own = f"{module}.experts.{expert}.{each}.weight"
                    self._path_of[own], self._stored[own] = path, stored
                    self._experts[own] = _Expert(expert, (place * rows, (place + 1) * rows), turned)

    def shape(self, name: str, num_dims: int | None = None) -> tuple[int, ...]:
        """Return a tensor's shape; of its values nothing is read. Raises ModelLoadError.

        It has ``num_dims`` dimensions, if told.
        """
        if name not in self._path_of:
            raise ModelLoadError(f"{self.source}: tensor {name} is missing")
        path = self._path_of[name]
        try:
            shape = tuple(self._open(path).get_slice(self._stored.get(name, name)).get_shape())
        except SafetensorError as error:
            raise _refusal(path, name, f"cannot be read: {error}") from error
        if name not in self._experts:
            if num_dims not in {None, len(shape)}:
                problem = f"has shape {list(shape)}, expected {num_dims} dimensions"
                raise _refusal(path, name, problem)
            return shape
        expert = self._experts[name]
        return expert.rows[1] - expert.rows[0], shape[1 if expert.is_turned else 2]

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            try:
                self._files[path] = safe_open(path, framework="pt")
            except FileNotFoundError as error:
                raise ModelLoadError(f"{path}: not found{_pickles(self._directory)}") from error
            except (OSError, SafetensorError) as error:
                raise ModelLoadError(f"{path}: damaged or not safetensors: {error}") from error
        return self._files[path]


def model_fingerprint(directory: Path, dtype: str) -> bytes:
    """Return 32 bytes for a model directory, computed with in ``dtype``. Raises OSError."""
    digest = hashlib.sha256(dtype.encode())
    for name in _FINGERPRINT_FILES:
        path = directory / name
        digest.update(hashlib.sha256(path.read_bytes() if path.is_file() else b"").digest())
    for path in sorted(directory.glob("*.safetensors")):
        digest.update(path.name.encode() + b"\0" + _sampled(path))
    return digest.digest()


def _shards(index: Path) -> dict[str, Path]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{index}: weight_map is missing")
    for name, file in weight_map.items():
        if not isinstance(file, str) or not file.endswith(".safetensors"):
            raise ModelLoadError(f"{index}: {name}: expected a safetensors file, got {file!r}")
        if Path(file).name != file:
            raise ModelLoadError(f"{index}: {name}: {file!r} is not a file of this directory")
    shards = {index.parent / file for file in weight_map.values()}
    missing = sorted(str(path) for path in shards if not path.is_file())
    if missing:
        raise ModelLoadError(f"{', '.join(missing)}: not found, of {len(shards)} shards")
    return {name: index.parent / file for name, file in weight_map.items()}


def _room(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _is_finite(tensor: Tensor) -> bool:
    # NaN and infinities survive a sum, which needs no mask; that of large values may overflow too.
    if tensor.dtype.itemsize == 1:  # FP8 knows NaN and no infinities, and cannot be summed
        return not bool((tensor.view(torch.uint8) & 0x7F == 0x7F).any())
    total = tensor.sum(dtype=torch.float32)
    return bool(torch.isfinite(total)) or bool(torch.isfinite(tensor).all())


def _refusal(path: Path, name: str, problem: str) -> ModelLoadError:
    return ModelLoadError(f"{path}: tensor {name} {problem}".replace("\n", " "))


def _pickles(directory: Path) -> str:
    found = sorted(path.name for pattern in _PICKLED for path in directory.glob(pattern))
    return f" ({found[0]} is not read: only safetensors are)" if found else ""


def _sampled(path: Path) -> bytes:
    """Hash a file's size, its head with the table of tensors, and samples up to its end."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest = hashlib.sha256(size.to_bytes(8, "little"))
        last = max(size - _SAMPLE_BYTES, 0)
        for number in range(_SAMPLES):
            file.seek(last * number // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest()
