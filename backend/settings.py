"""The settings of `refrain backend`: each is declared once, with its flag, default and help."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmgt]?)(i?)(b?)", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(ms|s|m|h)?", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
_UNITS = {"s": "seconds", "ms": "milliseconds"}
_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?", re.ASCII)


def name(text: str) -> str:
    """Read a name that people and logs can show."""
    if not text.strip() or not text.isprintable():
        raise ValueError(f"expected a name, got {text!a}")
    return text


class AdapterSource(NamedTuple):
    """A LoRA adapter: what clients call it, and where it lies."""

    name: str
    directory: str


def adapter_source(text: str) -> AdapterSource:
    """Read a name and a directory, NAME=DIR."""
    called, separator, directory = text.partition("=")
    if not separator or not directory:
        raise ValueError(f"expected name=DIR, got '{text}'")
    return AdapterSource(name(called), directory)


class Address(NamedTuple):
    """Where an engine is reached: as it was written, and as host and port."""

    text: str
    address: tuple[str, int]


def address(text: str) -> Address:
    """Read HOST:PORT; an IPv6 address is in brackets."""
    host, separator, number = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not separator or not bare or (":" in bare and bare == host) or not bare.isprintable():
        raise ValueError(f"expected HOST:PORT, got '{text}'")
    return Address(text, (bare, port(number)))


def device_name(text: str) -> str:
    """Read where to compute."""
    if not _DEVICE.fullmatch(text):
        raise ValueError(f"expected auto, cpu, cuda or cuda:N, got '{text}'")
    return text


def secret(text: str) -> str:
    """Read the secret that a file holds, without the blanks around it."""
    value = _content(text).strip()
    if not value or not value.isprintable():
        raise ValueError(f"'{text}' holds no key: expected one line of text")
    return value


def template_file(text: str) -> tuple[str, str]:
    """Read a file of Jinja, and return its path too."""
    return text, _content(text)


def _content(path: str) -> str:
    try:
        return Path(path).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ValueError(f"cannot read '{path}': {reason}") from error


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"expected a whole number of at least 1, got '{text}'")
    return int(text)


def up_to(most: int) -> Callable[[str], int]:
    """Return what reads a whole number from 1 to ``most``."""

    def read(text: str) -> int:
        number = positive(text)
        if number > most:
            raise ValueError(f"expected at most {most}, got {number}")
        return number

    return read


def share(text: str) -> float:
    """Read a number above 0 and of at most 1."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= 1:
        raise ValueError(f"expected a number above 0 and at most 1, got '{text}'")
    return number


def port(text: str) -> int:
    """Read a port."""
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise ValueError(f"expected a port from 0 to 65535, got '{text}'")
    return int(text)


def size(text: str) -> int:
    """Read a number of bytes: 512MiB and 2G are of 1024, 1GB is of 1000."""
    written = _SIZE.fullmatch(text.strip())
    if written is None or (written[3] and not written[2]) or float(written[1]) == 0:
        raise ValueError(f"expected bytes such as 512MiB or 8GiB, got '{text}'")
    decimal = bool(written[4]) and not written[3]
    return int(float(written[1]) * (1000 if decimal else 1024) ** _POWERS[written[2].lower()])


def seconds(text: str) -> float:
    """Read a time above 0, such as 500ms, 30s, 5m or a number of seconds."""
    return _time(text, "s", above_zero=True)


def seconds_from_zero(text: str) -> float:
    """Read a time, which may be 0."""
    return _time(text, "s")


def milliseconds(text: str) -> float:
    """Read a time above 0, such as 50ms, 0.2s or a number of milliseconds."""
    return _time(text, "ms", above_zero=True) * 1000


def _time(text: str, bare: str, *, above_zero: bool = False) -> float:
    """Return the seconds of a time; ``bare`` is the unit of a plain number."""
    written = _TIME.fullmatch(text.strip())
    number = float(written[1]) * _SECONDS[written[2] or bare] if written else 0.0
    if written is None or (above_zero and not number):
        what, unit = "a time above 0" if above_zero else "a time", _UNITS[bare]
        raise ValueError(
            f"expected {what}, such as 500ms, 30s, 5m or a number of {unit}, got '{text}'"
        )
    return number


_METAVARS: dict[Any, str] = {seconds: "TIME", seconds_from_zero: "TIME", milliseconds: "MS"}


def _flag(
    default: Any = None,
    explanation: str = "",
    *,
    read: Callable[[str], Any] = str,
    metavar: str | None = None,
    choices: Sequence[str] | None = None,
    named: str | None = None,
) -> Any:
    """Return a field with a flag of its name, or ``named``; ``default`` MISSING requires it.

    A flag whose default is a tuple may be given several times.
    """
    metavar = metavar or _METAVARS.get(read)
    flag = {
        "help": explanation,
        "read": read,
        "metavar": metavar,
        "choices": choices,
        "name": named,
    }
    return field(default=default, metadata={"flag": flag}, repr=read is not secret)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine is made of; None leaves a choice to the model loader."""

    model: str = _flag(MISSING, "what to serve", metavar="DIR_OR_HUB_ID")
    device: str = _flag(
        "auto",
        "where to compute: auto, cpu, cuda, or cuda:1 for the second GPU; auto takes CUDA where "
        "there is a device",
        read=device_name,
        metavar="DEVICE",
    )
    tensor_parallel_size: int = _flag(
        1,
        "GPUs, or processes on the CPU, that compute the model together: each has a part of "
        "every weight and of the KV cache",
        read=up_to(64),
        metavar="N",
    )
    dtype: str = _flag(
        "auto",
        "of activations, KV cache and weights that are not quantised; auto is float32 on CPU, "
        "else the checkpoint's",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    quantization: str | None = _flag(
        None,
        "make weights 8 bits wide at load, which halves their memory [default: as the "
        "checkpoint has them]",
        choices=("int8",),
    )
    lora: tuple[AdapterSource, ...] = _flag(
        (),
        "a LoRA adapter in PEFT's format, and the name that requests have for it as their model; "
        "again for others, up to 8",
        read=adapter_source,
        metavar="NAME=DIR",
    )
    chat_template: tuple[str, str] | None = _flag(
        None,
        "a file with a chat template in Jinja, which takes the place of the model's own",
        read=template_file,
        metavar="FILE",
    )
    matryoshka: bool = _flag(
        False,
        "the vectors of this embedding model may be cut to any length that a request names in "
        "dimensions [default: as its config.json says]",
    )
    kv_dtype: str = _flag(
        "auto",
        "of the KV cache: int8 on CPU or fp8 on CUDA hold twice the tokens; auto is --dtype",
        choices=("auto", "int8", "fp8"),
    )
    attention: str = _flag(
        "auto",
        "what attends on CUDA: our Triton kernels, which auto takes, or PyTorch",
        choices=("auto", "triton", "torch"),
    )
    max_model_len: int | None = _flag(
        None,
        "longest prompt and answer together [default: the model's context]",
        read=positive,
        metavar="TOKENS",
    )
    max_num_seqs: int | None = _flag(
        None,
        "most sequences computed together [default: 16 on CPU, 256 on CUDA, 32 there with linear "
        "attention]",
        read=up_to(65_536),
        metavar="N",
    )
    max_tokens_per_step: int | None = _flag(
        None,
        "how much of long prompts one step computes, which delays everybody's next token "
        "[default: 512 on CPU, 8192 on CUDA]",
        read=positive,
        metavar="TOKENS",
    )
    kv_bytes: int | None = _flag(
        None,
        "memory of the KV cache, of each rank where there are several, such as 512MiB or 8GiB "
        "[default: a share of what is there]",
        read=size,
        metavar="BYTES",
    )
    kv_host_bytes: int | None = _flag(
        None,
        "host memory for KV blocks that the KV cache has no room for; they come back where a "
        "prompt begins with them [default: none]",
        read=size,
        metavar="BYTES",
    )
    kv_disk_bytes: int | None = _flag(
        None,
        "disk for KV blocks that host memory has no room for; they are found again after a "
        "restart [default: none]",
        read=size,
        metavar="BYTES",
    )
    kv_disk_dir: str = _flag(
        ".refrain",
        "the folder of --kv-disk-bytes, with a file for each model; who can read it can read what "
        "prompts said",
        metavar="DIR",
    )
    role: str = _flag(
        "both",
        "what part of requests this engine computes: a prefill engine computes prompts for decode "
        "engines, which go on from there",
        choices=("both", "prefill", "decode"),
    )
    kv_transfer: tuple[Address, ...] = _flag(
        (),
        "where a prefill engine listens for decode engines; for a decode engine, a prefill engine "
        "that requests may name in X-Refrain-Prefill, again for others",
        read=address,
        metavar="HOST:PORT",
    )
    kv_transfer_secret: str | None = _flag(
        None,
        "a file with the secret that prefill and decode engines share",
        read=secret,
        metavar="FILE",
        named="kv-transfer-secret-file",
    )
    kv_transfer_timeout: float = _flag(
        30.0,
        "compute a prompt here when a prefill engine has not sent all of it within this",
        read=seconds,
    )
    gpu_memory_utilization: float = _flag(
        0.9,
        "share of the GPU's memory that weights, steps and KV cache may take, above 0 and at "
        "most 1",
        read=share,
        metavar="SHARE",
    )
    self_check: bool = _flag(
        True,
        "on CUDA, compare each kernel with a reference at start, and compute in PyTorch what "
        "differs [default: on]",
    )
    threads: int | None = _flag(
        None,
        "CPU threads of all ranks together [default: torch's choice]",
        read=up_to(1_024),
        metavar="N",
    )
    max_waiting: int = _flag(
        1024,
        "sequences that may wait for their first step; more are answered 429",
        read=positive,
        metavar="N",
    )
    queue_timeout: float | None = _flag(
        None,
        "answer 503 when nothing of a request was computed after so long; a request's own "
        "X-Refrain-Queue-Timeout goes before it [default: wait without end]",
        read=seconds,
    )
    target_ttft_ms: float | None = _flag(
        None,
        "keep steps so short that a first token comes within this, where nobody waits in the "
        "queue [default: as long as the token budget makes them]",
        read=milliseconds,
    )
    target_itl_ms: float | None = _flag(
        None,
        "keep steps so short, and so few sequences in them, that the next token comes within "
        "this [default: no target]",
        read=milliseconds,
    )
    speculation: str = _flag(
        "prompt-lookup",
        "guess the next tokens from the prompt and the answer so far, and verify them in one step, "
        "where that is faster; only tokens that would have come anyway are used",
        choices=("prompt-lookup", "off"),
    )
    speculative_model: str | None = _flag(
        None,
        "a small model with the same tokens that guesses the next ones, which --model verifies; "
        "no text changes [default: none]",
        metavar="DIR_OR_HUB_ID",
    )
    num_speculative_tokens: int = _flag(
        4, "how many it guesses at a time at most", read=up_to(16), metavar="K"
    )
    kv_events: bool = _flag(
        False, "tell routers at /kv_events what the prefix cache stores and removes, by digest"
    )
    log_format: str = _flag(
        "auto",
        "of log lines on stderr; auto is text on a terminal, else JSON",
        choices=("auto", "text", "json"),
    )
    overlap: bool | None = None
    """Launch a step before the last one's tokens are known; None: on CUDA."""


TOOL_CALL_PARSERS = (
    *("qwen", "qwen_xml", "llama", "llama4", "mistral", "mistral_args", "glm", "deepseek_v3"),
    *("deepseek_v31", "kimi", "harmony", "lfm2", "minimax", "seed", "granite", "phi", "command"),
)
"""The formats in ``server/tool_parsers/families.py``."""


@dataclass(frozen=True, slots=True)
class Settings(EngineOptions):
    """The engine's options, and those of the server and the process around it."""

    served_model_name: str | None = _flag(
        None,
        "what clients call it [default: the directory's name, or the hub id]",
        read=name,
        metavar="NAME",
    )
    generation_config: str = _flag(
        "auto",
        "how to sample where a request says nothing: auto is as the model's generation_config.json "
        "says, none is OpenAI's defaults",
        choices=("auto", "none"),
    )
    host: str = _flag("127.0.0.1", "address to listen on")
    port: int = _flag(8000, "port to listen on, 0 for any free one", read=port)
    tool_call_parser: str = _flag(
        "auto",
        "how the model calls functions; auto is as its chat template says",
        choices=("auto", *TOOL_CALL_PARSERS, "none"),
    )
    reasoning_parser: str = _flag(
        "auto",
        "how the model marks its reasoning, which goes into reasoning_content; auto is as its "
        "chat template says",
        choices=(
            *("auto", "qwen3", "deepseek_r1", "harmony", "granite3.2", "granite3.3", "hunyuan"),
            *("mistral", "seed", "command", "none"),
        ),
    )
    allow_unknown_fields: bool = _flag(
        False, "ignore fields of requests that no server is known to read [default: refuse them]"
    )
    admin_key: str | None = _flag(
        None,
        "a file with the key that POST /sleep, POST /wake_up and GET /is_sleeping ask for "
        "[default: these do not exist]",
        read=secret,
        metavar="FILE",
        named="admin-key-file",
    )
    when_asleep: str = _flag(
        "wake",
        "what a request does that comes while the engine sleeps: wake it, or get 503",
        choices=("wake", "refuse"),
    )
    batch_dir: str | None = _flag(
        None,
        "serve /v1/files and /v1/batches, and keep their files in this directory, which is for "
        "them alone [default: neither is served]",
        metavar="DIR",
    )
    batch_bytes: int = _flag(
        10 * 2**30,
        "files of batches take this much together; more is refused [default: 10GiB]",
        read=size,
        metavar="BYTES",
    )
    batch_ttl: float = _flag(
        30 * 86_400.0,
        "remove a file, and a batch that has ended, after so long [default: 720h]",
        read=seconds,
    )
    batch_concurrency: int = _flag(
        8, "requests of batches that are computed together", read=up_to(4_096), metavar="N"
    )
    step_timeout: float = _flag(
        300.0,
        "kill an engine that has requests and says nothing for so long, and start another; "
        "longer than the longest step may take",
        read=seconds,
    )
    load_timeout: float = _flag(
        600.0,
        "give up an engine that reports no progress for so long while it is loaded; the "
        "whole may take longer",
        read=seconds,
    )
    drain_delay: float = _flag(
        1.0,
        "told to stop, answer /readyz with 503 for so long before the port is closed",
        read=seconds_from_zero,
    )
    drain_timeout: float = _flag(
        30.0, "and wait for open requests for so long", read=seconds_from_zero
    )

    @property
    def model_name(self) -> str:
        """What clients call the model: a directory's own name, else the hub id."""
        if self.served_model_name is not None:
            return self.served_model_name
        directory = Path(self.model).expanduser()
        return directory.resolve().name if directory.is_dir() else self.model
