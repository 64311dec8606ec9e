"""Every decoder that transformers maps to a causal language model, in miniature, and what embrew makes of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests import families

NAMES = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
LIBRARY_MASKS = ("axk2", "deepseek_v32", "doge", "glm_moe_dsa", "qwen4_exp_text")
"""Their vectors need the library's own mask; decoders that are in no list are read without one, and are equal."""
REFUSED: dict[str, tuple[str, ...]] = {
    "a decoder of an encoder-decoder, which the library wraps": (
        "bart",
        "bigbird_pegasus",
        "blenderbot",
        "blenderbot-small",
        "marian",
        "mbart",
        "mvp",
        "pegasus",
        "plbart",
        "prophetnet",
        "trocr",
    ),
    "a language model among other parts": (
        "blt",
        "fuyu",
        "gemma3",
        "gemma4",
        "gemma4_unified",
        "got_ocr2",
        "llama4",
        "llama4_text",
        "moss_transcribe_diarize",
    ),
    "tokens see their future": ("cpmant", "xlnet"),
    "other states from input embeddings than from ids": ("deepseek_v4", "gemma3n_text"),
    "layers under no name known here": ("hrm_text", "reformer", "xlm"),
    "its own error": ("xlstm",),
}
NOT_BUILT = (
    "dbrx",
    "dots3_note",
    "dots3_note_text",
    "emu3",
    "gemma3n",
    "gemma4_assistant",
    "gemma4_unified_assistant",
    "gemma4_unified_text",
    "mllama",
    "musicgen",
    "musicgen_melody",
    "phi4_multimodal",
    "qwen4_exp",
)
"""transformers does not open them in miniature: it refuses the sizes, lacks a package, or has no such class."""


def table() -> str:
    """Return the lists of the documentation."""
    listed = {name for names in (LIBRARY_MASKS, NOT_BUILT, *REFUSED.values()) for name in names}
    equal = [name for name in NAMES if name not in listed]
    refused = "; ".join(f"{why}: {_names(names)}" for why, names in REFUSED.items())
    return "\n".join(
        [
            f"- **Equal, without a mask** ({len(equal)}): {_names(equal)}.",
            f"- **Equal, with the library's masks** ({len(LIBRARY_MASKS)}): {_names(LIBRARY_MASKS)}.",
            f"- **Refused** ({sum(map(len, REFUSED.values()))}): {refused}.",
            f"- **Not built in miniature** ({len(NOT_BUILT)}): {_names(NOT_BUILT)}.",
        ]
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


LISTS = {
    300: "vocab_size vocab_size_per_layer_input image_vocab_size pronunciation_vocab_size shape_vocab_size",
    32: "hidden_size d_model n_embd model_dim dim embed_dim embedding_size word_embed_proj_dim emb_dim lru_width "
    "moe_intermediate_size shared_expert_intermediate_size shared_experts_intermediate_size router_hidden_size "
    "expert_ffn_hidden_size pronunciation_embed_dim shape_embed_dim ple_embed_dim",
    64: "intermediate_size d_ff ffn_dim n_inner d_inner decoder_ffn_dim encoder_ffn_dim ffn_hidden_size "
    "feed_forward_size shared_intermediate_size mamba_d_ssm",
    2: "num_hidden_layers num_layers n_layer n_layers decoder_layers encoder_layers num_decoder_layers "
    "num_encoder_layers num_key_value_heads kv_n_heads num_experts_per_tok num_experts_per_token moe_topk moe_k "
    "linear_num_key_heads linear_num_value_heads index_n_heads mamba_expand depth zero_expert_num indexer_n_heads "
    "indexer_compress_ratio",
    4: "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads mamba_n_heads "
    "linear_num_heads num_experts num_local_experts n_routed_experts moe_num_experts num_query_groups rotary_dim "
    "mamba_dt_rank time_step_rank patch_size",
    8: "head_dim kv_channels attention_head_dim qk_rope_head_dim qk_nope_head_dim v_head_dim "
    "hidden_size_per_layer_input linear_key_head_dim linear_value_head_dim linear_head_dim index_head_dim "
    "indexer_head_dim mamba_d_state state_size sliding_window attention_window local_attention_window window_size "
    "attention_chunk_size chunk_size mamba_chunk_size image_size hc_lowrank laurel_rank",
    1: "bos_token_id n_shared_experts num_shared_experts n_group topk_group num_expert_group first_k_dense_replace "
    "num_dense_layers mamba_n_groups mamba_ngroups n_groups layer_group_size indexer_kv_heads",
    16: "q_lora_rank kv_lora_rank mamba_d_head mamba_headdim indexer_budget",
    128: "index_topk",
    1024: "max_position_embeddings n_positions max_seq_len max_sequence_length",
}
SIZES: dict[str, Any] = {name: size for size, names in LISTS.items() for name in names.split()}
SIZES |= {"pad_token_id": 0, "eos_token_id": 2, "is_decoder": True, "causal": True, "ngram_vocab_size_base": 300}
NEEDED = (
    "head_dim",
    "num_key_value_heads",
    "num_experts_per_tok",
    "n_routed_experts",
    "n_shared_experts",
    "rotary_dim",
)
KINDS_OF_LAYERS = ("layer_types", "mlp_layer_types", "layers_block_type")
LINEAR_AND_HYBRID = ["linear_attention", "hybrid", "linear_attention", "hybrid"]
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
OTHER_SIZES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 30},
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
    "gemma3n_text": {
        "num_kv_shared_layers": 0,
        "intermediate_size": 64,
        "activation_sparsity_pattern": [0.5, 0.0],
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gemma4_unified_text": {"per_layer_config": None, "layer_types": ["sliding_attention", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "mpt": {"intermediate_size": None},
    "qwen4_exp_text": {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8}
    | {"indexer_budget": 16, "indexer_compress_ratio": 2},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "num_key_value_heads": 1},
    "reformer": {"attn_layers": ["local", "lsh"], "axial_pos_shape": [32, 32], "axial_pos_embds_dim": [16, 16]}
    | {"attention_head_size": 8, "num_buckets": 4},
    "rwkv": {"attention_hidden_size": 32},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": LINEAR_AND_HYBRID, "attention_head_dim": 16}
    | {"attention_hidden_size": 64},
    "zamba2": {"mamba_headdim": 16, "n_mamba_heads": 4, "attention_hidden_size": 64},
    "zaya": {"num_experts_per_tok": 1},
}


def config_of(name: str) -> PreTrainedConfig:
    """Return a decoder's configuration in miniature: its default one with other sizes, and each kind of layer once."""
    if name in families.FAMILIES:
        return families.config_of(name)
    default = AutoConfig.for_model(name)
    return AutoConfig.for_model(name, **_sizes(default) | OTHER_SIZES.get(name, {}))


def _sizes(default: PreTrainedConfig) -> dict[str, Any]:
    fields, aliases = default.to_dict(), default.attribute_map or {}
    kinds = {k: fields[k] for k in KINDS_OF_LAYERS if isinstance(fields.get(k), list) and k not in aliases}
    sizes: dict[str, Any] = {}
    for key, value in fields.items():
        if isinstance(part := vars(default).get(key), PreTrainedConfig):
            sizes[key] = _sizes(part)
        elif key in SIZES and key not in aliases and (value is not None or key in NEEDED or key.endswith("token_id")):
            sizes[key] = SIZES[key]
    if kinds:
        combinations = list(zip(*kinds.values(), strict=False))
        first = sorted({kind: i for i, kind in reversed(list(enumerate(combinations)))}.values())
        chosen = first if len(first) > 1 else [0, 1]
        sizes |= {key: [values[i] for i in chosen] for key, values in kinds.items()}
        sizes |= {key: len(chosen) for key in ("num_hidden_layers", "num_layers", "n_layer") if key in sizes}
    if "kv_lora_rank" in sizes:
        sizes["num_key_value_heads"] = 4
    return sizes
