"""A real Chromium for tests of the operator's page, and the accessibility checker for it."""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

AXE = "axe-core@4.14.1"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "refrain-tests"


def chromium() -> str | None:
    """Return the path of the browser, None where there is none."""
    return shutil.which("chromium")


def axe() -> str | None:
    """Return the script of axe-core, fetched by npm once; None where that cannot be."""
    script = CACHE / AXE.replace("@", "-") / "axe.min.js"
    if not script.is_file():
        npm = shutil.which("npm")
        if npm is None:
            return None
        CACHE.mkdir(parents=True, exist_ok=True)
        try:
            packed = subprocess.run(
                [npm, "pack", "--silent", AXE],
                cwd=CACHE,
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
        except (subprocess.SubprocessError, OSError):
            return None
        archive = CACHE / packed.stdout.split()[-1]
        script.parent.mkdir(exist_ok=True)
        with tarfile.open(archive) as package:
            found = package.extractfile("package/axe.min.js")
            assert found is not None
            # Another process may fetch it at the same time.
            made = script.with_name(f"axe.{os.getpid()}")
            made.write_bytes(found.read())
            made.replace(script)
        archive.unlink(missing_ok=True)
    return script.read_text(encoding="utf-8")
