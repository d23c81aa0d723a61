"""What an engine makes of its options around KV: the pool, tiers behind it, and its role."""

import hashlib
import logging
from pathlib import Path

import torch

from backend.engine.core import EngineCore
from backend.engine.kv_transfer.fetches import Fetches
from backend.engine.kv_transfer.offers import Offers
from backend.engine.stepper import Fault, fault_of
from backend.executor.block_file import BlockFile, FileInUseError, blocks_in
from backend.executor.factory import make_cache
from backend.executor.kv_cache import KVCache, block_bytes
from backend.executor.memory import Sizing
from backend.executor.transfer import BlockTransfer
from backend.models.config import DecoderConfig, LongRopeScaling, ModelLoadError
from backend.models.model import Network
from backend.scheduler.block_pool import BLOCK_SIZE
from backend.settings import EngineOptions

logger = logging.getLogger(__name__)


def make_pool(
    network: Network, sizing: Sizing, device: torch.device, dtype: torch.dtype, directory: Path
) -> KVCache:
    """Return the pool. Raises ModelLoadError where there is no memory for it."""
    try:
        cache = make_cache(network, sizing.num_blocks, device=device, dtype=dtype)
    except RuntimeError as error:
        if fault_of(error) is not Fault.MEMORY:
            raise
        raise ModelLoadError(f"{directory}: out of memory for the KV pool") from error
    per_block = block_bytes(network.shape, dtype)
    logger.info(
        "%s on %s in %s: context %d tokens; KV pool in %s: %d blocks of %d tokens x %d bytes = "
        "%.0f MiB",
        directory,
        device,
        network.dtype,
        sizing.max_model_len,
        dtype,
        sizing.num_blocks,
        BLOCK_SIZE,
        per_block,
        sizing.num_blocks * per_block / 2**20,
    )
    return cache


def rotary_factors(network: Network, max_model_len: int) -> str:
    """Return which factors LongRoPE takes for such a context: KV depends on them."""
    scaling = network.shape.rotary.scaling if isinstance(network.shape, DecoderConfig) else None
    if not isinstance(scaling, LongRopeScaling):
        return ""
    return " long" if max_model_len > scaling.original_max_positions else " short"


def _stamp(directory: Path) -> bytes:
    """Return what changes with any byte of the weights: their fingerprint is made of samples."""
    files = sorted(directory.glob("*.safetensors"))
    return repr([(each.name, each.stat().st_mtime_ns) for each in files]).encode()


def make_transfer(
    options: EngineOptions, cache: KVCache, fingerprint: bytes, directory: Path
) -> tuple[BlockTransfer | None, tuple[str, ...]]:
    """Return what moves blocks to the tiers, and what of them is missing, for people.

    A file on disk is named by ``fingerprint``, and is empty once the weights were written anew.
    """
    file, disk_blocks = None, 0
    detail: tuple[str, ...] = ()
    if options.kv_disk_bytes:
        per_block = cache.bytes_of_block
        disk_blocks = blocks_in(options.kv_disk_bytes, per_block)
        if not disk_blocks:
            text = f"kv-disk-bytes {options.kv_disk_bytes}: a block takes {per_block} bytes"
            raise ModelLoadError(text)
        path = Path(options.kv_disk_dir).expanduser() / f"kv-{fingerprint.hex()[:16]}.blocks"
        fingerprint = hashlib.sha256(fingerprint + _stamp(directory)).digest()
        try:
            file = BlockFile(
                path, fingerprint=fingerprint, block_bytes=per_block, capacity=disk_blocks
            )
        except FileInUseError as error:
            detail = (f"there is no disk tier: {error}",)
            logger.warning("%s", detail[0])
    if file is None and not options.kv_host_bytes:
        return None, detail
    transfer = BlockTransfer(
        cache, host_bytes=options.kv_host_bytes or 0, file=file, disk_blocks=disk_blocks
    )
    logger.info(
        "KV tiers: %d blocks in host memory, %d on disk, of which %d are there",
        transfer.host_blocks,
        transfer.disk_blocks,
        len(transfer.on_disk),
    )
    return transfer, detail


def make_role(options: EngineOptions, core: EngineCore) -> Offers | Fetches | None:
    """Return what the engine does for others, or they for it. Raises ModelLoadError."""
    if options.role == "both":
        return None
    secret = options.kv_transfer_secret or ""
    if options.role == "prefill":
        return Offers(core, options.kv_transfer[0].address, secret)
    addresses = {each.text: each.address for each in options.kv_transfer}
    return Fetches(core, addresses, secret, seconds=options.kv_transfer_timeout)
