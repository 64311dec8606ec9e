"""An encoder as a stock Sentence-Transformers folder, proven in a fresh process.

Merged weights; BOS, memory tokens and suffix added by the tokenizer's own post-processor; attention by `is_causal` in
the configuration; pooling by stock modules. Nothing of embrew, and no remote code, is needed to open it.
"""

from __future__ import annotations

import copy
import json
import logging
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tokenizers import processors
from torch import nn
from transformers import PreTrainedTokenizerBase

from embrew.export.compatibility import refuse_older_versions, write_widely_understood
from embrew.export.contexts import bake, write_rows
from embrew.export.dimensions import leading_dimensions, nested_dimensions
from embrew.export.fixed import with_fixed_memory, with_instruction, with_one_length
from embrew.export.notes import notes
from embrew.export.parity import Live, context_cases, long_text, parity_cases, verify_export
from embrew.files.checksums import write_checksums
from embrew.files.formats import EXPORT
from embrew.files.writing import atomic_folder
from embrew.modeling.cutting import cut
from embrew.modeling.encoder import Encoder
from embrew.modeling.settings.pooling import MODES
from embrew.modeling.storage.card import model_card
from embrew.modeling.storage.loading import quiet
from embrew.modeling.storage.tokenizer_files import check_tokenizer, write_tokenizer
from embrew.modeling.storage.verification import TEXTS, tolerance
from embrew.modeling.text.pattern import HOLE

logger = logging.getLogger(__name__)
OWN_CODE = "transformers_modules."  # where transformers puts code that came with a model


def export_sentence_transformer(
    encoder: Encoder,
    folder: str | Path,
    *,
    overwrite: bool = False,
    verify: str = "full",
    prompt_name: str | None = None,
    max_length: int | None = None,
    num_layers: int | None = None,
    truncate_dim: int | None = None,
) -> None:
    """Write a folder that plain `SentenceTransformer(folder)` opens, with the same vectors.

    Args:
        encoder: what to export; it is not changed (its weights are copied once while merging).
        folder: where to; must not exist, unless `overwrite`.
        overwrite: replace an existing folder.
        verify: `full` opens the folder in a fresh process and compares token ids and vectors on 17 texts, one of them
            beyond every length limit, by `encode_query`, `encode_document` and `encode` with every prompt; `off`: not.
        prompt_name: which of the encoder's prompts is baked in, where the template has the instruction after the text:
            stock prompts stand before it. Export once a prompt.
        max_length: tokens that the folder cuts a text of either side to, with its template and prompt; must be given
            where the encoder has one length for queries and another for documents, since a stock folder has one.
        num_layers: keep the first so many layers and delete the others.
        truncate_dim: keep so many leading dimensions; they are taken before vectors are normalised.

    Raises:
        ValueError: the encoder cannot be said in stock modules; says why. So it is with one that has two lengths where
            `max_length` is not given; and with one whose texts get different numbers
            of memory tokens; where its length limit leaves one to every text, it is exported with that one.
        FileExistsError: the folder exists.
        RuntimeError: the stock folder gives other vectors; it is not left behind.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer

    if verify not in ("full", "off"):
        raise ValueError(f"verify={verify!r}; an export is proven in a fresh process or not at all: full, off")
    lengths, encoder = dict(encoder.max_length), with_one_length(encoder, max_length)
    fixed = with_fixed_memory(encoder)
    made = _baked(fixed, prompt_name)
    words = None if made is fixed else encoder.instruction(prompt_name or "query")
    live = Live(encoder, words, {"num_layers": num_layers, "truncate_dim": truncate_dim})
    encoder = cut(made, num_layers=num_layers, truncate_dim=truncate_dim)
    _check_stock(encoder)
    with (
        atomic_folder(Path(folder), marker="parity.json", overwrite=overwrite) as out,
        tempfile.TemporaryDirectory(dir=out.parent) as scratch,  # on the same disk, and removed with it after a kill
        quiet(),
    ):
        tokenizer, ids = stock_tokenizer(encoder)
        baked = bake(encoder, tokenizer)
        model = _merged(encoder, ids, len(tokenizer))
        write_rows(model, baked.values())
        nested = nested_dimensions(encoder)
        if nested:  # what vLLM reads, to allow its requests other dimensions
            model.config.is_matryoshka, model.config.matryoshka_dimensions = True, nested
        model.save_pretrained(scratch)
        write_tokenizer(tokenizer, Path(scratch))
        own: dict[str, Any] = {"trust_remote_code": False}  # to be given for each of its three parts
        transformer = Transformer(
            scratch, unpad_inputs=False, model_kwargs=own, processor_kwargs={**own}, config_kwargs={**own}
        )
        modules: list[nn.Module] = [transformer, *_pooling_modules(encoder, tokenizer, ids)]
        if encoder.normalize:
            modules.append(Normalize())
        prompts = {**stock_prompts(encoder), **{name: context.prompt for name, context in baked.items()}}
        stock = SentenceTransformer(
            modules=modules,
            prompts=prompts,
            default_prompt_name=encoder.default_prompt_name or ("text" if "text" in prompts else None),
            similarity_fn_name="cosine",
            device=str(encoder.device),
            trust_remote_code=False,
        )
        stock.save_pretrained(str(out), create_model_card=False)
        check_tokenizer(tokenizer, out)
        write_widely_understood(out)
        refuse_older_versions(out)
        texts = [*TEXTS, long_text(encoder, max(encoder.max_seq_length, *lengths.values()))]
        cases = [*parity_cases(live, encoder, texts, prompts, ids), *context_cases(live, encoder, texts, baked, ids)]
        parity = {
            "format": EXPORT.newest,
            "tolerance": tolerance(encoder.backbone.dtype),
            "max_length": encoder.max_seq_length,
            "exported_from": {"max_length": lengths},
            "encoder": encoder.describe(),
            "versions": {name: version(name) for name in ("embrew", "sentence-transformers", "transformers", "torch")},
            "cases": cases,
        }
        (out / "parity.json").write_text(json.dumps(parity, ensure_ascii=False))
        empty = not any(encoder.template.adds_nothing(words) for words in ("", *encoder.prompts.values()))
        if not empty:
            logger.warning("%s: an empty text has no tokens there, and so another vector; the card says more", folder)
        card = model_card(encoder, stock=prompts, lengths=lengths, notes=notes(modules, empty_texts=empty))
        (out / "README.md").write_text(card, encoding="utf-8")
        if verify == "full":
            verify_export(out, parity, str(encoder.device))
        write_checksums(out)


def _baked(encoder: Encoder, prompt_name: str | None) -> Encoder:
    """The encoder with the words of one prompt in its template, where they stand after the text, or around it."""
    follows = any("{instruction}" in template.after for template in encoder.templates)
    instructions = [context.context.instruction for context in encoder.contexts.values()]
    if not follows and not any(HOLE in words for words in (*encoder.prompts.values(), *instructions)):
        if prompt_name is not None:
            raise ValueError(
                f"prompt_name={prompt_name!r}: this encoder's prompts stand before the text, where stock models have "
                "theirs; all are exported, so leave it out"
            )
        return encoder
    if prompt_name is None and (any(encoder.prompts.values()) or encoder.contexts):
        names = ", ".join(sorted([*encoder.prompts, *encoder.contexts]))
        raise ValueError(
            f"template={encoder.template.pattern!r} has the instruction after the text, or a prompt that continues "
            f"after it ({HOLE}), where stock prompts cannot stand; say whose words are baked in: prompt_name is one of "
            f"{names}"
        )
    made = with_instruction(encoder, prompt_name or "query")
    made.contexts = {name: context for name, context in encoder.contexts.items() if name == prompt_name}
    return made


def _check_stock(encoder: Encoder) -> None:
    """Refuse what stock modules cannot say."""
    reason, model = None, encoder.backbone.causal_lm
    pooling, template, limit = encoder.pooling, encoder.template, encoder.max_seq_length
    positions = getattr(encoder.backbone.inner.config, "max_position_embeddings", limit)
    if encoder.head is not None:
        reason = "its states pass through latent attention before they are pooled, for which there is no stock module"
    elif limit > positions:
        reason = (
            f"its max_length is {limit}, and stock tokenizers cut at the {positions} positions of the model's config"
        )
    elif type(model).__module__.startswith(OWN_CODE) or type(model.config).__module__.startswith(OWN_CODE):
        reason = f"its language model is code of its own ({type(model).__name__}), which no stock folder runs"
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
    elif encoder.attention.is_causal is None:
        reason = f"attention={encoder.attention.mode} needs a mask of its own; only causal and bidirectional are stock"
    elif encoder.attention.is_causal is False and encoder.backbone.bidirectional_by != "flag":
        reason = (
            f"attention=bidirectional goes by an explicit mask on {type(encoder.backbone.inner).__name__}, which does "
            "not follow is_causal in its configuration, and a stock folder has nothing else; attention: causal is stock"
        )
    elif pooling.mode == "concat" and not _is_single_last(encoder):
        reason = (
            "it puts the states of several memory tokens behind each other, for which there is no stock module; their "
            "mean has one (pool_over, or pooling: {mode: mean, over: memory} in the recipe)"
        )
    elif pooling.mode != "mean" and pooling.over != "all" and not _is_single_last(encoder):
        reason = f"pooling {pooling.mode} over {pooling.over} has no stock module; mean over memory or text has"
    elif pooling.over == "text" and (template.after or encoder.contexts or any(stock_prompts(encoder).values())):
        reason = (
            f"mean over text leaves out the words of template {template.pattern!r}, which stock pooling cannot tell "
            "from the text; pool over all, or over memory tokens"
        )
    if reason:
        raise ValueError(f"this encoder cannot be a stock Sentence-Transformers folder: {reason}")


def _is_single_last(encoder: Encoder) -> bool:
    """One memory token at the very end: its state is the last token's."""
    return (
        encoder.pooling.over == "memory"
        and len(encoder.template.memory_ids) == 1
        and encoder.template.tail[-1] == "memory"
    )


def stock_tokenizer(encoder: Encoder) -> tuple[PreTrainedTokenizerBase, dict[int, int]]:
    """A tokenizer whose post-processor adds what the template adds, and the new ids of the memory tokens."""
    tokenizer = copy.deepcopy(encoder.tokenizer)
    names = [f"<|memory_{i}|>" for i in range(len(encoder.template.memory_ids))]
    names += [f"<|soft_prompt_{i}|>" for i in range(len(encoder.template.soft_prompt_ids))]
    vocabulary = tokenizer.get_vocab()  # every call makes a new dictionary of all tokens
    taken = [name for name in names if name in vocabulary]
    if taken:
        raise ValueError(f"the tokenizer has a token {taken[0]} already; learned tokens cannot be named so")
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    own = encoder.template.memory_ids + encoder.template.soft_prompt_ids
    added = tokenizer.get_added_vocab()
    ids = dict(zip(own, [added[name] for name in names], strict=True))
    before = [ids.get(i, i) for i in encoder.template.first_ids]
    after = [ids.get(i, i) for i in encoder.template.suffix_ids]
    specials = [
        {"id": name, "ids": piece, "tokens": tokenizer.convert_ids_to_tokens(piece)}
        for name, piece in (("before", before), ("after", after))
        if piece
    ]
    single = " ".join([*(["before"] if before else []), "$A", *(["after"] if after else [])])
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=f"{single} $B:1", special_tokens=specials
    )
    tokenizer.chat_template = None  # Sentence-Transformers would render every text through it
    tokenizer.split_special_tokens = True  # special tokens in a user's text stay text
    tokenizer.init_kwargs["split_special_tokens"] = True
    tokenizer.model_max_length = encoder.max_seq_length
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    return tokenizer, ids


def _merged(encoder: Encoder, ids: dict[int, int], vocabulary: int) -> Any:
    """A copy of the model without head, adapter merged, memory tokens in its embedding matrix."""
    backbone = copy.deepcopy(encoder.backbone)
    backbone.merge_adapter()
    model = backbone.inner
    rows = model.get_input_embeddings().weight.shape[0]
    if vocabulary > rows:
        model.resize_token_embeddings(vocabulary, mean_resizing=False)
    if backbone.learned:
        weight = model.get_input_embeddings().weight
        learned = torch.cat(list(backbone.learned.values()))
        with torch.no_grad():
            for own, stock in ids.items():
                weight[stock] = learned[own - rows].to(weight.dtype)
    if encoder.attention.is_causal is False:
        model.config.is_causal = False
    return model


def _pooling_modules(encoder: Encoder, tokenizer: PreTrainedTokenizerBase, ids: dict[int, int]) -> list[nn.Module]:
    from sentence_transformers.sentence_transformer.modules import Pooling, WordWeights

    width, pooling = encoder.backbone.hidden_size, encoder.pooling
    keep = encoder.get_embedding_dimension()
    if _is_single_last(encoder) or pooling.over == "all":
        mode = "lasttoken" if _is_single_last(encoder) else MODES[pooling.mode].stock
        return [Pooling(width, mode), *([leading_dimensions(encoder)] if keep < width else [])]
    size = len(tokenizer)
    vocabulary = tokenizer.convert_ids_to_tokens(list(range(size)))
    vocabulary = [f"<unused_{i}>" if token is None else token for i, token in enumerate(vocabulary)]
    if pooling.over == "memory":
        memory = [ids[i] for i in encoder.template.memory_ids]
        chosen = range(len(memory)) if pooling.slots is None else pooling.slots
        weights, other = {vocabulary[i]: 1.0 for slot, i in enumerate(memory) if slot in chosen}, 0.0
    else:
        added = encoder.template.first_ids + encoder.template.suffix_ids
        weights, other = {vocabulary[ids.get(i, i)]: 0.0 for i in added}, 1.0
    words = WordWeights(vocabulary, weights, unknown_word_weight=other)
    # of tokens, not of their mean: that one is float32, whatever the model's dtype
    shorter = [leading_dimensions(encoder, of="token_embeddings")] if keep < width else []
    return [*shorter, words.requires_grad_(False), Pooling(keep, "mean")]


def stock_prompts(encoder: Encoder) -> dict[str, str]:
    """The template's words before the text with every prompt filled in: what Sentence-Transformers puts in front."""
    prompts = {name: encoder.template.before.replace("{instruction}", text) for name, text in encoder.prompts.items()}
    bare = encoder.template.before.replace("{instruction}", "")
    return {**prompts, "text": bare} if bare else prompts
