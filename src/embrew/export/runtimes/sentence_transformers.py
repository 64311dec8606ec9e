"""Sentence-Transformers: a folder of stock modules."""

from __future__ import annotations

import json
import re
import tempfile
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from torch import nn

from embrew.export.parts import Parts
from embrew.export.runtime import Runtime
from embrew.export.runtimes.tei import misread_by_tei
from embrew.export.runtimes.vllm import misread_by_vllm
from embrew.export.stock import pooling_modules, pools_every_token, pools_last_token, stock_refusal
from embrew.storage.parts import check_tokenizer, write_tokenizer

OPENING = """
sys.modules["bitsandbytes"] = None  # not needed; as it is imported, it may download code
import sentence_transformers
from sentence_transformers import SentenceTransformer
version = sentence_transformers.__version__
model = SentenceTransformer(
    folder, device=options["device"], trust_remote_code=False, model_kwargs={"use_safetensors": True}
)
def encode(case, texts):
    named = {} if case["method"] != "encode" or case.get("default") else {"prompt_name": case["prompt_name"]}
    vectors = getattr(model, case["method"])(texts, batch_size=batch_size, show_progress_bar=False, **named)
    words = [(case["prompt"] or "") + text for text in texts]
    return zip(model.tokenizer(words, truncation=True, max_length=model.max_seq_length)["input_ids"], vectors)
"""


def required_versions() -> dict[str, str]:
    """Return lowest versions that a folder is written for: those that embrew itself needs."""
    matches = (re.match(r"([\w-]+)>=([\d.]+)", line) for line in requires("embrew") or ())
    lowest = {match[1]: match[2] for match in matches if match}
    return {name: lowest[name] for name in ("transformers", "sentence-transformers")}


def write_stock(parts: Parts, out: Path, weights: str) -> None:
    """Write the folder that plain `SentenceTransformer(folder)` opens, in the encoder's own data type."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer

    encoder, tokenizer = parts.encoder, parts.tokenizer
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:  # on the same disk, and removed with it after a kill
        parts.model.save_pretrained(scratch)
        write_tokenizer(tokenizer, Path(scratch))
        own: dict[str, Any] = {"trust_remote_code": False}  # to be given for each of its three parts
        transformer = Transformer(
            scratch, unpad_inputs=_unpad(parts), model_kwargs=own, processor_kwargs={**own}, config_kwargs={**own}
        )
        modules: list[nn.Module] = [transformer, *pooling_modules(encoder, tokenizer, parts.ids)]
        if encoder.normalize:
            modules.append(Normalize())
        stock = SentenceTransformer(
            modules=modules,
            prompts=parts.prompts,
            default_prompt_name=encoder.default_prompt_name or ("text" if "text" in parts.prompts else None),
            similarity_fn_name="cosine",
            device=str(encoder.device),
            trust_remote_code=False,
        )
        stock.save_pretrained(str(out), create_model_card=False)
    check_tokenizer(tokenizer, out)
    _write_for_other_readers(out, max_length=encoder.max_seq_length)
    _refuse_misreading(out, vllm=misread_by_vllm(encoder), tei=misread_by_tei(encoder))


def _unpad(parts: Parts) -> bool | None:
    """Return False where texts must be padded to get their vectors; else None: Sentence-Transformers decides.

    With FlashAttention it concatenates the texts of a batch without padding, which is faster. `WordWeights` needs the
    attention mask that such a batch lacks, and a text without tokens has no row in it.
    """
    one_pooling = pools_every_token(parts.encoder) or pools_last_token(parts.encoder)
    return None if one_pooling and parts.empty_texts else False


def _refuse_misreading(out: Path, *, vllm: str | None, tei: str | None) -> None:
    """Make software refuse a folder from which it would read another encoder, with an error that holds the reason.

    transformers 4 would ignore `is_causal`, `rope_parameters` and the tokenizer's class. It reads
    `_attn_implementation_internal` as the name of an attention kernel and repeats an unknown name in its error; version
    5, and servers with their own models, ignore it in a file. vLLM, and llama.cpp's converter, find a model by the
    names in `architectures`. Text Embeddings Inference reads `max_trained_positions` as a number.

    Args:
        out: the folder.
        vllm: why vLLM would read another encoder; None: it would not.
        tei: the same for Text Embeddings Inference.
    """
    path = out / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    lowest = required_versions()["transformers"]
    config["_attn_implementation_internal"] = f"none: this folder needs transformers>={lowest}"
    if vllm:
        config["architectures"] = [f"none: {vllm}"]
    if tei:
        config["max_trained_positions"] = f"none: {tei}"
    path.write_text(json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_for_other_readers(out: Path, *, max_length: int) -> None:
    """Write module paths, pooling flags and the length limit in a form that other and older readers support.

    Text Embeddings Inference requires `max_seq_length`, and the flags of its three kinds of pooling; vLLM reads
    `max_seq_length` and `do_lower_case`. Sentence-Transformers reads the limit from the tokenizer otherwise.
    """
    path = out / "sentence_bert_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "max_seq_length": max_length, "do_lower_case": False}, indent=4))
    path = out / "modules.json"
    modules = json.loads(path.read_text())
    for module in modules:
        module["type"] = f"sentence_transformers.models.{module['type'].rpartition('.')[2]}"
    path.write_text(json.dumps(modules, indent=2))
    flags = {
        "pooling_mode_cls_token": "cls",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_max_tokens": "max",
        "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
        "pooling_mode_weightedmean_tokens": "weightedmean",
        "pooling_mode_lasttoken": "lasttoken",
    }
    for module in modules:
        if module["type"].endswith(".Pooling"):
            path = out / module["path"] / "config.json"
            config = json.loads(path.read_text())
            chosen = {flag: config.get("pooling_mode") == mode for flag, mode in flags.items()}
            path.write_text(json.dumps({**chosen, **config}, indent=2))


SENTENCE_TRANSFORMERS = Runtime(
    "sentence-transformers",
    "Sentence-Transformers",
    refusal=stock_refusal,
    opening=OPENING,
    write=write_stock,
    reads_stock=True,
)
