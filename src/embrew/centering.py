"""`embrew center`: subtract the mean and principal components of training texts' vectors from those of any encoder."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub import ModelCard
from torch import nn

from embrew.analysis.input_texts import unnormalised
from embrew.data.beir import read_documents
from embrew.data.columns import match
from embrew.data.datasets import load
from embrew.data.reading import expand, find_file, read, stem
from embrew.encoder import Encoder
from embrew.files.checksums import CARD, write_checksums
from embrew.files.names import public_path
from embrew.files.writing import atomic_folder, check_free
from embrew.model.center import Fit, centered, fit, grouped, vectors_of
from embrew.opening import open_model
from embrew.runtimes.openvino_encoder import OpenVINOEncoder
from embrew.runtimes.sentence_transformers import refuse_misreading
from embrew.runtimes.stock_folder import CENTERED
from embrew.stock import MODULES, dense_module, is_stock, open_stock
from embrew.storage.card import without_scores
from embrew.storage.foreign import file_of
from embrew.storage.loading import SETTINGS, final_stage

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

KINDS = ("text", "pairs", "scored")  # of rows, in the order in which their columns are looked for
NOT_COPIED = (
    *("*.xml", "*.bin", "*.onnx*", "*.gguf", "openvino", "onnx"),
    *("parity.json", "passport.*", "checksums.json", ".*"),
)
"""Files of a Sentence-Transformers folder that would hold the uncentred model, or are about them."""
SUFFIX = "_Center"  # of the path of the module that subtracts
ALLOWED, ALLOWED_ROUNDED = 1e-4, 2e-2  # difference of unit vectors in float32, and in other dtypes


def center(
    model: str | Path,
    texts: str | Path,
    output: str | Path,
    *,
    components: int = 0,
    pooling: str | None = None,
    overwrite: bool = False,
    verify: str = "fast",
) -> Encoder | SentenceTransformer:
    """Write an encoder from whose vectors the mean of texts' vectors, and their first components, are subtracted.

    With components, this is "All-but-the-Top: Simple and Effective Postprocessing for Word Representations" (arXiv
    1702.01417); without, centring alone, the first step of "Whitening Sentence Representations for Better Semantics
    and Faster Retrieval" (arXiv 2103.15316), which also scales components. It happens before truncation and
    normalisation. An encoder of embrew, or a bare language model with a `pooling`, becomes a folder of embrew; a
    Sentence-Transformers model, or an export for it, stays one, with a `Dense` module more.

    Args:
        model: name of the model, as of `open_model`.
        texts: file or folder of training texts, never of texts that are evaluated: rows with a text, and a corpus, are
            read as documents; of pairs, both sides with their own prompts; of sentence pairs, both as documents.
        output: folder to write; must not exist, unless `overwrite`.
        components: number of principal components, those of the largest variance; 0: the mean alone.
        pooling: pooling of a bare language model, as of `open_model`.
        overwrite: replace an existing folder.
        verify: as of `Encoder.save_pretrained`; with `fast` and `full`, a Sentence-Transformers folder is opened again.

    Returns:
        The centred encoder: float32 vectors of the same dimensions.

    Raises:
        FileNotFoundError: no such model or texts.
        FileExistsError: `output` exists.
        ValueError: fewer texts than needed, equal vectors, or vectors that are not finite; a model that holds its
            vectors in a graph (OpenVINO, ONNX, GGUF); as `open_model`.
        RuntimeError: what was written gives other vectors; it is removed.
    """
    out, folder = Path(output), final_stage(Path(model))
    if folder.exists() and folder.resolve() == out.resolve():
        raise ValueError(f"{output} is the model itself; give another folder")
    is_ours = os.path.lexists(folder / SETTINGS)
    stays_stock = not is_ours and is_stock(str(model))
    check_free(out, marker=MODULES if stays_stock else SETTINGS, overwrite=overwrite)
    if stays_stock and any(entry["path"].endswith(SUFFIX) for entry in _entries(_folder_of(str(model)))):
        raise ValueError(f"{model} is centred already; centre the model that it was made of")
    groups = read_groups(texts)
    opened: Any
    if is_ours and pooling is None:  # an adapter that is still trained stays one
        opened = Encoder.from_pretrained(folder, merge_adapter=False)
    else:
        opened = open_model(str(model), pooling=pooling)
    if isinstance(opened, Encoder) and not isinstance(opened, OpenVINOEncoder):
        encoder = centered(opened, groups, components)
        if opened.card_facts is not None:
            encoder.card_facts = without_scores(opened.card_facts)  # those are of other vectors
        encoder.save_pretrained(out, overwrite=overwrite, verify=verify)
        return encoder
    if not hasattr(opened, "__iter__"):
        raise ValueError(
            f"{model} is an export whose vectors are the output of a graph; centre the encoder that it was made of, "
            "and export that"
        )
    raw: Any = unnormalised(opened)
    raw.truncate_dim = None
    fitted = fit(vectors_of(raw, groups), components)
    sample = [text for group in groups.values() for text in group][:16]
    with atomic_folder(out, marker=MODULES, overwrite=overwrite) as new:
        _write_stock(str(model), new, fitted, next(opened.parameters()).dtype)
        if verify != "off":
            _check_stock(raw, fitted, new, sample)
    return open_stock(str(out))


def read_groups(path: str | Path) -> dict[tuple[str, str | None], list[str]]:
    """Return the distinct texts of a file, a folder's train split, or a corpus, as `embrew.model.center.grouped`.

    Raises:
        FileNotFoundError: there is no such file or split.
        ValueError: there are no texts.
    """
    source = Path(expand(path))
    is_corpus = bool(find_file(source, "corpus")) if source.is_dir() else stem(source) == "corpus"
    if is_corpus:
        return grouped({"text": document.content} for document in read_documents(source))
    record = next(iter(read(path)), None)
    if record is None:
        raise ValueError(f"{path} holds no rows; give training texts: rows with text, with pairs, or a corpus")
    for kind in KINDS:
        try:
            match(record.values, kind)  # type: ignore[arg-type]
        except ValueError:
            continue
        return grouped(load(path, kind=kind))  # type: ignore[arg-type]
    raise ValueError(
        f"{record.where}: no texts in the columns {', '.join(sorted(record.values))}; give rows with text, with query "
        "and positive, or with sentence1 and sentence2"
    )


def _write_stock(name: str, out: Path, fitted: Fit, dtype: torch.dtype) -> None:
    """Copy the files of a Sentence-Transformers model, with one `Dense` module more before its last normalisation."""
    shutil.copytree(_folder_of(name), out, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
    entries = _entries(out)
    index = len(entries)
    while entries[index - 1]["type"].endswith(".Normalize"):
        index -= 1
    entry = {"path": f"{len(entries)}{SUFFIX}", "type": "sentence_transformers.models.Dense"}
    entries.insert(index, entry)
    numbered = [{**each, "idx": number, "name": str(number)} for number, each in enumerate(entries)]
    (out / entry["path"]).mkdir()
    dense_module(*fitted.as_layer().as_linear(), nn.Identity(), dtype).save(str(out / entry["path"]))
    (out / MODULES).write_text(json.dumps(numbered, indent=2), encoding="utf-8")
    if (out / "config.json").is_file():
        refuse_misreading(out, vllm=CENTERED, tei=CENTERED)
    card = out / CARD
    before = card.read_text(encoding="utf-8") if card.is_file() else f"# {public_path(name)}\n"
    if "model-index:" in before:  # scores of other vectors
        about: Any = ModelCard(before, ignore_metadata_errors=True)
        about.data.eval_results = None
        before = str(about)
    components = len(fitted.components)
    rest = f" and their first {components} principal components are" if components else " is"
    text = f"The mean of the vectors of {fitted.texts} training texts{rest} subtracted, before normalisation"
    old = "Scores and reference vectors that are named above are those of the model before."
    card.write_text(
        f"{before.rstrip()}\n\n## Centred\n\n{text} (`{entry['path']}`, embrew center). {old}\n", encoding="utf-8"
    )
    write_checksums(out)


def _folder_of(name: str) -> Path:
    """Return the folder of a Sentence-Transformers model, or of its copy in the Hub's cache."""
    return Path(name) if Path(name).is_dir() else Path(file_of(name, MODULES) or name).parent


def _entries(folder: Path) -> list[dict[str, Any]]:
    """Return the modules of a Sentence-Transformers folder."""
    return list(json.loads((folder / MODULES).read_text(encoding="utf-8")))


def _check_stock(raw: Any, fitted: Fit, folder: Path, texts: list[str]) -> None:
    """Raise RuntimeError unless a written folder gives the centred vectors of texts."""
    opened: Any = open_stock(str(folder))
    options = {"show_progress_bar": False, "convert_to_tensor": True}
    vectors, written = (model.encode_document(texts, **options).float().cpu() for model in (raw, opened))
    expected = nn.functional.normalize(fitted.as_layer()(vectors)[:, : written.shape[1]], dim=-1)
    difference = float((nn.functional.normalize(written, dim=-1) - expected).abs().max())
    allowed = ALLOWED if next(opened.parameters()).dtype == torch.float32 else ALLOWED_ROUNDED
    if not difference <= allowed:
        raise RuntimeError(
            f"the written folder gives other vectors: largest difference {difference:.1e}, allowed {allowed:.0e}"
        )
