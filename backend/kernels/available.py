"""Can Triton's kernels run on this host."""

import os
import shutil
import sysconfig
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def unavailable_reason() -> str | None:
    """Return why Triton cannot compile here, for people; None where it can.

    Triton compiles a C module for the driver and for each kernel, when it is first used. It takes
    the compiler that ``CC`` names, else gcc, else clang, and needs Python's headers.
    """
    if find_spec("triton") is None:
        return "Triton is not installed"
    compiler = os.environ.get("CC")
    if compiler is not None and shutil.which(compiler) is None:
        return f"CC names {compiler}, which is not there"
    if compiler is None and not (shutil.which("gcc") or shutil.which("clang")):
        return "no C compiler; install gcc"
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").is_file():
        return f"no Python.h in {headers}; install Python's development files"
    return None
