"""How the C library allocates memory in this process, and what it keeps of it."""

import ctypes
import gc
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = 1 << 20


def give_large_blocks_back() -> bool:
    """Have freed blocks from 1 MB on returned to the system. Return whether this C library does.

    glibc takes the first large block that is freed as a sign to keep all later ones. Vectors are
    moved from block to block while graphs grow, and what is kept of that took 3,840 bytes a vector
    instead of 1,850.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES))


def give_free_memory_back() -> bool:
    """Return what is free between blocks in use to the system. Return whether anything was.

    Each thread has memory of its own. Weights that were read, joined and packed in threads leave
    some 50 MB free there, which nothing would use again.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return False
    gc.collect()
    return bool(trim(0))
