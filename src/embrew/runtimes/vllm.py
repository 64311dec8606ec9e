"""vLLM: reads the stock folder; what it reads follows the source of its loader, version 0.33.0.

`transformers_utils/config.py` (`get_pooling_config`, `get_sentence_transformer_tokenizer_config`), `config/model.py`
(`_get_and_verify_max_len`, `attn_type`), `model_executor/models/registry.py` and `adapters.py` (`_load_st_projector`).
"""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from embrew.encoder import Encoder
from embrew.runtimes.reference import Parity
from embrew.runtimes.runtime import Option, Runtime
from embrew.runtimes.stock_folder import SIMULATION, Reading, pooling_refused, read_json, stock_refusal, window_exceeded

VERSION = "0.33.0"
BY_FLAG = ("llama", "mistral", "qwen2", "qwen3")
DECODERS = (*BY_FLAG, "gemma3_text")
ENCODERS = ("bert", "roberta", "xlm-roberta", "modernbert")
WINDOWED = ("mistral", "gemma3_text")
SCRIPT = f"""{SIMULATION}
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
def encode(case, texts):
    words = [(case["prompt"] or "") + text for text in texts]
    words = [text.lower() if options["lower"] else text for text in words]
    rows = tokenizer(words, truncation=True, max_length=reading["max_length"])["input_ids"]
    return [(ids, vector(ids)) for ids in rows]
"""
"""Tokens as of a request with `truncate_prompt_tokens: -1`; a client puts the prompt before the text."""


def refused_by_vllm(encoder: Encoder) -> str | None:
    """Return why vLLM would read another encoder from the stock folder, or does not serve its family natively."""
    family = encoder.backbone.inner.config.model_type
    reason = stock_refusal(encoder) or misread_by_vllm(encoder)
    if reason is None and family not in (*DECODERS, *ENCODERS):
        return (
            f"it runs {family} by its general Transformers backend, which is not verified here; families with an "
            f"implementation of their own are {', '.join((*DECODERS, *ENCODERS))}"
        )
    return reason


def misread_by_vllm(encoder: Encoder) -> str | None:
    """Return why vLLM would open the stock folder and give other vectors; None: it would not."""
    reason = pooling_refused(encoder)
    if reason:
        return reason
    family, bidirectional = encoder.backbone.inner.config.model_type, encoder.attention.is_causal is False
    if encoder.backbone.is_bert_type:
        return None
    if bidirectional and family not in BY_FLAG:
        return f"it reads is_causal for {', '.join(BY_FLAG)}, and not for {family}; train attention: causal"
    if bidirectional or family not in WINDOWED:
        return window_exceeded(encoder)
    return None


def read_as_vllm(out: Path) -> Reading:
    """Return what vLLM reads from a folder.

    Raises:
        ValueError: it would refuse the folder, or choose the pooling by the model's family.
    """
    config, modules = read_json(out / "config.json"), read_json(out / "modules.json")
    for architecture in config["architectures"]:
        if not architecture.isidentifier():
            raise ValueError(f"Model architectures [{architecture!r}] are not supported for now")
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    pooling = next((module for module in modules if module["type"] == "sentence_transformers.models.Pooling"), None)
    mode = None if pooling is None else read_json(out / pooling["path"] / "config.json").get("pooling_mode")
    names = {"cls": "cls", "lasttoken": "last", "mean": "mean"}
    if mode not in names:
        raise ValueError(f"pooling_mode={mode!r} is none of {', '.join(names)}, and the family's own is used")
    is_causal = config.get("is_causal", True)
    if config["model_type"] == "gemma3_text":
        is_causal = not config["use_bidirectional_attention"]
    settings = read_json(out / "sentence_bert_config.json")
    return {
        "pooling": names[mode],
        "causal": None if config["model_type"] in ENCODERS else is_causal,
        "max_length": settings.get("max_seq_length", config["max_position_embeddings"]),
        "normalize": "Normalize" in kinds,
        "projections": tuple(m["path"] for m, kind in zip(modules, kinds, strict=True) if kind == "Dense"),
    }


def _options(out: Path, parity: Parity) -> dict[str, Option]:
    lower = read_json(out / "sentence_bert_config.json").get("do_lower_case", False)
    return {"reading": read_as_vllm(out), "lower": lower}


VLLM = Runtime(
    "vllm",
    f"vLLM {VERSION}",
    refusal=refused_by_vllm,
    script=SCRIPT,
    opening=lambda folder, parity: f"vllm serve {quote(str(folder))} --dtype float32",
    options=_options,
    simulated=VERSION,
    reads_stock=True,
)
