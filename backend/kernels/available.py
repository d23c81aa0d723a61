"""Can Triton's kernels run on this host."""

import os
import shutil
import sysconfig
from functools import cache
from importlib.util import find_spec
from pathlib import Path


def c_compiler() -> str | None:
    """Return the path of the C compiler that Triton takes, None where there is none."""
    named = os.environ.get("CC")
    if named is not None:
        return shutil.which(named)
    return shutil.which("gcc") or shutil.which("clang")


@cache
def unavailable_reason() -> str | None:
    """Return why Triton cannot compile here, for people; None where it can.

    Triton compiles a C module for the driver and for each kernel, when it is first used. It takes
    the compiler that ``CC`` names, else gcc, else clang, and needs Python's headers.
    """
    if find_spec("triton") is None:
        return "Triton is not installed"
    if c_compiler() is None:
        named = os.environ.get("CC")
        if named is not None:
            return f"CC names {named}, which is not there"
        return "no C compiler; install gcc"
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").is_file():
        return f"no Python.h in {headers}; install Python's development files"
    return None
