"""The folder of stock Sentence-Transformers modules: what they can reproduce, and what servers read from it.

Its tokenizer adds what a template adds, and its prompts precede a text: every runtime reads texts with these.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, TypedDict

from tokenizers import processors
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from embrew.encoder import Encoder
from embrew.model.forward import bidirectional_by
from embrew.model.pooling import LatentAttention
from embrew.passport.faults import pools_last_token

SIMULATION = """
import torch, transformers
from safetensors.torch import load_file
from transformers import AutoModel
version = "simulated from its loader's source"
reading = options["reading"]
model = AutoModel.from_pretrained(folder, trust_remote_code=False).eval().to(options["device"])
if reading["causal"] is not None:
    model.config.is_causal = reading["causal"]
matrices = [load_file(f"{folder}/{path}/model.safetensors")["linear.weight"].float() for path in reading["projections"]]
@torch.no_grad()
def vector(ids):
    states = model(input_ids=torch.tensor([ids], device=model.device)).last_hidden_state[0].float().cpu()
    pooled = {"cls": states[0], "last": states[-1], "mean": states.mean(dim=0)}[reading["pooling"]]
    for matrix in matrices:
        pooled = matrix @ pooled
    return torch.nn.functional.normalize(pooled, dim=0) if reading["normalize"] else pooled
"""
"""Computes vectors by `options["reading"]`, a `Reading`. It lacks `encode`: servers tokenise by different rules."""
ONE_TOKEN = (
    "train one memory token at the end of the template (template: '{instruction}{text}{memory}', memory_tokens: 1, "
    "pooling: {mode: last, over: memory}) or last-token pooling"
)
CENTERED = "a mean is subtracted from its vectors (pooling.center), with which this server was not checked"


class Reading(TypedDict):
    """An encoder as a server reads it from a folder.

    Attributes:
        pooling: states of all tokens that become the vector: `cls`, `last` or `mean`.
        causal: whether attention is causal; None: as of the model's family.
        max_length: limit in tokens of a text, with its prompt and added tokens.
        normalize: whether vectors have unit length.
        projections: folders of the `Dense` modules that are applied to a pooled state, in order.
    """

    pooling: str
    causal: bool | None
    max_length: int
    normalize: bool
    projections: tuple[str, ...]


def stock_refusal(encoder: Encoder) -> str | None:
    """Return why stock modules cannot reproduce the encoder's attention or pooling; None: they can."""
    pooling = encoder.pooling
    if isinstance(encoder.head, LatentAttention):
        return "its states pass through latent attention before they are pooled, for which there is no stock module"
    if encoder.attention.is_causal is None:
        return f"attention={encoder.attention.mode} needs a mask; stock modules are causal or bidirectional"
    if encoder.attention.is_causal is False and bidirectional_by(encoder.backbone.inner) == "mask":
        return (
            f"attention=bidirectional needs an explicit mask on {type(encoder.backbone.inner).__name__}, which does "
            "not follow is_causal in its configuration; stock modules support attention: causal here"
        )
    if pooling.mode == "concat" and not pools_last_token(encoder):
        return (
            "it concatenates the states of several memory tokens, for which there is no stock module; their "
            "mean has one (pool_over, or pooling: {mode: mean, over: memory} in the recipe)"
        )
    if pooling.mode != "mean" and not (pools_every_token(encoder) or pools_last_token(encoder)):
        return f"pooling {pooling.mode} over {pooling.over} has no stock module; mean over memory or text has"
    return None


def pools_every_token(encoder: Encoder) -> bool:
    """Return whether pooling reads all tokens of a row: over all, or over a text to which no token is added."""
    template = encoder.template
    alone = not (template.first_ids or template.suffix_ids)
    return encoder.pooling.over == "all" or (encoder.pooling.over == "text" and alone)


def pooling_refused(encoder: Encoder) -> str | None:
    """Return why a server that pools over every token cannot pool as the encoder does; None: it can."""
    pooling, number = encoder.pooling, len(encoder.template.memory_ids)
    if encoder.center is not None:
        return CENTERED
    if any(layer.bias or layer.activation != "identity" for layer in pooling.dense or ()):
        return "its layers after pooling have a bias or an activation, with which this server was not checked"
    if pools_last_token(encoder):
        return None
    if not pools_every_token(encoder):
        over = "its text only" if pooling.over == "text" else f"its {number} memory tokens"
        if pooling.over == "memory" and number == 1:
            over = "a memory token that is not the last token"
        return f"it pools over every token of a row, and this encoder over {over}; {ONE_TOKEN}"
    if pooling.mode == "weighted_mean":
        return "it has no weighted mean; train pooling: last or mean"
    return None


def sliding_window(config: PreTrainedConfig) -> int | None:
    """Return the smallest number of tokens that a layer attends to; None: all of them."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and "sliding_attention" not in kinds:
        return None
    return getattr(config, "sliding_window", None) or None


def window_exceeded(encoder: Encoder) -> str | None:
    """Return what is said of texts that are longer than a sliding window of the model; None: no text is."""
    window = sliding_window(encoder.backbone.inner.config)
    if window is None or encoder.max_seq_length <= window:
        return None
    return (
        f"texts of up to {encoder.max_seq_length} tokens exceed the model's sliding window of {window}; export with "
        f"--max-length {window} or less"
    )


def read_json(path: Path) -> Any:
    """Return the content of a JSON file that a server requires."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{path.parent.name}/{path.name} is missing") from error


Piece = dict[str, dict[str, str | int]]  # of a template in `tokenizer.json`: a token or a text, with its type id
MODEL_CODE = "transformers_modules."  # where transformers puts code that came with a model


def check_text(encoder: Encoder) -> None:
    """Raise if a tokenizer with a post-processor, and prompts that precede the text, cannot reproduce its rows."""
    reason, model = None, encoder.backbone.causal_lm
    template, limit = encoder.template, encoder.max_seq_length
    positions = getattr(encoder.backbone.inner.config, "max_position_embeddings", limit)
    if limit > positions:
        reason = (
            f"its max_length is {limit}, and stock tokenizers truncate at the {positions} positions of the model's "
            "config"
        )
    elif type(model).__module__.startswith(MODEL_CODE) or type(model.config).__module__.startswith(MODEL_CODE):
        reason = f"its language model needs custom code ({type(model).__name__}), which stock folders do not run"
    elif len(encoder.templates) > 1:
        reason = f"it takes the mean over {len(encoder.templates)} templates, and a stock folder has one"
    elif template.between is not None:
        reason = f"template={template.pattern!r} repeats the text, which stock modules do not"
    elif template.after and template.words_after == "joined":
        reason = (
            f"template={template.pattern!r} is one string with the text, tokenised once, and stock tokenizers add what "
            "follows a text on their own; an encoder made, and trained, with words_after: separate can be exported"
        )
    elif template.preparation != "none":
        reason = f"preparation={template.preparation} changes the text first, which stock modules do not"
    elif encoder.pooling.over == "text" and (
        template.after or encoder.contexts or any(stock_prompts(encoder).values())
    ):
        reason = (
            f"mean over text leaves out the words of template {template.pattern!r}, which stock pooling cannot tell "
            "from the text; pool over all, or over memory tokens"
        )
    if reason:
        raise ValueError(f"this encoder cannot be exported: {reason}")


def stock_prompts(encoder: Encoder) -> dict[str, str]:
    """Return the template's words before the text with each prompt filled in, as Sentence-Transformers needs them."""
    prompts = {name: encoder.template.before.replace("{instruction}", text) for name, text in encoder.prompts.items()}
    bare = encoder.template.before.replace("{instruction}", "")
    return {**prompts, "text": bare} if bare else prompts


def stock_tokenizer(encoder: Encoder) -> tuple[PreTrainedTokenizerBase, dict[int, int]]:
    """Return a tokenizer whose post-processor adds what the template adds, and the new ids of the memory tokens."""
    tokenizer = copy.deepcopy(encoder.tokenizer)
    names = [f"<|memory_{i}|>" for i in range(len(encoder.template.memory_ids))]
    names += [f"<|soft_prompt_{i}|>" for i in range(len(encoder.template.soft_prompt_ids))]
    vocabulary = tokenizer.get_vocab()  # every call makes a new dictionary of all tokens
    in_use = [name for name in names if name in vocabulary]
    if in_use:
        raise ValueError(f"the tokenizer has a token {in_use[0]} already; learned tokens cannot be named so")
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    learned = encoder.template.memory_ids + encoder.template.soft_prompt_ids
    added = tokenizer.get_added_vocab()
    ids = dict(zip(learned, [added[name] for name in names], strict=True))
    before = [ids.get(i, i) for i in encoder.template.first_ids]
    after = [ids.get(i, i) for i in encoder.template.suffix_ids]
    added_ids = [*before, *after]
    names_by_id = dict(zip(added_ids, tokenizer.convert_ids_to_tokens(added_ids), strict=True))
    tokenizer.backend_tokenizer.post_processor = _template_processing(names_by_id, before, after)
    tokenizer.chat_template = None  # Sentence-Transformers would render every text through it
    tokenizer.split_special_tokens = True  # special tokens in a user's text stay text
    tokenizer.init_kwargs["split_special_tokens"] = True
    tokenizer.model_max_length = encoder.max_seq_length
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    return tokenizer, ids


def _template_processing(names: dict[int, str], before: list[int], after: list[int]) -> processors.TemplateProcessing:
    """Return a post-processor that puts tokens before and after a text, each under its own name.

    Readers of `tokenizer.json` compare these names with those of BOS and EOS (llama.cpp's `SpecialVocab`). It is made
    from its JSON, since the constructor takes no name with a colon or a space.
    """

    def pieces(ids: list[int]) -> list[Piece]:
        return [{"SpecialToken": {"id": names[i], "type_id": 0}} for i in ids]

    first: Piece = {"Sequence": {"id": "A", "type_id": 0}}
    second: Piece = {"Sequence": {"id": "B", "type_id": 1}}
    state = {
        "type": "TemplateProcessing",
        "single": [*pieces(before), first, *pieces(after)],
        "pair": [*pieces(before), first, second, *pieces(after)],
        "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]} for i, name in names.items()},
    }
    processor = processors.TemplateProcessing()
    processor.__setstate__(json.dumps(state).encode())
    return processor
