import ctypes
import subprocess
import sys

import pytest

from embeddings.service import give_large_blocks_back

SCRIPT = """
import os, sys
import numpy as np
from embeddings.service import give_large_blocks_back

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

if sys.argv[1] == "with":
    give_large_blocks_back()
for _ in range(3):
    np.ones(30 << 17)  # 30 MB, freed at once
before, pins, blocks = resident(), [], []
for _ in range(50):
    blocks.append(np.ones(4 << 17))
    pins.append(np.ones(50_000))  # in between, so that the heap cannot shrink
blocks.clear()
print((resident() - before) >> 20)
"""


def megabytes_kept(how: str, script: str = SCRIPT) -> int:
    ran = subprocess.run(
        [sys.executable, "-c", script, how], capture_output=True, text=True, check=True
    )
    return int(ran.stdout)


def test_large_blocks_that_were_freed_are_not_kept():
    if not sys.platform.startswith("linux") or not give_large_blocks_back():
        pytest.skip("this C library has no mallopt")
    assert megabytes_kept("without") > 150  # else the test shows nothing
    assert megabytes_kept("with") < 50


TRIMMED = """
import os, sys, threading
from embeddings.service import give_free_memory_back

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

pins = []
def work():
    blocks = []
    for _ in range(1000):
        blocks.append(bytearray(60_000))
        pins.append(bytearray(600))  # in between, so that the thread's memory cannot shrink
    blocks.clear()

before = resident()
thread = threading.Thread(target=work)
thread.start()
thread.join()
if sys.argv[1] == "with":
    give_free_memory_back()
print((resident() - before) >> 20)
"""


def test_what_a_thread_left_free_is_given_back():
    if not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("this C library has no malloc_trim")
    assert megabytes_kept("without", TRIMMED) > 40  # else the test shows nothing
    assert megabytes_kept("with", TRIMMED) < 15
