"""Make an exported folder readable for other software, or refused with an error."""

from __future__ import annotations

import json
import re
from importlib.metadata import requires
from pathlib import Path

LEGACY = "sentence_transformers.models"
GUARD = "_attn_implementation_internal"


def required_versions() -> dict[str, str]:
    """Return lowest versions that a folder is written for: those that embrew itself needs."""
    lowest = (re.match(r"([\w-]+)>=([\d.]+)", line) for line in requires("embrew") or ())
    found = {match[1]: match[2] for match in lowest if match}
    return {name: found[name] for name in ("transformers", "sentence-transformers")}


def refuse_older_versions(out: Path) -> None:
    """Make transformers 4 refuse the folder with an error that names the version it needs.

    It would open the weights and ignore what it does not know: `is_causal`, `rope_parameters`, the tokenizer's class.
    No setting names the version that a folder needs. transformers 4 reads this one as the name of an attention kernel
    and repeats an unknown name in its error; version 5, and servers with their own models, ignore it in a file.
    """
    path = out / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config[GUARD] = f"none: this folder needs transformers>={required_versions()['transformers']}"
    path.write_text(json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def refuse_misreading(out: Path, *, vllm: str | None, tei: str | None) -> None:
    """Make servers refuse a folder from which they would read another encoder, with an error that holds the reason.

    Sentence-Transformers and transformers find a model by `model_type`; vLLM, and llama.cpp's converter, by the names
    in `architectures`, and refuse names that they do not know. Text Embeddings Inference reads `max_trained_positions`,
    a setting of another family, as a number, and refuses a `config.json` where it is none.

    Args:
        out: the folder.
        vllm: why vLLM would read another encoder; None: it would not.
        tei: the same for Text Embeddings Inference.
    """
    path = out / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    if vllm:
        config["architectures"] = [f"none: {vllm}"]
    if tei:
        config["max_trained_positions"] = f"none: {tei}"
    path.write_text(json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def write_for_other_readers(out: Path, *, max_length: int) -> None:
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
        module["type"] = f"{LEGACY}.{module['type'].rpartition('.')[2]}"
    path.write_text(json.dumps(modules, indent=2))
    for module in modules:
        if module["type"].endswith(".Pooling"):
            config_path = out / module["path"] / "config.json"
            config = json.loads(config_path.read_text())
            mode = config.get("pooling_mode")
            flags = {
                "pooling_mode_cls_token": mode == "cls",
                "pooling_mode_mean_tokens": mode == "mean",
                "pooling_mode_max_tokens": mode == "max",
                "pooling_mode_mean_sqrt_len_tokens": False,
                "pooling_mode_weightedmean_tokens": mode == "weightedmean",
                "pooling_mode_lasttoken": mode == "lasttoken",
            }
            config_path.write_text(json.dumps({**flags, **config}, indent=2))
