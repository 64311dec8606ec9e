"""Export an encoder as a stock Sentence-Transformers folder, verified in a fresh process.

Merged weights; BOS, memory tokens and suffix added by the tokenizer's own post-processor; attention by `is_causal` in
the configuration; pooling by stock modules. Nothing of embrew, and no remote code, is needed to open it.
"""

from __future__ import annotations

import json
import logging
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import nn

from embrew.export.compatibility import refuse_older_versions, write_for_older_readers
from embrew.export.contexts import bake, write_rows
from embrew.export.dimensions import nested_dimensions
from embrew.export.fixed import with_fixed_memory, with_instruction, with_one_length
from embrew.export.modules import merged_model, pooling_modules, stock_tokenizer
from embrew.export.notes import notes
from embrew.export.parity import Live, context_cases, long_text, parity_cases, verify_export
from embrew.export.stock import check_stock, stock_prompts
from embrew.files.checksums import write_checksums
from embrew.files.formats import EXPORT
from embrew.files.writing import atomic_folder
from embrew.modeling.cutting import cut
from embrew.modeling.encoder import Encoder
from embrew.modeling.storage.card import model_card
from embrew.modeling.storage.loading import quiet
from embrew.modeling.storage.tokenizer_files import check_tokenizer, write_tokenizer
from embrew.modeling.storage.verification import TEXTS, tolerance
from embrew.modeling.text.pattern import HOLE

logger = logging.getLogger(__name__)


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
            beyond every length limit, by `encode_query`, `encode_document` and `encode` with every prompt; `off`: none.
        prompt_name: the prompt to write into the template if its instruction follows the text, since stock prompts
            precede the text. Export once per prompt.
        max_length: limit in tokens of every text in the folder, template and prompt included; required if the encoder
            has different limits for queries and documents, since a stock folder has one.
        num_layers: number of layers to keep, from the first; the others are deleted.
        truncate_dim: number of leading dimensions to keep, before vectors are normalised.

    Raises:
        ValueError: stock modules cannot reproduce the encoder, for the reason in the message; it has two length limits
            and `max_length` is not given; or texts within its limit get different numbers of memory tokens.
        FileExistsError: the folder exists.
        RuntimeError: the stock folder gives other vectors; it is removed.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer

    if verify not in ("full", "off"):
        raise ValueError(f"verify={verify!r}; choose from full (in a fresh process), off")
    lengths, encoder = dict(encoder.max_length), with_one_length(encoder, max_length)
    fixed = with_fixed_memory(encoder)
    made = _baked(fixed, prompt_name)
    words = None if made is fixed else encoder.instruction(prompt_name or "query")
    live = Live(encoder, words, {"num_layers": num_layers, "truncate_dim": truncate_dim})
    encoder = cut(made, num_layers=num_layers, truncate_dim=truncate_dim)
    check_stock(encoder)
    with (
        atomic_folder(Path(folder), marker="parity.json", overwrite=overwrite) as out,
        tempfile.TemporaryDirectory(dir=out.parent) as scratch,  # on the same disk, and removed with it after a kill
        quiet(),
    ):
        tokenizer, ids = stock_tokenizer(encoder)
        baked = bake(encoder, tokenizer)
        model = merged_model(encoder, ids, len(tokenizer))
        write_rows(model, baked.values())
        nested = nested_dimensions(encoder)
        if nested:  # vLLM reads these before a request may set dimensions
            model.config.is_matryoshka, model.config.matryoshka_dimensions = True, nested
        model.save_pretrained(scratch)
        write_tokenizer(tokenizer, Path(scratch))
        own: dict[str, Any] = {"trust_remote_code": False}  # to be given for each of its three parts
        transformer = Transformer(
            scratch, unpad_inputs=False, model_kwargs=own, processor_kwargs={**own}, config_kwargs={**own}
        )
        modules: list[nn.Module] = [transformer, *pooling_modules(encoder, tokenizer, ids)]
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
        write_for_older_readers(out)
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
            logger.warning(
                "%s: an empty text has no tokens in the export and gets another vector; see the card", folder
            )
        card = model_card(encoder, stock=prompts, lengths=lengths, notes=notes(modules, empty_texts=empty))
        (out / "README.md").write_text(card, encoding="utf-8")
        if verify == "full":
            verify_export(out, parity, str(encoder.device))
        write_checksums(out)


def _baked(encoder: Encoder, prompt_name: str | None) -> Encoder:
    """Return the encoder with one prompt in its template, if prompts follow or surround the text."""
    follows = any("{instruction}" in template.after for template in encoder.templates)
    instructions = [context.context.instruction for context in encoder.contexts.values()]
    if not follows and not any(HOLE in words for words in (*encoder.prompts.values(), *instructions)):
        if prompt_name is not None:
            raise ValueError(
                f"prompt_name={prompt_name!r}: this encoder's prompts come before the text, where stock models have "
                "theirs; all are exported, so leave it out"
            )
        return encoder
    if prompt_name is None and (any(encoder.prompts.values()) or encoder.contexts):
        names = ", ".join(sorted([*encoder.prompts, *encoder.contexts]))
        raise ValueError(
            f"template={encoder.template.pattern!r} has the instruction after the text, or a prompt that continues "
            f"after it ({HOLE}), where stock prompts cannot be; choose the prompt to write into the "
            f"template: prompt_name is one of {names}"
        )
    made = with_instruction(encoder, prompt_name or "query")
    made.contexts = {name: context for name, context in encoder.contexts.items() if name == prompt_name}
    return made
