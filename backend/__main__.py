"""`refrain backend`: serve a model over OpenAI's HTTP API.

Exit codes: 0 stopped by a signal, 1 could not run, 2 bad usage.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence

from backend.arguments import (
    above_zero,
    add_engine_arguments,
    name,
    port,
    positive,
    seconds,
    seconds_from_zero,
)
from backend.process import configure_logging
from backend.settings import Settings

_EPILOG = """\
examples:
  refrain backend --model ./my-model
      a directory in Hugging Face layout: config.json, *.safetensors, tokenizer.json
  refrain backend --model Qwen/Qwen3-0.6B --served-model-name assistant
      a model of the hub, downloaded when it is not in the local cache
  refrain backend --model ./my-model --device cuda --dtype bfloat16 --max-num-seqs 64 --port 9000
  refrain backend --model ./my-model --max-model-len 2048 --kv-bytes 512MiB --threads 2
  refrain backend --model ./my-model --target-itl-ms 50 --max-waiting 200 --queue-timeout 20
  refrain backend tune --model ./my-model --target-itl-ms 50
      measure which --max-num-seqs suits this machine (refrain backend tune --help)

then:
  curl http://127.0.0.1:8000/v1/models
  curl http://127.0.0.1:8000/readyz        503 with the reason until the model is loaded
"""


def main(argv: Sequence[str]) -> int:
    """Run the command with ``argv``, which is without the program's name. Returns the exit code."""
    if list(argv[:1]) == ["tune"]:
        from backend.tune_command import main as tune

        return tune(argv[1:])
    try:
        settings = _parse(argv)
    except SystemExit as stop:  # argparse has said why
        return stop.code if isinstance(stop.code, int) else 2
    configure_logging()
    return _run(settings)


def _parse(argv: Sequence[str]) -> Settings:
    parser = argparse.ArgumentParser(
        prog="refrain backend",
        description="Serve a causal language model in Hugging Face layout over OpenAI's HTTP API.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_engine_arguments(parser)
    add = parser.add_argument
    add(
        "--served-model-name",
        type=name,
        metavar="NAME",
        help="what clients call it (default: the directory's name, or the hub id)",
    )
    add(
        "--tool-call-parser",
        choices=("auto", "qwen", "llama", "none"),
        default="auto",
        help="how the model calls functions; auto is as its chat template says (default: auto)",
    )
    add(
        "--reasoning-parser",
        choices=("auto", "qwen3", "deepseek_r1", "none"),
        default="auto",
        help="how the model marks its reasoning, which goes into reasoning_content; auto chooses "
        "by the model's name (default: auto)",
    )
    add(
        "--allow-unknown-fields",
        action="store_true",
        help="ignore fields of requests that no server is known to read (default: refuse them)",
    )
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add(
        "--port",
        type=port,
        default=8000,
        help="port to listen on, 0 for any free one (default: %(default)s)",
    )
    add(
        "--max-num-seqs",
        type=positive,
        metavar="N",
        help="most sequences computed together (default: 16 on CPU, 256 on CUDA)",
    )
    add(
        "--max-waiting",
        type=positive,
        default=1024,
        metavar="N",
        help="sequences that may wait for their first step; more are answered 429 (default: "
        "%(default)s)",
    )
    add(
        "--queue-timeout",
        type=seconds,
        metavar="TIME",
        help="answer 503 when nothing of a request was computed after so long; a request's own "
        "X-Refrain-Queue-Timeout goes before it (default: wait without end)",
    )
    add(
        "--step-timeout",
        type=seconds,
        default=300.0,
        metavar="TIME",
        help="kill an engine that has requests and says nothing for so long, and start another; "
        "longer than the longest step may take (default: %(default)g s)",
    )
    add(
        "--load-timeout",
        type=seconds,
        default=600.0,
        metavar="TIME",
        help="give up an engine that tells of no progress for so long while it is loaded; the "
        "whole may take longer (default: %(default)g s)",
    )
    add(
        "--drain-delay",
        type=seconds_from_zero,
        default=1.0,
        metavar="TIME",
        help="told to stop, answer /readyz with 503 for so long before the port is closed "
        "(default: %(default)g s)",
    )
    add(
        "--drain-timeout",
        type=seconds_from_zero,
        default=30.0,
        metavar="TIME",
        help="and wait for open requests for so long (default: %(default)g s)",
    )
    add(
        "--target-ttft-ms",
        type=above_zero,
        metavar="MS",
        help="keep steps so short that a first token comes within this, where nobody waits in the "
        "queue (default: as long as the token budget makes them)",
    )
    add(
        "--target-itl-ms",
        type=above_zero,
        metavar="MS",
        help="keep steps so short, and so few sequences in them, that the next token comes within "
        "this (default: no target)",
    )
    add(
        "--max-tokens-per-step",
        type=positive,
        metavar="TOKENS",
        help="how much of long prompts one step computes, which delays everybody's next token",
    )
    add(
        "--kv-events",
        action="store_true",
        help="tell routers at /kv_events what the prefix cache stores and removes, by digest",
    )
    return Settings(**vars(parser.parse_args(argv)))


def _run(settings: Settings) -> int:
    import uvloop

    from backend.app import create_app
    from backend.engine.background import is_left_behind
    from backend.models.config import ModelLoadError
    from backend.server.serving import StartError, serve

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
