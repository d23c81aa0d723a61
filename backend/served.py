"""What the engine serves, refuses and has not been tested with: for `--help` and for the docs."""

from textwrap import fill
from typing import NamedTuple

from backend.models.families import FAMILIES
from backend.models.wrappers import WRAPPERS

_WRAPPER = "ForConditionalGeneration"


class Row(NamedTuple):
    """One subject, in Markdown; an empty text says that there is nothing to say."""

    what: str
    served: str
    refused: str = ""
    untested: str = ""


ROWS = (
    Row(
        "models by our own code",
        ", ".join(f"`{name}`" for name in FAMILIES),
        "rotary scalings other than linear, Llama 3's, YaRN and LongRoPE",
    ),
    Row(
        "other decoder-only models",
        "by `transformers`, without CUDA graphs: Gemma, GPT-OSS, OLMo, Cohere and others whose "
        "logits for two short texts are equal at load",
        "encoder-decoders, state-space models, other linear attention, chunked attention, ALiBi, "
        "Falcon, GPT-J, code that comes with a model",
    ),
    Row(
        "linear attention",
        "gated delta nets in PyTorch's operations, without CUDA graphs: `Qwen3NextForCausalLM`, "
        "`Qwen3_5ForCausalLM`, `Qwen3_5MoeForCausalLM`, and the text of "
        "`Qwen3_5ForConditionalGeneration` and `Qwen3_5MoeForConditionalGeneration`; a prefix hit "
        "ends at a snapshot of the state",
        "quantised weights, KV tiers, prefill apart from decode, LoRA, several ranks, speculation",
        "on GPUs",
    ),
    Row(
        "models that read images too",
        "their text part: " + ", ".join(name.removesuffix(_WRAPPER) for name in sorted(WRAPPERS)),
        "images, audio and video in requests; other models of text and images",
    ),
    Row("weights", "safetensors in `float64`, `float32`, `bfloat16`, `float16`", "pickled weights"),
    Row(
        "weights in 8 bits",
        "`--quantization int8` at load; FP8 with a scale for each tensor, row or block (`fp8`, "
        "`compressed-tensors`); int8 (`gptq`, `compressed-tensors`)",
        "zero points of int8 and transforms in `compressed-tensors`; `--quantization` of models "
        "that `transformers` computes",
    ),
    Row(
        "weights in 4 bits",
        "`gptq`; `awq` with version `gemm`; `pack-quantized` of `compressed-tensors` (W4A16); "
        "`mxfp4` of GPT-OSS",
        "columns in order of activation, other versions of `awq`, NVFP4, bitsandbytes, GGUF",
    ),
    Row(
        "quantised weights of models that `transformers` computes",
        "all of these layouts, such as FP8 of DeepSeek V3, GLM 4.5 and MiniMax M2: dequantised to "
        "the type of the activations as they are read",
    ),
    Row(
        "KV cache",
        "type of the activations; `int8` on the CPU; `fp8` on GPUs of capability 8.9 or later",
        "`int8` on GPUs, `fp8` on the CPU and with `--attention torch`",
    ),
    Row(
        "KV tiers",
        "blocks that leave the KV cache go to host memory (`--kv-host-bytes`) and to disk "
        "(`--kv-disk-bytes`)",
        untested="copies between a GPU and host memory",
    ),
    Row(
        "prefill apart from decode",
        "a prefill engine sends KV blocks to decode engines (`--role`, `--kv-transfer`), over TCP "
        "or shared memory",
        "several ranks; RDMA",
        "on GPUs",
    ),
    Row(
        "attention",
        "full, sliding windows by layer, capped scores, sinks; by `transformers`, also heads of "
        "different sizes and other numbers of KV heads by layer",
        "attention biases",
    ),
    Row(
        "mixture of experts",
        "Mixtral, Qwen3-MoE; in `float32` and quantised one expert at a time, without CUDA graphs",
    ),
    Row(
        "realtime",
        "`GET /v1/realtime`, OpenAI's events over a WebSocket, text and functions; prompts are "
        "computed as their items come",
        "audio, images, `conversation.item.truncate`",
    ),
    Row(
        "rerankers",
        "`/v1/rerank` and `/v1/score`, by `sentence-transformers`: `…ForSequenceClassification` "
        "with one label, and cross-encoders with `modules.json`, such as Qwen3-Reranker's",
        "several labels, chat templates without the roles `query` and `document`, several ranks",
    ),
    Row(
        "batches",
        "`/v1/files` and `/v1/batches` with `--batch-dir`, for chat, completions, responses and "
        "embeddings",
        "files of other purposes, `/v1/uploads`",
    ),
    Row(
        "LoRA adapters",
        "up to 8 at a time (`--lora`), in PEFT's format, of linear maps in attention and dense "
        "MLP, rank 256 at most, beside weights of any type",
        "embeddings, `lm_head`, experts, whole modules, trained biases, DoRA, pickled weights, "
        "models that `transformers` computes, embedding models, several ranks",
    ),
    Row(
        "speculation",
        "prompt lookup; a draft model with the same tokens",
        "draft models that `transformers` computes or that have other tokens, draft heads",
        "a draft model on a GPU",
    ),
    Row("CPU", "x86-64, run and measured", untested="Arm"),
    Row(
        "NVIDIA GPUs",
        "capability 8.0 or later",
        untested="all of them: kernels are compiled for 8.0, 8.6, 8.9, 9.0 and 10.0 and compared "
        "in Triton's interpreter, and none has run on a GPU",
    ),
    Row(
        "several GPUs",
        "`--device cuda:1` takes one; `--tensor-parallel-size N` divides a model among N GPUs of a "
        "host, or processes on the CPU",
        "numbers of heads, KV heads or inner columns that do not divide, models that `transformers`"
        " computes, several hosts",
        "NCCL: ranks have run on the CPU alone",
    ),
)


def summary() -> str:
    """Return the rows as plain text."""
    lines = []
    for what, served, refused, untested in ROWS:
        notes = (("refused", refused), ("not tested", untested))
        told = "; ".join((served, *(f"{word}: {text}" for word, text in notes if text)))
        text = f"{what}: {told}".replace("`", "")
        lines.append(fill(text, 86, initial_indent="  ", subsequent_indent="      "))
    return "\n".join(lines)
