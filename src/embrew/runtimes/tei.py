"""Text Embeddings Inference: reads the stock folder; what it reads follows its source, version 1.9.3 of 2026-07-24.

`router/src/lib.rs` (`ModelConfig`, `PoolConfig`, `STConfig`), `core/src/tokenization.rs`, `backends/src/lib.rs`
(`parse_dense_paths_from_modules`), `backends/candle/src/lib.rs` and `models/*.rs` of commit 0d124dc.
"""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from embrew.encoder import Encoder
from embrew.runtimes.reference import Parity
from embrew.runtimes.runtime import Option, Runtime
from embrew.runtimes.stock_folder import SIMULATION, Reading, pooling_refused, read_json, stock_refusal, window_exceeded

VERSION = "1.9.3"
ANYWHERE = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet", "qwen3")
ON_CUDA = ("llama", "mistral", "qwen2")
BY_IS_CAUSAL = ("qwen2",)
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swiglu", "tanh")
SCRIPT = f"""{SIMULATION}
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
tokenizer.enable_truncation(reading["max_length"])
names = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
def encode(case, texts):
    name = case["prompt_name"]
    prompt = case["prompt"] or "" if name is None else options["prompts"].get(name, "")
    rows = [None if any(name in text for name in names) else tokenizer.encode(prompt + text).ids for text in texts]
    return [(ids, None if ids is None else vector(ids)) for ids in rows]
"""
"""Texts that hold the name of a special token are left out: it is read as the token there, as the card says."""


def refused_by_tei(encoder: Encoder) -> str | None:
    """Return why Text Embeddings Inference would read another encoder from the stock folder, or does not serve it."""
    family = encoder.backbone.inner.config.model_type
    reason = stock_refusal(encoder) or misread_by_tei(encoder)
    if reason:
        return reason
    if family not in (*ANYWHERE, *ON_CUDA):
        return (
            f"it has no {family}, or does not read the configuration that transformers 5 writes for it; it serves "
            f"{', '.join(ANYWHERE)}, and on CUDA in float16 {', '.join(ON_CUDA)}"
        )
    if not encoder.normalize:
        return (
            "it normalises every vector unless a request says normalize: false, and this encoder's are not "
            "normalised; set encoder.normalize: true, which keeps all cosines"
        )
    return None


def caution_on_tei(encoder: Encoder) -> str | None:
    """Return what is said of causal Qwen3, for which `models/qwen3.rs` has a mask where texts differ in length only."""
    if encoder.backbone.inner.config.model_type != "qwen3" or encoder.attention.is_causal is False:
        return None
    return (
        f"Text Embeddings Inference {VERSION} without FlashAttention, as on a CPU, gives other vectors to texts of "
        "equal length in one batch, since this Qwen3 is causal and the server leaves out the mask there. Run it on "
        "CUDA in float16, or send requests of one text, one at a time; or train attention: bidirectional. "
        "embrew parity DIR --against URL compares a running server"
    )


def misread_by_tei(encoder: Encoder) -> str | None:
    """Return why Text Embeddings Inference would open the stock folder and give other vectors; None: it would not."""
    reason = pooling_refused(encoder)
    if reason or encoder.backbone.is_bert_type:
        return reason
    config = encoder.backbone.inner.config
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default":
        return f"it reads rope_parameters without rope_type, and this model's is {rope['rope_type']}"
    if config.model_type in ON_CUDA:
        width = config.hidden_size // config.num_attention_heads
        if (getattr(config, "head_dim", None) or width) != width:
            return f"it takes heads of {width} dimensions for granted, and this model's have {config.head_dim}"
        if config.model_type != "qwen2" and (
            getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False)
        ):
            return "it leaves out the biases of this model's attention or MLP"
    return window_exceeded(encoder)


def read_as_tei(out: Path) -> Reading:
    """Return what Text Embeddings Inference reads from a folder.

    Raises:
        ValueError: it would refuse the folder with an error.
    """
    config = read_json(out / "config.json")
    family = config["model_type"]
    trained = config.get("max_trained_positions")
    if trained is not None and not isinstance(trained, int):
        raise ValueError(f"Failed to parse `config.json`: invalid type: string {trained!r}, expected usize")
    if family not in (*ANYWHERE, *ON_CUDA):
        raise ValueError(f"Model is not supported: {family}")
    if config.get("hidden_act", config.get("activation")) not in ACTIVATIONS:
        raise ValueError(f"unknown activation {config.get('hidden_act')}")
    flags = read_json(out / "1_Pooling" / "config.json")
    served = {"cls_token": "cls", "mean_tokens": "mean", "lasttoken": "last"}
    modes = [mode for name, mode in served.items() if flags.get(f"pooling_mode_{name}")]
    if not modes:
        raise ValueError(f"Pooling config {flags} is not supported")
    settings = read_json(out / "sentence_bert_config.json")
    if "max_seq_length" not in settings:
        raise ValueError("Failed to parse `sentence_bert_config.json`: missing field `max_seq_length`")
    if family in BY_IS_CAUSAL:
        causal: bool | None = config.get("is_causal", True)
    elif family in (*ON_CUDA, "qwen3"):
        causal = not config.get("use_bidirectional_attention")
    else:
        causal = None
    modules = read_json(out / "modules.json")
    return {
        "pooling": modes[0],
        "causal": causal,
        "max_length": settings["max_seq_length"],
        "normalize": True,
        "projections": tuple(m["path"] for m in modules if m["type"] == "sentence_transformers.models.Dense"),
    }


def _options(out: Path, parity: Parity) -> dict[str, Option]:
    prompts = read_json(out / "config_sentence_transformers.json").get("prompts", {})
    return {"reading": read_as_tei(out), "prompts": prompts}


def _opening(folder: Path, parity: Parity) -> str:
    dtype = "float16" if read_json(folder / "config.json")["model_type"] in ON_CUDA else "float32"
    return f"text-embeddings-router --model-id {quote(str(folder))} --dtype {dtype}"


TEI = Runtime(
    "tei",
    f"Text Embeddings Inference {VERSION}",
    refusal=refused_by_tei,
    script=SCRIPT,
    opening=_opening,
    options=_options,
    simulated=VERSION,
    caution=caution_on_tei,
    reads_stock=True,
)
