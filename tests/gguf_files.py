"""Write a Hugging Face model as a GGUF file, in the way of llama.cpp's `convert_hf_to_gguf.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType, get_tensor_name_map
from gguf.quants import quantize
from transformers import AutoModelForCausalLM, AutoTokenizer


def write_gguf(folder: Path, path: Path, *, pre: str, weights: str = "F32", parts: int = 0, arch: str = "") -> Path:
    """Write a Llama, Mistral or Qwen2 of a folder.

    Args:
        folder: of the model and its tokenizer.
        path: of the file to write.
        pre: name of the tokenizer's rule to split texts; empty: it is SentencePiece's.
        weights: type of the matrices; vectors are F32.
        parts: number of files; 0: one without numbers in its name.
        arch: another name for the architecture.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    config = model.config
    name = "qwen2" if config.model_type == "qwen2" else "llama"
    names = get_tensor_name_map(MODEL_ARCH[name.upper()], config.num_hidden_layers)
    tensors = dict(model.state_dict())
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight")
    writer = GGUFWriter(path, arch or name, split_max_tensors=-(-len(tensors) // parts) if parts else 0)
    writer.add_name(folder.name)
    writer.add_file_type(LlamaFileType[{"F32": "ALL_F32"}.get(weights, f"MOSTLY_{weights}")])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _tokenizer(writer, folder, config.vocab_size, pre)
    for key, value in tensors.items():
        array = value.numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        count = next((heads[part] for part in heads if part in key), None)
        if name == "llama" and count is not None:
            half = array.shape[0] // count // 2
            array = array.reshape(count, 2, half, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        kind = GGMLQuantizationType[weights if array.ndim > 1 else "F32"]
        tensor_name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert tensor_name is not None
        writer.add_tensor(tensor_name, quantize(np.ascontiguousarray(array), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tokenizer(writer: Any, folder: Path, rows: int, pre: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    by_id = {i: token for token, i in tokenizer.get_vocab().items()}
    special = {token["id"]: token["special"] for token in backend["added_tokens"]}
    tokens = [by_id.get(i, f"[PAD{i}]") for i in range(rows)]
    types = [TokenType.NORMAL if i in by_id else TokenType.UNUSED for i in range(rows)]
    for i, is_special in special.items():
        types[i] = TokenType.CONTROL if is_special else TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2" if pre else "llama")
    writer.add_tokenizer_pre(pre or "default")
    writer.add_token_list(tokens)
    if pre:
        merges = backend["model"]["merges"]
        writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    else:
        types = [TokenType.BYTE if token.startswith("<0x") else kind for token, kind in zip(tokens, types, strict=True)]
        ranks: dict[str, int] = {}
        for rank, pair in enumerate(backend["model"]["merges"]):
            ranks.setdefault("".join(pair.split(" ") if isinstance(pair, str) else pair), rank)
        writer.add_token_scores([-float(ranks.get(token, 0)) for token in tokens])
    writer.add_token_types(types)
    for kind in ("bos", "eos", "unk", "pad"):
        if (token_id := getattr(tokenizer, f"{kind}_token_id")) is not None:
            getattr(writer, f"add_{kind}_token_id")(token_id)
    writer.add_add_bos_token(tokenizer("a").input_ids[0] == tokenizer.bos_token_id)
