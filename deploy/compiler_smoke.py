"""Compiles and loads one C module the way Triton does; fails where Triton's kernels would fail."""
# ruff: noqa: INP001 - a script, not part of a package

import os
import tempfile

SOURCE = """\
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "smoke", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_smoke(void) { return PyModule_Create(&module); }
"""

with tempfile.TemporaryDirectory() as cache:
    os.environ["TRITON_CACHE_DIR"] = cache
    from triton.runtime.build import compile_module_from_src

    compile_module_from_src(SOURCE, "smoke")
