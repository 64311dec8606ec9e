"""A model and its tokenizer in a GGUF file: architectures that llama.cpp and this package both know, and vocabularies.

Key and tensor names are those of llama.cpp's `conversion/` (commit 0c1e570); tensor names come from gguf's own map.

llama.cpp (`src/llama-vocab.cpp`, same commit) has a list of pre-tokenizers by name, `tokenizer.ggml.pre`, for
byte-level BPE (`gpt2`), and one tokenizer for SentencePiece vocabularies (`llama`). It normalises nothing.

It finds names of special tokens in texts (llama-server always), and SentencePiece's merges can spell them. In an
encoder they stay text. Special tokens are therefore written as unused ones, under names with a space: no text becomes
such a name, since both kinds of tokenizer replace spaces first, and llama.cpp looks for no unused token.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from embrew.runtimes.stock_folder import sliding_window

if TYPE_CHECKING:
    from gguf import GGUFWriter

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3_text": "gemma3"}
"""Name in llama.cpp by `model_type` of transformers."""
BIDIRECTIONAL = {"gemma3": "gemma-embedding"}  # llama.cpp's name of the same layers with bidirectional attention
INTERLEAVED = ("llama",)  # llama.cpp rotates neighbouring pairs of dimensions there, transformers the two halves
ROPE = ("default", "llama3")


def architecture(config: PreTrainedConfig, *, causal: bool) -> str:
    """Return llama.cpp's name of a model's architecture."""
    name = ARCHITECTURES[config.model_type]
    return name if causal else BIDIRECTIONAL.get(name, name)


def refusal(config: PreTrainedConfig, limit: int) -> str | None:
    """Return why llama.cpp cannot run a model on texts of up to `limit` tokens as transformers does; None: it can."""
    kind, rope = config.model_type, getattr(config, "rope_parameters", None) or {}
    if kind not in ARCHITECTURES:
        return f"its architecture is {kind}; those that can be written are {', '.join(ARCHITECTURES)}"
    if kind == "gemma3_text":
        return _gemma3_refusal(config) or _window_refusal(config, limit)
    scaling = rope.get("rope_type", "default")
    if scaling not in ROPE or (scaling == "llama3" and ARCHITECTURES[kind] != "llama"):
        return f"its rotary positions are scaled by {scaling!r}; {' and '.join(ROPE)} (Llama only) can be written"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        return "only a part of each attention head's dimensions is rotated"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act!r}, and llama.cpp has silu there"
    if (reason := _window_refusal(config, limit)) is not None:
        return reason
    if kind == "qwen3" and config.attention_bias:
        return "its attention has biases, which llama.cpp's Qwen3 has not"
    if kind == "qwen2" and head_width(config) * config.num_attention_heads != config.hidden_size:
        return "its attention heads together are not as wide as its states, which llama.cpp's Qwen2 needs"
    return None


def _window_refusal(config: PreTrainedConfig, limit: int) -> str | None:
    window = sliding_window(config)
    if window is None or window >= limit:
        return None
    return (
        f"its attention has a sliding window of {window} tokens, which llama.cpp ignores there, and its texts have "
        f"up to {limit}; export with --max-length {window} or less"
    )


def _gemma3_refusal(config: PreTrainedConfig) -> str | None:
    """Return why llama.cpp's Gemma 3 is another model: its constants are in its source, not in the file."""
    layers = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(config.num_hidden_layers)]
    if list(config.layer_types) != layers:
        return "its layers do not attend to all tokens in each sixth one, and to a window in others, as llama.cpp's do"
    for name, base in (("sliding_attention", 10000.0), ("full_attention", None)):
        rope = config.rope_parameters.get(name) or {}
        if rope.get("rope_type", "default") != "default" or base not in (None, rope.get("rope_theta")):
            return f"rotary positions of {name} are {rope}; unscaled ones can be written, of base 10000 in the window"
    if config.query_pre_attn_scalar != head_width(config):
        return (
            f"attention is scaled by {config.query_pre_attn_scalar} (query_pre_attn_scalar), and llama.cpp scales it "
            f"by the width of a head, {head_width(config)}"
        )
    if config.hidden_activation != "gelu_pytorch_tanh" or config.attention_bias:
        return "its activation is not gelu_pytorch_tanh, or its attention has biases"
    return None


def head_width(config: PreTrainedConfig) -> int:
    """Return the dimensions of one attention head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def write_architecture(writer: GGUFWriter, config: PreTrainedConfig, *, limit: int) -> None:
    """Write the key values of a model's architecture; `limit` is the context length."""
    writer.add_context_length(limit)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_width(config))
    writer.add_value_length(head_width(config))
    writer.add_rope_dimension_count(head_width(config))
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    if config.model_type == "gemma3_text":
        writer.add_sliding_window(2 * limit)  # wider than texts in both directions: `refusal` leaves no narrower one
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def tensors(model: PreTrainedModel) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names and float32 values of a GGUF file's tensors, from a transformers model without its head."""
    from gguf import MODEL_ARCH, get_tensor_name_map

    config = model.config
    arch = ARCHITECTURES[config.model_type]
    names = get_tensor_name_map(MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    for name, value in model.state_dict().items():
        tensor_name = names.get_name(f"model.{name}", try_suffixes=(".weight", ".bias"))
        if tensor_name is None:
            raise ValueError(f"gguf has no name for the tensor {name} of a {config.model_type} model")
        if arch in INTERLEAVED and ".q_proj." in name:
            value = interleaved(value, config.num_attention_heads)
        elif arch in INTERLEAVED and ".k_proj." in name:
            value = interleaved(value, config.num_key_value_heads)
        elif arch == "gemma3" and name.endswith("norm.weight"):
            value = value.float() + 1  # transformers multiplies by it there
        yield tensor_name, value.detach().float().cpu().contiguous().numpy()
    if config.rope_parameters.get("rope_type") == "llama3":
        yield "rope_freqs.weight", _llama3_factors(config)


def interleaved(value: Tensor, heads: int) -> Tensor:
    """Return rows of a projection in the order of llama.cpp's rotation.

    Rows i and i + width/2 of a head, which transformers rotates together, become neighbours.
    """
    halves = value.reshape(heads, 2, value.shape[0] // heads // 2, *value.shape[1:])
    return halves.transpose(1, 2).reshape(value.shape)


def _llama3_factors(config: PreTrainedConfig) -> np.ndarray:
    """Return what Llama 3.1 divides its rotary frequencies by, `(head width / 2)`."""
    rope, width = config.rope_parameters, head_width(config)
    frequencies = 1.0 / float(rope["rope_theta"]) ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    wavelengths = 2 * math.pi / frequencies
    ratio = rope["original_max_position_embeddings"] / wavelengths
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    smooth = ((ratio - low) / (high - low)).clamp(0, 1)  # 0: divide by the factor, 1: leave as it is
    return (1 / ((1 - smooth) / factor + smooth)).numpy()


def encoded(name: str, value: np.ndarray, kind: str) -> tuple[np.ndarray, str]:
    """Return a tensor's bytes and their type; vectors and norms are F32, rows that Q8_0 cannot divide are F16.

    Raises:
        ValueError: a value does not fit the type.
    """
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    if value.ndim == 1 or kind == "F32":
        return value.astype(np.float32), "F32"
    if kind == "Q8_0" and value.shape[-1] % 32:
        kind = "F16"
    if kind == "F16" and np.abs(value).max() > np.finfo(np.float16).max:
        raise ValueError(f"{name} has values of up to {np.abs(value).max():.3g}, too large for fp16; use bf16 or fp32")
    return quantize(value, GGMLQuantizationType[kind]), kind


NORMAL, USER_DEFINED, UNUSED, BYTE = 1, 4, 5, 6  # gguf.TokenType
BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))
PREPARATION = "embrew.text_preparation"  # key of our own
_REST = r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
QWEN2 = _SHORT + _REST % ""
LLAMA3 = _SHORT + _REST % "{1,3}"
BY_DIGITS = {("type", "Digits"), ("individual_digits", True)}
NAMES = {
    (QWEN2, False): "qwen2",
    (LLAMA3, True): "llama-bpe",
    (LLAMA3, False): "dbrx",  # the same expression, without ignore_merges
    ("words", False): "gpt-2",
    ("digits, words", False): "refact",  # as starcoder and smollm; this name is in Ollama's list too
}
"""Name of a pre-tokenizer by its expressions and `ignore_merges`."""
SPACE = "▁"
PREFIXED = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": SPACE},
        {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
    ],
}
SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
AT_SPACES = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
"""Gemma's normaliser, and its pre-tokenizer, which finds no space after it."""
NFC, NO_FIRST_SPACE = "nfc", "without one leading space"

Definition = dict[str, Any]
"""A part of `tokenizer.json`: a normaliser, a pre-tokenizer, an added token, or all of them."""


@dataclass(frozen=True)
class Kind:
    """A tokenizer as llama.cpp has it.

    Attributes:
        model: value of `tokenizer.ggml.model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece).
        pre: value of `tokenizer.ggml.pre`.
        space_prefix: whether a space is put before every text.
        preparation: steps that a client applies to a prompt with its text, since llama.cpp does not.
    """

    model: str
    pre: str
    space_prefix: bool = False
    preparation: tuple[str, ...] = ()


def kind_of(tokenizer: PreTrainedTokenizerBase) -> Kind:
    """Return llama.cpp's form of a tokenizer.

    Raises:
        ValueError: it has none, or none that is known to give the same tokens; the reason is in the message.
    """
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    model, pre = backend["model"], _steps(backend["pre_tokenizer"])
    if model["type"] != "BPE" or model.get("dropout"):
        raise ValueError(f"its tokenizer is a {model['type']} model, and llama.cpp's BPE alone can be written")
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise ValueError("its tokenizer marks the parts of a word, which llama.cpp does not")
    kind = _sentencepiece(backend, pre) if model.get("byte_fallback") else _byte_level(backend, pre)
    _check_added(backend["added_tokens"], kind)
    return kind


def _byte_level(backend: Definition, pre: list[Definition]) -> Kind:
    normalizer = backend["normalizer"]
    if normalizer not in (None, {"type": "NFC"}):
        raise ValueError(f"its tokenizer normalises texts by {_brief(normalizer)}, which llama.cpp does not")
    name = NAMES.get((_expression(pre), bool(backend["model"].get("ignore_merges"))))
    if name is None:
        raise ValueError(
            f"its tokenizer's pre-tokenizer {_brief(backend['pre_tokenizer'])} is not known to be one of llama.cpp's; "
            f"known are those of {', '.join(NAMES.values())}"
        )
    return Kind("gpt2", name, preparation=() if normalizer is None else (NFC,))


def _expression(pre: list[Definition]) -> str:
    """Return how a pre-tokenizer splits texts into words; empty: in another way."""
    *before, last = pre or [{}]
    byte_level = last.get("type") == "ByteLevel" and not last["add_prefix_space"]
    if byte_level and last["use_regex"]:
        if not before:
            return "words"
        return "digits, words" if len(before) == 1 and set(before[0].items()) == BY_DIGITS else ""
    if byte_level and len(before) == 1 and before[0]["type"] == "Split":
        split = before[0]
        plain = split["behavior"] == "Isolated" and not split["invert"]
        return str(split["pattern"].get("Regex", "")) if plain else ""
    return ""


def _sentencepiece(backend: Definition, pre: list[Definition]) -> Kind:
    normalizer = backend["normalizer"]
    if normalizer == PREFIXED and not pre:
        return Kind("llama", "default", space_prefix=True)
    if normalizer == SPACES and pre in ([], [AT_SPACES]):
        return Kind("llama", "default")
    metaspace = pre[0] if len(pre) == 1 and pre[0]["type"] == "Metaspace" else None
    if normalizer is not None or metaspace is None or metaspace["replacement"] != SPACE or metaspace["split"]:
        raise ValueError(
            f"its tokenizer's normaliser {_brief(normalizer)} with pre-tokenizer {_brief(backend['pre_tokenizer'])} "
            "is not SentencePiece's space before a text, which is what llama.cpp has"
        )
    if metaspace["prepend_scheme"] == "never":
        return Kind("llama", "default")
    return Kind("llama", "default", space_prefix=True, preparation=(NO_FIRST_SPACE,))


def _check_added(added: list[Definition], kind: Kind) -> None:
    """Raise if added tokens that are found in texts are found otherwise in llama.cpp."""
    for token in added:
        if token["special"]:
            continue  # stays text, here as in the encoder
        if kind.model == "llama" and (kind.space_prefix or token["normalized"]):
            raise ValueError(
                f"its tokenizer has the added token {token['content']!r}; after such a token llama.cpp puts a space "
                "before the text again"
            )
        if token["lstrip"] or token["rstrip"] or token["single_word"]:
            raise ValueError(f"its added token {token['content']!r} depends on what surrounds it; llama.cpp's do not")


def _steps(pre: Definition | None) -> list[Definition]:
    if pre is None:
        return []
    return [step for part in pre["pretokenizers"] for step in _steps(part)] if pre["type"] == "Sequence" else [pre]


def _brief(definition: Definition | None) -> str:
    text = json.dumps(definition, ensure_ascii=False)
    return text if len(text) <= 300 else text[:300] + "…"


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id.

    Attributes:
        tokens: names of the tokens.
        types: types of the tokens.
        scores: priorities of merging for SentencePiece; empty otherwise.
        merges: pairs with a space between, for byte-level BPE; empty otherwise.
    """

    tokens: list[str]
    types: list[int]
    scores: list[float]
    merges: list[str]


def vocabulary_of(tokenizer: PreTrainedTokenizerBase, kind: Kind, rows: int) -> Vocabulary:
    """Return the vocabulary of a tokenizer, filled up to the rows of the embedding matrix.

    Raises:
        ValueError: llama.cpp would merge its tokens in another order, or other ones.
    """
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    names = {i: token for token, i in backend["model"]["vocab"].items()}
    added = {token["id"]: token for token in backend["added_tokens"]}
    merges = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in backend["model"]["merges"]]
    plain = {name for i, name in names.items() if i not in added or (kind.model == "llama" and not added[i]["special"])}
    ranks = _ranks(plain, merges) if kind.model == "llama" else {}
    tokens, types, scores = [], [], []
    for i in range(rows):
        name, token_type = names.get(i), NORMAL
        if i in added and added[i]["special"]:
            name, token_type = f"{added[i]['content']} (special token {i})", UNUSED
        elif i in added:
            name, token_type = added[i]["content"], USER_DEFINED
        elif name is None:
            name, token_type = f"unused row {i}", UNUSED
        elif kind.model == "llama" and name in BYTES:
            token_type = BYTE
        elif kind.model == "llama" and len(name) > 1 and name not in ranks:
            name, token_type = f"{name} (no merge makes it, {i})", UNUSED
        tokens.append(name)
        types.append(token_type)
        scores.append(-float(ranks.get(name, 0)))
    if kind.model == "llama":
        return Vocabulary(tokens, types, scores, [])
    return Vocabulary(tokens, types, [], [" ".join(pair) for pair in merges])


def write_vocabulary(
    writer: GGUFWriter, vocabulary: Vocabulary, kind: Kind, *, first: int | None, last: int | None
) -> None:
    """Write a vocabulary, and which token comes first and last in every text; None: no token does.

    A token that llama.cpp does not add still has an id there: without one it would be token 1, 2 or 11.
    """
    writer.add_tokenizer_model(kind.model)
    writer.add_tokenizer_pre(kind.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    if vocabulary.scores:
        writer.add_token_scores(vocabulary.scores)
    if vocabulary.merges:
        writer.add_token_merges(vocabulary.merges)
    writer.add_add_space_prefix(kind.space_prefix)
    writer.add_add_bos_token(first is not None)
    writer.add_add_eos_token(last is not None)
    if first is not None:
        writer.add_bos_token_id(first)
    if last is not None:
        writer.add_eos_token_id(last)
    writer.add_array(PREPARATION, list(kind.preparation) or ["none"])


def _ranks(plain: set[str], merges: Sequence[tuple[str, ...]]) -> dict[str, int]:
    """Return the rank of every token that merges make.

    llama.cpp merges two neighbours if they spell a token, and takes the token with the highest score first. That is
    BPE if all pairs that spell a token are merges, one after another in their order.
    """
    pairs, previous = set(merges), None
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(merges):
        merged = "".join(pair)
        if merged in ranks and merged != previous:
            raise ValueError(
                f"its tokenizer's merges make {merged!r} at ranks {ranks[merged]} and {rank}, with others between; "
                "llama.cpp has one rank per token"
            )
        ranks.setdefault(merged, rank)
        previous = merged
    for merged in ranks:
        for i in range(1, len(merged)):
            left, right = merged[:i], merged[i:]
            mergeable = (len(left) == 1 or left in ranks) and (len(right) == 1 or right in ranks)
            if mergeable and (left, right) not in pairs:
                raise ValueError(
                    f"its tokenizer does not merge {left!r} and {right!r} to {merged!r}, and llama.cpp would"
                )
    missing = sorted(merged for merged in ranks if merged not in plain)
    if missing:
        raise ValueError(f"its tokenizer's merges make {missing[0]!r}, which is no plain token")
    return ranks
