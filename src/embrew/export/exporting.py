"""Export an encoder for other runtimes: one folder, each part of it verified by the runtime that reads it."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from embrew.encoder import Encoder
from embrew.export.int8 import Int8, int8_card
from embrew.export.notes import notes
from embrew.export.parts import Fixed, Parts
from embrew.export.runtimes import RUNTIMES
from embrew.export.runtimes.runtime import Runtime
from embrew.export.wrong_vectors import FILE, WrongVectors
from embrew.files.checksums import write_checksums
from embrew.files.writing import atomic_folder, check_free
from embrew.storage.base_model import quiet
from embrew.storage.card import STOCK as STOCK_CARD
from embrew.storage.card import model_card

logger = logging.getLogger(__name__)
MARKER = "parity.json"
STOCK = "sentence-transformers"


def export_encoder(
    encoder: Encoder,
    folder: str | Path,
    *,
    runtimes: Sequence[str] = ("sentence-transformers",),
    weights: str | None = None,
    overwrite: bool = False,
    verify: str = "full",
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
        weights: type of the weights for runtimes that have a choice; None: the first of each runtime's types.
        overwrite: replace an existing folder.
        verify: `full` opens each runtime's files as the runtime does, in a fresh process where it runs Python, and
            compares token ids and vectors on 17 texts, one of them beyond every length limit, with every prompt; `off`:
            none.
        prompt_name: the prompt to write into the template if its instruction follows the text, since stock prompts
            precede the text. Export once per prompt.
        max_length: limit in tokens of every text in the folder, template and prompt included; required if the encoder
            has different limits for queries and documents, since these runtimes have one.
        num_layers: number of layers to keep, from the first; the others are deleted.
        truncate_dim: number of leading dimensions to keep, before vectors are normalised.
        int8: texts, dev data and the smallest cosine for OpenVINO with `weights="int8"`; None: the defaults.

    Raises:
        ValueError: a runtime cannot reproduce the encoder, for the reason in the message; it has two length limits
            and `max_length` is not given; or texts within its limit get different numbers of memory tokens.
        FileExistsError: the folder exists.
        RuntimeError: a runtime gives other vectors; the folder is removed.
    """
    if verify not in ("full", "off"):
        raise ValueError(f"verify={verify!r}; choose from full (in a fresh process), off")
    chosen = _chosen(runtimes)
    types = {runtime.name: _weights(runtime, weights, alone=len(chosen) == 1) for runtime in chosen}
    if int8 is not None and types.get("openvino") != "int8":
        raise ValueError("calibration texts, dev data and a smallest cosine are for openvino with int8 weights only")
    check_free(Path(folder), marker=MARKER, overwrite=overwrite)
    with quiet():
        fixed = Fixed.of(
            encoder, prompt_name=prompt_name, max_length=max_length, num_layers=num_layers, truncate_dim=truncate_dim
        )
        for runtime in chosen:
            runtime.check(fixed.encoder)
        cautions = _cautions(chosen, fixed.encoder)
        parts = Parts.of(fixed, int8)
        with atomic_folder(Path(folder), marker=MARKER, overwrite=overwrite) as out:
            for runtime in chosen:
                runtime.write(parts, out, types[runtime.name])
            parts.parity["runtimes"], parts.parity["checks"] = types, {"verify": verify}
            (out / MARKER).write_text(json.dumps(parts.parity, ensure_ascii=False))
            WrongVectors.of(parts).write(out / FILE)
            if not parts.empty_texts:
                logger.warning(
                    "%s: an empty text has no tokens in the export and gets another vector; see the card", folder
                )
            modules = _modules(out)
            own = [runtime.note(parts) for runtime in chosen if runtime.note is not None]
            card = model_card(
                parts.encoder,
                stock=parts.prompts,
                lengths=parts.lengths,
                notes=[
                    *notes(modules, empty_texts=parts.empty_texts),
                    *_int8(parts),
                    *(f"{words}." for words in cautions),
                    *(own if modules else own[1:]),
                ],
                opening=STOCK_CARD if modules or not own else own[0],
            )
            (out / "README.md").write_text(card, encoding="utf-8")
            if verify == "full":
                found = {runtime.name: runtime.verify(out, parts.parity, str(encoder.device)) for runtime in chosen}
                parts.parity["verified"] = {name: dict(noted) for name, noted in found.items() if noted}
                (out / MARKER).write_text(json.dumps(parts.parity, ensure_ascii=False))
            write_checksums(out)


def _chosen(names: Sequence[str]) -> list[Runtime]:
    """Return the runtimes by their names, and Sentence-Transformers first if one of them reads its folder."""
    for name in names:
        if name not in RUNTIMES:
            raise ValueError(f"runtime {name!r}; choose from {', '.join(RUNTIMES)}")
    if not names:
        raise ValueError(f"no runtime is given; choose one or more from {', '.join(RUNTIMES)}")
    stock = any(RUNTIMES[name].reads_stock for name in names)
    return [runtime for name, runtime in RUNTIMES.items() if name in names or (stock and name == STOCK)]


def _weights(runtime: Runtime, asked: str | None, *, alone: bool) -> str:
    """Return the type of weights to write for a runtime."""
    if asked is None or (not alone and len(runtime.weights) == 1):
        return runtime.weights[0]
    if asked not in runtime.weights:
        raise ValueError(f"weights={asked!r} for {runtime.name}; choose from {', '.join(runtime.weights)}")
    return asked


def _cautions(chosen: Sequence[Runtime], encoder: Encoder) -> list[str]:
    """Return, and log, what users of the runtimes must know of an encoder."""
    found = [runtime.caution(encoder) for runtime in chosen if runtime.caution is not None]
    cautions = [words for words in found if words is not None]
    for words in cautions:
        logger.warning("%s", words)
    return cautions


def _int8(parts: Parts) -> list[str]:
    """Return what the card says of weights in int8, if there are any."""
    return [int8_card(parts.parity["int8"])] if "int8" in parts.parity else []


def _modules(out: Path) -> list[str]:
    """Return the class names of a Sentence-Transformers folder's modules, in order; none: it is no such folder."""
    path = out / "modules.json"
    entries = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return [str(entry["type"]).rpartition(".")[2] for entry in entries]
