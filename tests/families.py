"""Families of causal language models in miniature: what is tested of each, and what the documentation says of it."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from transformers import AutoConfig, PreTrainedConfig

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
WIDE = {**GROUPED, "head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_expand": 2, "mamba_n_groups": 1}
SCALED = {
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 64,
        "llama_4_scaling_beta": 0.1,
    }
}
PLAIN = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
LOCAL = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}


class Family(NamedTuple):
    """A family in miniature, and what holds of it.

    Attributes:
        models: public models of it, for the table.
        sizes: fields of its configuration.
        bidirectional: how it is made bidirectional: by the library's flag, an explicit mask, or not at all.
        memory_causal: whether it takes masks.
        positions: whether they are learned, so that rows have a longest length.
        head: what it does to logits, or nothing.
        embeddings: what it does to input embeddings, or nothing.
        attention_dropout: whether it applies a dropout on attention weights (SimCSE's noise).
        lora_dropout: whether a LoRA on all its linear layers may have dropout.
        default: whether it is tested in every run.
        other_layers: layers that mix tokens without attention, or nothing.
    """

    models: str
    sizes: dict[str, Any]
    bidirectional: Literal["flag", "mask"] | None = "flag"
    memory_causal: bool = True
    positions: Literal["any", "learned"] = "any"
    head: str = ""
    embeddings: str = ""
    attention_dropout: bool = True
    lora_dropout: bool = True
    default: bool = False
    other_layers: str = ""

    @property
    def attention(self) -> Literal["bidirectional", "causal"]:
        """The attention that an encoder of it is tested with."""
        return "bidirectional" if self.bidirectional else "causal"


FAMILIES: dict[str, Family] = {
    "llama": Family("Llama 2, 3; nano", GROUPED),
    "qwen2": Family("Qwen 1.5, 2, 2.5", GROUPED),
    "qwen3": Family("Qwen 3", WIDE),
    "qwen3_moe": Family("Qwen 3 with experts", {**WIDE, **EXPERTS}, lora_dropout=False),
    "mistral": Family("Mistral", {**WIDE, "sliding_window": 8}),
    "gemma2": Family(
        "Gemma 2",
        {**WIDE, **LOCAL, "query_pre_attn_scalar": 8, "final_logit_softcapping": 3.0},
        head="capped (`final_logit_softcapping`)",
        embeddings="scaled by √width",
    ),
    "gemma3_text": Family("Gemma 3", {**WIDE, **LOCAL, "query_pre_attn_scalar": 8}, embeddings="scaled by √width"),
    "gpt_neox": Family("GPT-NeoX, Pythia", SIZES),
    "phi": Family("Phi 1, 2", SIZES),
    "phi3": Family("Phi 3, 4", GROUPED),
    "olmo2": Family("OLMo 2", GROUPED),
    "olmo3": Family("OLMo 3", {**GROUPED, **LOCAL}),
    "smollm3": Family("SmolLM 3", GROUPED),
    "glm4": Family("GLM 4", WIDE),
    "granite": Family(
        "Granite 3",
        {**GROUPED, "embedding_multiplier": 6.0, "logits_scaling": 4.0, "residual_multiplier": 0.5},
        head="divided by `logits_scaling`",
        embeddings="multiplied by `embedding_multiplier`",
        default=True,
    ),
    "cohere2": Family("Command R7B, A", {**WIDE, **LOCAL, "logit_scale": 0.25}, head="multiplied by `logit_scale`"),
    "stablelm": Family("StableLM", GROUPED, bidirectional="mask", default=True),
    "gpt2": Family("GPT-2", SIZES, positions="learned"),
    "opt": Family("OPT", {**SIZES, "ffn_dim": 64, "word_embed_proj_dim": 32}, positions="learned"),
    "gpt_neo": Family(
        "GPT-Neo",
        {**SIZES, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8},
        bidirectional=None,
        memory_causal=False,
        positions="learned",
    ),
    "qwen3_5_text": Family("Qwen 3.5", {**WIDE, **DELTA}, other_layers="gated delta rule"),
    "gemma4_text": Family(
        "Gemma 4",
        {**WIDE, **LOCAL, "vocab_size_per_layer_input": 300, "hidden_size_per_layer_input": 8},
        embeddings="scaled by √width, and a second time per layer",
    ),
    "lfm2": Family(
        "LFM 2",
        {**GROUPED, "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
        attention_dropout=False,
        other_layers="convolution",
        default=True,
    ),
    "ministral3": Family("Ministral 3", {**WIDE, **SCALED}),
    "granitemoehybrid": Family(
        "Granite 4",
        {
            **GROUPED,
            **MAMBA,
            "layer_types": ["mamba", "attention"],
            "num_local_experts": 0,
            "shared_intermediate_size": 64,
        },
        other_layers="Mamba 2",
    ),
    "exaone4": Family("EXAONE 4", {**WIDE, **LOCAL}),
    "hunyuan_v1_dense": Family("Hunyuan", WIDE),
    "olmo_hybrid": Family("OLMo hybrid", {**WIDE, **DELTA}, other_layers="gated delta rule"),
    "ernie4_5": Family("ERNIE 4.5", WIDE),
    "apertus": Family("Apertus", {**WIDE, **PLAIN}),
    "seed_oss": Family("Seed-OSS", WIDE),
    "nemotron": Family("Nemotron", WIDE, bidirectional="mask"),
    "falcon": Family("Falcon", {**SIZES, "alibi": False, "new_decoder_architecture": False}, attention_dropout=False),
    "falcon-alibi": Family(
        "Falcon with ALiBi",
        {**SIZES, "alibi": True, "new_decoder_architecture": False},
        memory_causal=False,
        default=True,
    ),
    "falcon-alibi-heads": Family(
        "Falcon with ALiBi, keys per head",
        {**SIZES, "alibi": True, "new_decoder_architecture": False, "multi_query": False},
        memory_causal=False,
    ),
    "mpt": Family(
        "MPT",
        {"vocab_size": 300, "d_model": 32, "n_layers": 2, "n_heads": 4, "expansion_ratio": 2, "max_seq_len": 128},
        bidirectional="mask",
        attention_dropout=False,
    ),
    "bloom": Family("BLOOM", {"vocab_size": 300, "hidden_size": 32, "n_layer": 2, "n_head": 4}, memory_causal=False),
}


def config_of(name: str) -> PreTrainedConfig:
    """A family's configuration in miniature."""
    return AutoConfig.for_model(name.partition("-")[0], **FAMILIES[name].sizes)


def table() -> str:
    """The documentation's table: one row per behaviour, with its families."""
    ways = {
        "flag": "yes",
        "mask": "yes, by a mask; not in exports",
        None: "refused: the family adds its own causal mask",
    }
    families: dict[tuple[str, ...], list[str]] = {}
    for name, family in FAMILIES.items():
        parts = [f"embeddings {family.embeddings}"] if family.embeddings else []
        parts += [f"logits {family.head}"] if family.head else []
        parts += [] if family.attention_dropout else ["`attention_dropout` refused"]
        parts += [f"other layers: {family.other_layers}, causal in every mode"] if family.other_layers else []
        parts += [] if family.lora_dropout else ["`lora_dropout` on experts refused"]
        cells = (
            ways[family.bidirectional],
            "yes" if family.memory_causal else "refused: takes no mask",
            "up to its learned positions" if family.positions == "learned" else "any",
            "; ".join(parts) or "–",
        )
        families.setdefault(cells, []).append(f"`{name}` ({family.models})")
    rows = ["| Families | Bidirectional | Memory causal | Length | Also |", "|---|---|---|---|---|"]
    rows += [f"| {', '.join(names)} | {' | '.join(cells)} |" for cells, names in families.items()]
    return "\n".join(rows)
