"""`refrain backend`: serve a model over OpenAI's HTTP API; `check` proves the kernels instead.

Exit codes: 0 stopped by a signal, 1 could not run, 2 bad usage.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from backend.process import configure_logging
from backend.settings import Settings, add_flags

_INSTALL = "pip install 'refrain-gateway[cpu]', or [gpu]"
_EPILOG = """\
examples:
  refrain backend --model ./my-model
      a directory in Hugging Face layout: config.json, *.safetensors, tokenizer.json
  refrain backend --model Qwen/Qwen3-0.6B --served-model-name assistant
      a model of the hub, downloaded when it is not in the local cache
  refrain backend --model ./my-model --device cuda --dtype bfloat16 --max-num-seqs 64 --port 9000
  refrain backend --model ./my-model --max-model-len 2048 --kv-bytes 512MiB --threads 2
  refrain backend --model ./my-model --target-itl-ms 50 --max-waiting 200 --queue-timeout 20

before the first use of a GPU:
  refrain backend check                    are the kernels right here, and how fast is it

then:
  curl http://127.0.0.1:8000/v1/models
  curl http://127.0.0.1:8000/readyz        503 with the reason until the model is loaded
"""


_CHECK_EPILOG = """\
examples:
  refrain backend check
  refrain backend check --model Qwen/Qwen3-0.6B --kv-dtype fp8
  refrain backend check | tail -n 1 > check.json

exit codes: 0 all kernels pass, or none was compared because no GPU is used ("passed": null);
1 one differs or fails, or the check could not run ("error" says why); 2 bad usage, without JSON.
What differs here is replaced by PyTorch when the engine starts.
"""
_CHECK_FLAGS = (
    "device",
    "dtype",
    "quantization",
    "kv_dtype",
    "attention",
    "max_model_len",
    "log_format",
)


def main(argv: Sequence[str]) -> int:
    """Run the command with ``argv``, which is without the program's name. Returns the exit code."""
    checks = list(argv[:1]) == ["check"]
    try:
        settings = parse_check(argv[1:]) if checks else parse(argv)
    except SystemExit as stop:  # argparse has said why
        return stop.code if isinstance(stop.code, int) else 2
    configure_logging(settings.log_format)
    if find_spec("torch") is None:
        print(f"refrain backend: torch is not installed: {_INSTALL}", file=sys.stderr)
        return 1
    if not checks:
        return _serve(settings)
    from backend.check import run

    return run(settings)


def parse(argv: Sequence[str]) -> Settings:
    """Return the settings that ``argv`` gives. Raises SystemExit, as argparse does."""
    parser = argparse.ArgumentParser(
        prog="refrain backend",
        description="Serve a causal language model in Hugging Face layout over OpenAI's HTTP API.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_flags(parser, Settings)
    return Settings(**vars(parser.parse_args(argv)))


def parse_check(argv: Sequence[str]) -> Settings:
    """Return the settings that ``argv`` gives to the check. Raises SystemExit, as argparse does."""
    parser = argparse.ArgumentParser(
        prog="refrain backend check",
        description="Compare every kernel with its reference on this machine's GPU, and measure "
        "memory bandwidth and decode steps. The last line is JSON, whatever comes of it.",
        epilog=_CHECK_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model",
        default="",
        metavar="DIR_OR_HUB_ID",
        help="whose shapes and weights to take (default: the bundled model, and random weights "
        "of Qwen3-0.6B's shape)",
    )
    add_flags(parser, Settings, _CHECK_FLAGS)
    return Settings(**vars(parser.parse_args(argv)))


def _serve(settings: Settings) -> int:
    import uvloop

    from backend.app import create_app
    from backend.models.config import ModelLoadError
    from backend.process import is_left_behind
    from backend.server.app import StartError, serve

    app = create_app(settings)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(
                serve(
                    app,
                    settings.host,
                    settings.port,
                    drain_delay=settings.drain_delay,
                    drain_timeout=settings.drain_timeout,
                )
            )
    except (ModelLoadError, StartError, OSError) as error:
        print(f"refrain backend: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    if is_left_behind():
        # It may be inside of C++ code, and an orderly end of the interpreter would make it crash.
        sys.stderr.flush()
        os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
