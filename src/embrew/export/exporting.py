"""Export an encoder for other runtimes: one folder, each part of it verified by the runtime that reads it."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from embrew.encoder import Encoder
from embrew.export.fresh_process import verify_runtime
from embrew.export.passport import passport_of_export
from embrew.files.checksums import CARD, write_checksums
from embrew.files.formats import EXPORT
from embrew.files.writing import atomic_folder, check_free
from embrew.passport.making import write_passport
from embrew.runtimes.portable import Int8, PortableEncoder, fixed_form, make_portable
from embrew.runtimes.reference import Int8Result
from embrew.runtimes.registry import RUNTIMES
from embrew.runtimes.runtime import Runtime, RuntimeName
from embrew.runtimes.sentence_transformers import required_versions
from embrew.storage.base_model import quiet
from embrew.storage.card import STOCK_CODE as STOCK_CARD
from embrew.storage.card import model_card

VERSIONS = """Needs transformers {transformers} and sentence-transformers {sentence-transformers}, or newer.
transformers 4 would ignore a part of this folder (`is_causal`, `rope_parameters`, the tokenizer's class) and give other
vectors. It refuses the folder: "Specified `attn_implementation="none: this folder needs transformers>={transformers}"`
is not supported".

Names of special tokens in a text, such as `</s>`, stay text in transformers and Sentence-Transformers. Software that
reads `tokenizer.json` alone (Rust tokenizers, Text Embeddings Inference) takes them for the tokens themselves: remove
them from texts before they get there."""
EMPTY = """An empty text has no tokens here, since the template adds none: Sentence-Transformers gives it a vector of
zeros, or an error where a batch holds nothing else. The encoder that was exported reads one end-of-sequence token in
its place. Leave empty texts out."""
TRAINING = """## Training it further

Run this line before you make a trainer or an optimizer for the opened `model`:

```python
{line}
```

{reasons} A trainer puts no prompt before texts unless its argument `prompts` says so."""
REASONS = {
    "WordWeights": (
        "`model[{i}]` says which tokens the mean is over. Sentence-Transformers opens it trainable, saves the values "
        "that training gave it, and opens it again with those of its configuration: the saved model would not be the "
        "trained one."
    ),
    "Dense": (
        "`model[{i}]` keeps the leading dimensions and is opened trainable: trained, it is a projection of all of them."
    ),
}


def notes(modules: Sequence[str], *, empty_texts: bool) -> list[str]:
    """Return parts of the card: the versions needed, what to know of texts, how to train the folder further.

    Args:
        modules: class names of the folder's modules, in order; some must not be trained.
        empty_texts: whether an empty text has tokens.
    """
    versions = [VERSIONS.format_map(required_versions())] if modules else []
    return [*versions, *([] if empty_texts else [EMPTY]), *_training(modules)]


def _training(modules: Sequence[str]) -> list[str]:
    fixed = {i: name for i, name in enumerate(modules) if name in REASONS}
    if not fixed:
        return []
    names = [f"model[{i}]" for i in fixed]
    line = f"{names[0]}.requires_grad_(False)"
    if len(names) > 1:
        line = f"for module in ({', '.join(names)}): module.requires_grad_(False)"
    reasons = " ".join(REASONS[name].format(i=i) for i, name in fixed.items())
    return [TRAINING.format(line=line, reasons=reasons)]


def int8_card(measured: Int8Result) -> str:
    """Return what the card says of weights in int8.

    Args:
        measured: `int8` of `parity.json`.
    """
    lines = [
        "## Weights in int8",
        f"Weights are int8, and activations {measured['activations']}. On {measured['texts']} texts, the cosine to the "
        f"encoder's vectors is {measured['mean_cosine']:.4f} on average and {measured['min_cosine']:.4f} at least.",
    ]
    if measured["dev"]:
        rows = [
            f"| {name} | {score['encoder']:.4f} | {score['int8']:.4f} |"
            for name, score in sorted(measured["dev"].items())
        ]
        lines.append("\n".join(["| score | encoder | int8 |", "|---|---:|---:|", *rows]))
    return "\n\n".join(lines)


logger = logging.getLogger(__name__)
STOCK = "sentence-transformers"


def export_encoder(
    encoder: Encoder,
    folder: str | Path,
    *,
    runtimes: Sequence[RuntimeName] = ("sentence-transformers",),
    weights: Literal["fp32", "fp16", "bf16", "int8"] | None = None,
    overwrite: bool = False,
    verify: Literal["full", "off"] = "full",
    prompt_name: str | None = None,
    max_length: int | None = None,
    num_layers: int | None = None,
    truncate_dim: int | None = None,
    int8: Int8 | None = None,
) -> None:
    """Write a folder that other runtimes open without embrew, with the same vectors.

    Args:
        encoder: what to export; it is not changed (its weights are copied once while merging).
        folder: where to; must not exist, unless `overwrite`.
        runtimes: names of the runtimes that will read it (`RUNTIMES`).
        weights: type of the weights for runtimes that have a choice; None: the first of each.
        overwrite: replace an existing folder.
        verify: `full` opens the files of each runtime as it does, in a fresh process, and compares token ids and
            vectors on 17 texts, one of them beyond every length limit, with every prompt; `off`: none.
        prompt_name: prompt to export where the template has the instruction after the text, so that a folder holds one
            only; export once per prompt.
        max_length: limit in tokens of every text, with template and prompt; required if the encoder has two limits.
        num_layers: number of layers to keep, from the first.
        truncate_dim: number of leading dimensions to keep, before vectors are normalised.
        int8: texts, dev data and the smallest cosine for OpenVINO with `weights="int8"`; None: the defaults.

    Raises:
        ValueError: a runtime cannot reproduce the encoder, for the reason in the message.
        FileExistsError: the folder exists.
        RuntimeError: a runtime gives other vectors; the folder is removed.
    """
    if verify not in ("full", "off"):
        raise ValueError(f"verify={verify!r}; choose from full (in a fresh process), off")
    selected = _select(runtimes)
    types = {runtime.name: _weights(runtime, weights, alone=len(selected) == 1) for runtime in selected}
    if int8 is not None and types.get("openvino") != "int8":
        raise ValueError("calibration texts, dev data and a smallest cosine are for openvino with int8 weights only")
    check_free(Path(folder), marker=EXPORT.file, overwrite=overwrite)
    with quiet():
        fixed, reference = fixed_form(
            encoder, prompt_name=prompt_name, max_length=max_length, num_layers=num_layers, truncate_dim=truncate_dim
        )
        for runtime in selected:
            runtime.check(fixed)
        portable = make_portable(fixed, reference, int8)
        if not portable.empty_texts:
            logger.warning(
                "%s: an empty text has no tokens in the export and gets another vector; see the card", folder
            )
        with atomic_folder(Path(folder), marker=EXPORT.file, overwrite=overwrite) as out:
            _write(portable, selected, types, verify, out)
            write_passport(passport_of_export(portable, reference, types.values()), out)
            if verify == "full":
                device = str(encoder.device)
                verified = {runtime.name: verify_runtime(runtime, out, portable.parity, device) for runtime in selected}
                portable.parity["verified"] = {str(name): facts for name, facts in verified.items()}
                (out / EXPORT.file).write_text(json.dumps(portable.parity, ensure_ascii=False), encoding="utf-8")
            write_checksums(out)


def _write(
    portable: PortableEncoder, runtimes: Sequence[Runtime], types: dict[RuntimeName, str], verify: str, out: Path
) -> None:
    """Write the files of runtimes, the reference vectors, and the card."""
    for runtime in runtimes:
        runtime.write(portable, out, types[runtime.name])
    portable.parity["runtimes"] = {str(name): dtype for name, dtype in types.items()}
    portable.parity["checks"] = {"verify": verify}
    (out / EXPORT.file).write_text(json.dumps(portable.parity, ensure_ascii=False), encoding="utf-8")
    (out / CARD).write_text(_card(portable, runtimes, out), encoding="utf-8")


def _select(names: Sequence[str]) -> list[Runtime]:
    """Return the runtimes by their names, and Sentence-Transformers first if one of them reads its folder."""
    for name in names:
        if name not in RUNTIMES:
            raise ValueError(f"runtime {name!r}; choose from {', '.join(RUNTIMES)}")
    if not names:
        raise ValueError(f"no runtime is given; choose one or more from {', '.join(RUNTIMES)}")
    stock = any(RUNTIMES[name].reads_stock for name in names)
    return [runtime for name, runtime in RUNTIMES.items() if name in names or (stock and name == STOCK)]


def _weights(runtime: Runtime, weights: str | None, *, alone: bool) -> str:
    """Return the type of weights to write for a runtime."""
    if weights is None or (not alone and len(runtime.weights) == 1):
        return runtime.weights[0]
    if weights not in runtime.weights:
        raise ValueError(f"weights={weights!r} for {runtime.name}; choose from {', '.join(runtime.weights)}")
    return weights


def _card(portable: PortableEncoder, runtimes: Sequence[Runtime], out: Path) -> str:
    """Return the card of a folder, with what users of its runtimes must know, which is logged, too."""
    path = out / "modules.json"
    entries = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    modules = [str(entry["type"]).rpartition(".")[2] for entry in entries]
    cautions = [text for runtime in runtimes if runtime.caution and (text := runtime.caution(portable.encoder))]
    for text in cautions:
        logger.warning("%s", text)
    usages = [runtime.usage(portable) for runtime in runtimes if runtime.usage is not None]
    opening = usages.pop(0) if usages and not modules else STOCK_CARD
    return model_card(
        portable.encoder,
        stock=portable.prompts,
        lengths=portable.lengths,
        notes=[
            *notes(modules, empty_texts=portable.empty_texts),
            *([int8_card(portable.parity["int8"])] if "int8" in portable.parity else []),
            *(f"{text}." for text in cautions),
            *usages,
        ],
        opening=opening,
    )
