"""Which build of FAISS is installed: both are the package `faiss`, and together they break it."""

from importlib.metadata import PackageNotFoundError, distribution
from typing import Final

FAISS_DISTRIBUTIONS: Final = ("faiss-cpu", "faiss-gpu-cu12")


class FaissBuildError(Exception):
    """No build of FAISS is installed, or two. One line, for people."""


def require_one_faiss() -> str:
    """Return the name of the one installed build. Raises FaissBuildError."""
    installed = [name for name in FAISS_DISTRIBUTIONS if _is_installed(name)]
    if len(installed) == 1:
        return installed[0]
    found = " and ".join(installed) if installed else "neither"
    raise FaissBuildError(
        f"exactly one of {' and '.join(FAISS_DISTRIBUTIONS)} must be installed, found {found}"
    )


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
