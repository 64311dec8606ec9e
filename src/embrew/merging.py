"""Merge an encoder's adapters into its base; average encoders of one base, by given weights or chosen on dev."""

from __future__ import annotations

import copy
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from peft import PeftModel
from torch import Tensor

from embrew.encoder import Encoder
from embrew.evaluation.dev import DevSets, dev_sets
from embrew.files.names import public_path
from embrew.files.writing import check_free
from embrew.identity import tokenizer_hash
from embrew.model.adapters import Factors, adapter_state, lora_factors, lora_of, reopened_lora
from embrew.model.encoder_module import CardFacts
from embrew.model.weights import cast_weights, describe_difference, tensors_under_adapter, without_adapter
from embrew.storage.base_model import supports_natively
from embrew.storage.card import without_scores
from embrew.storage.loading import (
    SETTINGS,
    knows_base,
    open_base_again,
    read_settings,
    trained_folder,
    trained_parts,
)
from embrew.storage.saving import check_same, reference_vectors

logger = logging.getLogger(__name__)
Method = Literal["linear", "slerp"]
T = TypeVar("T")
Mixture = tuple[float, ...]
PARALLEL = 0.9995  # cosine beyond which an arc is taken to be straight


def average(
    inputs: Sequence[str | Path],
    target: str | Path,
    *,
    method: Method = "linear",
    mixtures: Sequence[Sequence[float]] = (),
    dev: Sequence[str | Path] = (),
    overwrite: bool = False,
    verify: str = "full",
) -> Encoder:
    """Write the average of encoders of one base, with the same settings: seeds, checkpoints (`training.keep`), soups.

    The changes of each weight are averaged. If the inputs differ in one plain LoRA only, the result is one LoRA whose
    rank is the sum of theirs, and exactly the average; otherwise full weights. Memory tokens and heads are averaged
    linearly.

    Args:
        inputs: two or more folders of encoders or training runs.
        target: folder to write; must not exist, unless `overwrite`.
        method: `linear`; or `slerp`, of two: along the arc between their changes of a weight, as flat vectors, from the
            base, or from what adapters that both have merged make of it (Shoemake 1985). It is linear where these are
            parallel or zero.
        mixtures: weights of the inputs, from 0 to 1, with the sum 1; several are tried on `dev`. By default equal ones;
            with `dev` also each input alone, and equal weights of the best two, three, … of them.
        dev: data folders or files; the mixture with the best mean is taken. Test splits are refused.
        overwrite: replace an existing encoder folder.
        verify: as of `Encoder.save_pretrained`.

    Returns:
        The average; `card_facts["averaged"]` has the inputs with hashes, the weights, and each mixture tried with its
        scores.

    Raises:
        FileNotFoundError: an input is not an encoder's folder, or `dev` does not exist.
        FileExistsError: `target` exists.
        ValueError: inputs that differ in base or settings, or subtract means (`pooling.center`), weights that do not
            fit, or nothing to choose by.
    """
    candidates = check_mixtures(mixtures, len(inputs), method, chooses=bool(dev))
    sets = dev_sets(dev) if dev else None
    folders, out = [trained_folder(each) for each in inputs], Path(target)
    if out.resolve() in [folder.resolve() for folder in folders]:
        raise ValueError(f"{target} is one of the encoders to average; give another folder")
    check_free(out, marker=SETTINGS, overwrite=overwrite)
    opened = open_inputs(inputs, folders)
    if opened[0].encoder.center is not None:
        raise ValueError("pooling.center: average encoders that are not centred, then run embrew center on the average")
    encoder, mix = opened[0].encoder, _mixer(opened, folders, method)
    mixture = candidates[0] if candidates else _equal(range(len(opened)), len(opened))
    tried: dict[Mixture, dict[str, float]] = {}
    if sets is not None:
        tried = scores_of_mixtures(encoder, mix, sets, candidates, len(opened))
        mixture = max(tried, key=lambda candidate: tried[candidate]["dev"])
        logger.info("weights %s are the best of %d by dev", format_weights(mixture), len(tried))
        if 1.0 in mixture:
            logger.warning("no average is better on dev than %s alone", inputs[mixture.index(1.0)])
    mix(mixture)
    facts = _card_facts(opened, method, mixture, tried, {} if sets is None else sets.about)
    encoder.steps = max(each.encoder.steps for each, weight in zip(opened, mixture, strict=True) if weight)
    encoder.card_facts = facts
    if len({re.sub(r"(?m)^seed: .*", "", each.encoder.recipe or "") for each in opened}) > 1:
        encoder.recipe = None
    encoder.save_pretrained(out, overwrite=overwrite, verify=verify)
    return encoder


def merge_encoder(
    source: str | Path, target: str | Path, *, dtype: str = "auto", overwrite: bool = False, verify: str = "full"
) -> Encoder:
    """Write a trained encoder with its adapters merged into the weights.

    All are added in float32, whatever they were trained in; then the sum is rounded to `dtype`. Of a quantised base,
    the dequantised weights are taken, since training saw these; this needs bitsandbytes. The vectors of the merged
    encoder are compared with those of the one that carries its adapter, on the quantised base if it has one.

    Args:
        source: a folder written by training or `save_pretrained`.
        target: folder to write; must not exist, unless `overwrite`.
        dtype: dtype of the weights written: `float32`, `bfloat16`, or `auto`, that of the saved encoder.
        overwrite: replace an existing encoder folder.
        verify: as of `Encoder.save_pretrained`.

    Returns:
        The merged encoder.

    Raises:
        FileNotFoundError: `source` is not an encoder's folder.
        FileExistsError: `target` exists.
        ValueError: there is no adapter to merge, or bitsandbytes is not installed and the base is quantised.
        RuntimeError: the merged weights give other vectors.
    """
    folder, out = trained_folder(source), Path(target)
    settings = read_settings(folder)
    if not settings["adapters"]:
        kind = "full weights already" if settings["full_weights"] else "its base's weights and no adapter"
        raise ValueError(f"{source} has {kind}; there is nothing to merge")
    if folder.resolve() == out.resolve():
        raise ValueError(f"{target} is the encoder itself; give another folder")
    check_free(out, marker=SETTINGS, overwrite=overwrite)
    expected = reference_vectors(
        Encoder.from_pretrained(folder, dtype="float32", merge_adapter=False)
    )  # freed before the next one is opened
    encoder = Encoder.from_pretrained(folder, dtype=dtype, merge_adapter=True)
    encoder.backbone.dequantize()
    what = "the merged weights give other vectors than the adapters"
    difference = check_same(reference_vectors(encoder), expected, encoder.backbone, what=what)
    logger.info("merged adapters: %d; largest difference between vectors: %.1e", settings["adapters"], difference)
    encoder.merged_adapters = []
    encoder.compute_dtype = None  # how much of the adapter rounding would take is not known any more
    encoder.backbone.train_all()
    encoder.save_pretrained(out, overwrite=overwrite, verify=verify)
    return encoder


class _Input(NamedTuple):
    """An encoder, of which all but the first have lost their language model, and what was read of that."""

    name: str
    encoder: Encoder
    sha256: str
    factors: Factors | None


def check_mixtures(mixtures: Sequence[Sequence[float]], count: int, method: Method, *, chooses: bool) -> list[Mixture]:
    """Return the mixtures; raise ValueError where they, or the number of inputs, do not fit."""
    if method not in ("linear", "slerp"):
        raise ValueError(f"method={method!r}; choose from linear, slerp")
    if count < 2 or (method == "slerp" and count > 2):
        needed = "exactly two: an arc has two ends" if method == "slerp" else "two or more"
        raise ValueError(f"{count} encoders to average by {method}; give {needed}")
    if len(mixtures) > 1 and not chooses:
        raise ValueError(f"{len(mixtures)} mixtures and no dev set to choose by; give dev data, or one mixture")
    for weights in mixtures:
        in_range = len(weights) == count and all(0 <= weight <= 1 for weight in weights)
        if not in_range or abs(sum(weights) - 1) > 1e-6:
            raise ValueError(
                f"weights {format_weights(weights)} for {count} encoders; give one from 0 to 1 per encoder, with the "
                "sum 1"
            )
    return [tuple(map(float, weights)) for weights in mixtures]


def format_weights(weights: Sequence[float]) -> str:
    """Return weights as one line."""
    return ", ".join(f"{weight:.4g}" for weight in weights)


def _equal(chosen: Sequence[int], count: int) -> Mixture:
    return tuple(1 / len(chosen) if i in chosen else 0.0 for i in range(count))


def open_inputs(inputs: Sequence[str | Path], folders: Sequence[Path]) -> list[_Input]:
    """Open the encoders one by one, and compare them; one base is in memory, not that of each."""
    read, same = list[_Input](), dict[str, Any]()
    for name, folder in zip(inputs, folders, strict=True):
        encoder = Encoder.from_pretrained(folder, merge_adapter=False)
        facts = _facts(encoder)
        same = same or facts
        for key in same | facts:
            if facts.get(key) != same.get(key):
                raise ValueError(
                    f"{name} has {key}={facts.get(key)!r}, and {inputs[0]} {same.get(key)!r}; average encoders of one "
                    "base that read texts in the same way"
                )
        model, owns_weights = encoder.backbone.model, encoder.backbone.owns_weights
        factors = lora_factors(model) if isinstance(model, PeftModel) and not owns_weights else None
        read.append(_Input(public_path(str(name)), encoder, encoder.weights_hash(), factors))
        if len(read) > 1:
            del encoder.backbone.model
    return read


def _facts(encoder: Encoder) -> dict[str, Any]:
    """Return what has to be the same in all encoders."""
    learned = {f"{name} tokens": len(rows) for name, rows in encoder.backbone.learned.items()}
    contexts = {"contexts": {name: str(each.context) for name, each in encoder.contexts.items()}}
    others = {"tokenizer": tokenizer_hash(encoder.tokenizer), "dtype": str(encoder.backbone.dtype)}
    return {"base": encoder.base.as_dict(), **encoder.settings.as_dict(), **learned, **contexts, **others}


def _mixer(read: Sequence[_Input], folders: Sequence[Path], method: Method) -> Callable[[Mixture], None]:
    """Return a function that gives the first encoder the average by a mixture."""
    encoder, factors = read[0].encoder, [each.factors for each in read if each.factors is not None]
    merged = [[state.tensors for state in each.encoder.merged_adapters] for each in read]
    parts = [copy.deepcopy(trained_parts(each.encoder)) for each in read]  # those of the first are overwritten
    if len(factors) == len(read) and all(_same(merged[0], adapters) for adapters in merged[1:]):
        mix_weights = _lora_mixer(encoder, factors, method)
    else:
        mix_weights = _weights_mixer(encoder, folders, method)

    def mix(mixture: Mixture) -> None:
        mix_weights(mixture)
        for part, tensors in trained_parts(encoder).items():
            mixed = {name: _sum(mixture, [each[part][name] for each in parts]) for name in tensors}
            if part != "memory":
                getattr(encoder, part).load_state_dict(mixed)
                continue
            for name, rows in encoder.backbone.learned.items():
                rows.data.copy_(mixed[name])
        encoder.to(encoder.device).eval()

    return mix


def _same(first: list[dict[str, Tensor]], second: list[dict[str, Tensor]]) -> bool:
    pairs = zip(first, second, strict=False)
    return len(first) == len(second) and all(describe_difference(*pair, exactly=True) is None for pair in pairs)


def _lora_mixer(encoder: Encoder, factors: Sequence[Factors], method: Method) -> Callable[[Mixture], None]:
    """Return a function that replaces the LoRA by the average of LoRAs: their factors, concatenated."""
    lora: Any = encoder.backbone.model
    config = adapter_state(lora).config

    def mix_lora(mixture: Mixture) -> None:
        mixed: Factors = {}
        for name in {name: None for each in factors for name in each}:
            pairs = [each.get(name) for each in factors]
            shares = _shares(mixture, method, pairs, _product)
            used = [(*pair, share) for pair, share in zip(pairs, shares, strict=True) if pair is not None and share]
            if used:
                down = torch.cat([down for down, _, _ in used])
                mixed[name] = down, torch.cat([up * share for _, up, share in used], dim=1)
        model: Any = encoder.backbone.model
        encoder.backbone.use_adapter(reopened_lora(model.unload(), lora_of(mixed, config), trainable=True))

    return mix_lora


def _weights_mixer(encoder: Encoder, folders: Sequence[Path], method: Method) -> Callable[[Mixture], None]:
    """Return a function that replaces all weights by the average of those of the folders, adapters merged."""
    if encoder.backbone.is_quantized:
        raise ValueError("encoders on a 4-bit base that differ in more than one plain LoRA; merge each (embrew merge)")
    dtype = encoder.backbone.dtype
    merged = [
        tensors_under_adapter(
            Encoder.from_pretrained(folder, dtype="float32", device="cpu", merge_adapter=True).backbone.causal_lm
        )
        for folder in folders
    ]
    start = merged[0]  # of a linear average, any will do
    if method == "slerp":
        if not knows_base(encoder):
            raise ValueError(f"slerp needs the base, {encoder.base.name}, which is not in the folders; use linear")
        start = tensors_under_adapter(open_base_again(encoder, torch.float32))
    names = [name for name, tensor in start.items() if tensor.is_floating_point()]
    freed = (merged.pop(0) for _ in folders)
    changes = [{name: (each[name] - start[name]).flatten() for name in names} for each in freed]
    encoder.backbone.merge_adapter()
    encoder.merged_adapters, encoder.merged_to_encode = [], False
    encoder.backbone.train_all()
    cast_weights(encoder.backbone.causal_lm, dtype)

    def mix(mixture: Mixture) -> None:
        mixed = dict(start)
        for name in names:
            rows = [each[name] for each in changes]
            shares = _shares(mixture, method, rows, lambda first, second: float(first.double() @ second.double()))
            mixed[name] = start[name] + _sum(shares, rows).view_as(start[name])
        without_adapter(encoder.backbone.causal_lm).load_state_dict(mixed)

    return mix


def _sum(shares: Sequence[float], tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([share * tensor for share, tensor in zip(shares, tensors, strict=True)]).sum(0)


def _product(first: tuple[Tensor, Tensor] | None, second: tuple[Tensor, Tensor] | None) -> float:
    """Return the inner product of up · down and another such product, which are not computed."""
    if first is None or second is None:
        return 0.0
    (down, up), (down_2, up_2) = ([part.double() for part in pair] for pair in (first, second))
    return float(((up.T @ up_2) * (down @ down_2.T)).sum())


def _shares(
    mixture: Mixture, method: Method, changes: Sequence[T], product: Callable[[T, T], float]
) -> Sequence[float]:
    """Return the factor of each change of a weight; `product` returns the inner product of two changes.

    Slerp: sin((1 − t) θ) / sin θ and sin(t θ) / sin θ, "Animating rotation with quaternion curves" (Shoemake 1985); θ
    is the angle between the changes, whose lengths stay. Linear where there is no arc between them.
    """
    if method == "linear":
        return mixture
    first, second = changes
    norms = (product(first, first) * product(second, second)) ** 0.5
    cosine = product(first, second) / norms if norms else 1.0
    if abs(cosine) > PARALLEL:
        return mixture
    angle = math.acos(cosine)
    return [math.sin(weight * angle) / math.sin(angle) for weight in mixture]


def scores_of_mixtures(
    encoder: Encoder, mix: Callable[[Mixture], None], sets: DevSets, mixtures: Sequence[Mixture], count: int
) -> dict[Mixture, dict[str, float]]:
    """Return the scores of each mixture; without given ones, those that the docstring of `average` names."""
    tried: dict[Mixture, dict[str, float]] = {}
    device = encoder.device
    short = encoder.compute_dtype == "bfloat16" and supports_natively(torch.bfloat16, device)

    def score(mixture: Mixture) -> None:
        if mixture not in tried:
            mix(mixture)
            with torch.autocast(device.type, torch.bfloat16, enabled=short):  # as in training
                tried[mixture] = sets(encoder)
            logger.info("weights %s: dev %.4f", format_weights(mixture), tried[mixture]["dev"])

    alone = [_equal([number], count) for number in range(count)]
    for mixture in mixtures or alone:
        score(mixture)
    if not mixtures:
        best = sorted(range(count), key=lambda number: -tried[alone[number]]["dev"])
        for number in range(2, count + 1):
            score(_equal(best[:number], count))
    return tried


def _card_facts(
    read: Sequence[_Input],
    method: Method,
    mixture: Mixture,
    tried: Mapping[Mixture, Mapping[str, float]],
    about: dict[str, dict[str, str]],
) -> CardFacts:
    """Return what the card of the average is written from; records of training are kept once, without scores."""
    records: list[CardFacts] = []
    for each in read:
        past = each.encoder.card_facts
        facts: CardFacts = {**without_scores(past), "curves": {}, "kept": {}} if past else {}
        records += [facts] if facts not in records else []
    averaged: dict[str, Any] = {
        "method": method,
        "weights": list(mixture),
        "inputs": [{"name": each.name, "sha256": each.sha256, "steps": each.encoder.steps} for each in read],
        "tried": [{"weights": list(weights), "scores": dict(scores)} for weights, scores in tried.items()],
        "records": records,
    }
    scores = {f"averaging, {format_weights(weights)}": dict(each) for weights, each in tried.items()}
    return {
        "stage": f"averaging, {format_weights(mixture)}",
        "objectives": {},
        "data": {},
        "curves": {},
        "kept": {},
        "scores": scores,
        "about": about,
        "averaged": averaged,
    }
