"""Settings of `refrain backend`, as plain values."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """``model`` is a directory or a hub id; None leaves a choice to the engine.

    ``quantization`` int8 makes weights 8 bits wide at load; ``kv_dtype`` is int8 on CPU or fp8 on
    CUDA for a KV cache of 8 bits. ``kv_bytes`` is the memory of the KV pool in bytes,
    ``gpu_memory_utilization`` the share of a GPU's memory that the engine may take,
    ``max_model_len`` the context in tokens, ``threads``
    torch's within one operation. ``kv_events`` opens ``GET /kv_events`` to routers.
    ``tool_call_parser`` is qwen, llama, none, or auto for what the chat template says.
    ``reasoning_parser`` is qwen3, deepseek_r1, none, or auto for what the model's name says.
    ``allow_unknown_fields`` ignores fields of requests that no server is known to read.
    ``max_waiting`` sequences may wait, for ``queue_timeout`` seconds each; targets are in
    milliseconds. An engine hangs that is silent for ``step_timeout`` seconds while it has requests,
    or for ``load_timeout`` seconds while it is loaded. Told to stop, the server is unready for
    ``drain_delay`` seconds, and then waits ``drain_timeout`` seconds for open requests.
    """

    model: str
    served_model_name: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    device: str = "auto"
    dtype: str = "auto"
    quantization: str | None = None
    kv_dtype: str = "auto"
    max_num_seqs: int | None = None
    max_tokens_per_step: int | None = None
    max_waiting: int = 1024
    queue_timeout: float | None = None
    step_timeout: float = 300.0
    load_timeout: float = 600.0
    target_ttft_ms: float | None = None
    target_itl_ms: float | None = None
    max_model_len: int | None = None
    kv_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    threads: int | None = None
    kv_events: bool = False
    tool_call_parser: str = "auto"
    drain_delay: float = 1.0
    drain_timeout: float = 30.0
    reasoning_parser: str = "auto"
    allow_unknown_fields: bool = False

    @property
    def model_name(self) -> str:
        """What clients call the model: a directory's own name, else the hub id."""
        if self.served_model_name is not None:
            return self.served_model_name
        directory = Path(self.model).expanduser()
        return directory.resolve().name if directory.is_dir() else self.model
