"""Conditional distribution alignment: an LM predicts a document equally from its memory and its query's memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, distributed

from embrew.distributed import rank, world_size
from embrew.encoder import Encoder
from embrew.files.writing import atomic_path
from embrew.losses.conditional_alignment import conditional_alignment_loss, token_divergences
from embrew.losses.vocabulary import token_log_probs
from embrew.methods.base import (
    Objective,
    Positive,
    RowsKind,
    check_target_fits,
    end_ids,
    instructions_of,
    text_ids,
    usable,
)
from embrew.methods.frozen_decoder import (
    PrecomputedGradient,
    check_memory,
    decoder_row,
    memory_states,
    setup_frozen_decoder,
)
from embrew.model.batching import passes_by_length
from embrew.model.frozen import FrozenLM
from embrew.settings.encoder import EncoderSettings
from embrew.text.texts import target_ids
from embrew.text.tokens import Row, Segment, Tokens, at, take, upload
from embrew.text_encoder.hashes import vectors_hash

logger = logging.getLogger(__name__)
ROWS = 64  # rows per forward pass of reference scores
UNIT = 1024  # rows per file of reference scores: a killed run computes at most these again
Scores = list[float]


@dataclass(kw_only=True)
class Alignment(Objective):
    """*Following the Autoregressive Nature of LLM Embeddings via Compression and Alignment*, Eq. 2.

    With e_q the memory of a query under its prompt (I_next: predict the document), e_+ that of its document under the
    documents' prompt (I_self: predict this text), D the frozen original LM, and sums of log-probabilities in float32,
    EOS included:

        a = log D(d+ | e_q),  b = log D(d+ | e_+),  c_i = log D(d−_i | e_q)
        S1 = −σ(β |a − b|),   S2_i = −σ(β [(a − a_ref) − (c_i − c_ref,i)])
        L  = −log [ e^{S1/τ} / (e^{S1/τ} + Σ_i e^{S2_i/τ}) ]

    The references are the scores of the encoder at the start of the stage; they are computed once. (The authors'
    released code adds the reference margin; the paper, and their earlier code, subtract it.)

    Attributes:
        variant: `sigmoid`; `log_sigmoid`: −log σ in place of −σ; `kl`, `js`: S1 and S2 are −σ of the mean divergence,
            over the tokens of the positive (a negative), between the LM's predictions from that text's own memory and
            from the query's (appendix B); β and references are not used.
        beta: β.
        temperature: τ.
        detach_self: no gradient to e_+ (and a negative's own memory), which could lower |a − b| by predicting worse.
        end: predict EOS after a text, unless the text is truncated.
        decoder_bos: put BOS before the memory states in the decoder.
    """

    rows_kind: ClassVar[RowsKind] = "pairs"
    variant: Literal["sigmoid", "log_sigmoid", "kl", "js"] = "sigmoid"
    beta: Positive = 0.1
    temperature: Positive = 0.1
    detach_self: bool = False
    end: bool = True
    decoder_bos: bool = False

    def check_encoder(self, settings: EncoderSettings, memory_tokens: int) -> None:
        """Raise unless there are memory tokens."""
        check_memory(memory_tokens, "alignment")

    def setup(self, encoder: Encoder) -> None:
        """Keep a copy of the original LM; raise unless the encoder is a causal LM whose texts get all memory tokens."""
        encoder.backbone.check_decoder("conditional distribution alignment")
        super().setup(encoder)
        before = len(encoder.template.bos_ids) * self.decoder_bos + len(encoder.template.memory_ids)
        check_target_fits(encoder, before, encoder.max_length["document"], read="BOS and memory tokens in the decoder")
        setup_frozen_decoder(encoder, "alignment", end=self.end)

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Leave out rows without negatives.

        Raises:
            ValueError: no row has a negative.
        """
        keep = [i for i, negatives in enumerate(dataset["negatives"]) if negatives]
        none = f"none of {len(dataset)} rows has negatives; alignment contrasts with one or more"
        return usable(dataset, keep, otherwise=none, left_out="alignment leaves out {} of {} rows without negatives")

    def precompute(self, dataset: Dataset, encoder: Encoder, folder: Path | None = None) -> Dataset:
        """Add `reference`, the scores of the encoder at this moment, and `reference_key`, a hash of the row's texts.

        Scores are stored by that key, in `folder` and in the row, and every batch compares the key: after shuffling,
        filtering or resuming, no row has the scores of another. Files of another encoder or tokenizer are not read.
        """
        if not self.has_references:
            return dataset

        def compute(rows: range) -> list[list[float]]:
            scores: list[list[float]] = []
            for start in range(rows.start, rows.stop, ROWS):
                scores += self._references([dataset[i] for i in range(start, min(start + ROWS, rows.stop))], encoder)
            return scores

        keys = [row_key(row) for row in dataset]
        layout = f"end={'of whole texts' if self.end else None} decoder_bos={self.decoder_bos}"
        origin = "" if folder is None else f"{vectors_hash(encoder)} {encoder.backbone.dtype} {layout}"
        was_training = encoder.training
        encoder.eval()
        scores = keyed_scores(keys, compute, folder=folder, origin=origin)
        encoder.train(was_training)
        return dataset.add_column("reference", scores).add_column("reference_key", keys)

    @property
    def has_references(self) -> bool:
        """Whether the variant compares with reference scores."""
        return self.variant in ("sigmoid", "log_sigmoid")

    @torch.no_grad()
    def _references(self, rows: Sequence[dict[str, Any]], encoder: Encoder) -> list[list[float]]:
        """Return [a, c_1, …] of each row, with the encoder at this moment."""
        laid_out = self._lay_out(rows, encoder)
        batch = {**laid_out, **{name: laid_out[name].to(encoder.device) for name in ("text", "decoded")}}
        memory = memory_states(encoder, batch["text"])
        with encoder.backbone.frozen_lm() as lm:
            values = self._log_probs(lm, memory, batch, (0, 2))
        scores: list[list[float]] = [[] for _ in rows]
        for owner, value in zip(batch["owner"].tolist(), values.tolist(), strict=True):
            if value == value:  # parts that were not computed are NaN
                scores[owner].append(value)
        return scores

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        """Return the texts to encode, those to decode from their memories, and the references.

        Raises:
            ValueError: a row has the references of other texts.
        """
        batch = self._lay_out(rows, encoder)
        if self.has_references:
            for row in rows:
                if row["reference_key"] != row_key(row):
                    raise ValueError(
                        f"the reference scores of query {row['query'][:60]!r} were computed for other texts; "
                        "start the stage again"
                    )
            batch["reference"] = torch.tensor([value for row in rows for value in row["reference"]])
        return batch

    def _lay_out(self, rows: Sequence[dict[str, Any]], encoder: Encoder) -> dict[str, Any]:
        """Return `text`: queries, positives, and with `kl` and `js` negatives too, as they are encoded.

        Also `decoded`: texts to predict; `source`: the row of `text` whose memory each follows; `part`: 0 a positive
        after its query, 1 after itself, 2 a negative after its query, 3 after itself; `owner`: the pair.
        """
        size, lengths, prompts = len(rows), encoder.max_length, encoder.prompts
        queries = encoder.template.rows(
            [row["query"] for row in rows],
            instruction=instructions_of(rows, encoder),
            max_length=lengths["query"],
        )
        negatives = [(i, text) for i, row in enumerate(rows) for text in row["negatives"]]
        own = [row["positive"] for row in rows] + ([] if self.has_references else [text for _, text in negatives])
        documents = encoder.template.rows(own, instruction=prompts["document"], max_length=lengths["document"])
        decoded = [(i, i, 0, rows[i]["positive"]) for i in range(size)]
        decoded += [(i, size + i, 1, rows[i]["positive"]) for i in range(size)]
        decoded += [(i, i, 2, text) for i, text in negatives]
        if not self.has_references:
            decoded += [(i, 2 * size + n, 3, text) for n, (i, text) in enumerate(negatives)]
        end = end_ids(encoder, end=self.end)
        before = decoder_row(encoder, bos=self.decoder_bos)
        texts = text_ids([text for *_, text in decoded], encoder)
        targets = [target_ids(ids, end=end, limit=lengths["document"]) for ids in texts]
        return {
            "text": Tokens.pad([*queries, *documents]),
            "decoded": Tokens.pad([before + Row.labelled(target, Segment.TARGET) for target in targets]),
            "owner": np.array([owner for owner, *_ in decoded]),
            "source": np.array([source for _, source, _, _ in decoded]),
            "part": np.array([part for _, _, part, _ in decoded]),
        }

    def counts(self, batch: dict[str, Any]) -> dict[str, int]:
        """Return the number of pairs."""
        return {"pairs": int((batch["part"] == 0).sum())}

    def __call__(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Encode every text once; decode, compare and differentiate without the adapter."""
        memory = memory_states(encoder, batch["text"])
        training = torch.is_grad_enabled() and memory.requires_grad
        with encoder.backbone.frozen_lm() as lm:
            leaf = memory.detach().requires_grad_(training)
            loss, parts = self._loss(lm, leaf, batch)
            if not training:
                return {"loss": loss, **parts}
            (grad,) = torch.autograd.grad(loss, leaf)
        return {"loss": PrecomputedGradient.apply(memory, grad, loss.detach()), **parts}

    def _loss(self, lm: FrozenLM, memory: Tensor, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, and parts for the log."""
        part, owner = batch["part"], batch["owner"]
        pairs = self.counts(batch)["pairs"]
        if self.detach_self:
            memory = torch.cat([memory[:pairs], memory[pairs:].detach()])
        negatives = upload(torch.from_numpy(owner[part == 2]), memory.device)
        if self.has_references:
            values = self._log_probs(lm, memory, batch, (0, 1, 2))
            a, b, c = (take(values, np.flatnonzero(part == number)) for number in range(3))
            near_reference, far_reference = self._split_references(batch)
            margin = (a[negatives] - near_reference[negatives]) - (c - far_reference)
            near, far = self.beta * (a - b).abs(), self.beta * margin
            parts = {"gap": (a - b).abs().mean().detach(), "margin": margin.mean().detach()}
        else:
            divergences = self._divergences(lm, memory, batch)
            near, far = divergences[: len(divergences) - len(negatives)], divergences[-len(negatives) :]
            parts = {"near": near.mean().detach(), "far": far.mean().detach()}
        loss = conditional_alignment_loss(
            near, far, negatives, temperature=self.temperature, logarithm=self.variant == "log_sigmoid"
        )
        return loss * (pairs * self.unit_weights(batch, memory.device)["pairs"]), parts

    def _split_references(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the references of positives, which come first in every pair, and of negatives."""
        counts = np.bincount(batch["owner"][batch["part"] == 2], minlength=self.counts(batch)["pairs"])
        first = np.zeros(counts.sum() + len(counts), dtype=bool)
        first[(counts + 1).cumsum() - counts - 1] = True
        references: Tensor = batch["reference"]
        return take(references, np.flatnonzero(first)), take(references, np.flatnonzero(~first))

    def _log_probs(self, lm: FrozenLM, memory: Tensor, batch: dict[str, Any], parts: tuple[int, ...]) -> Tensor:
        """Return the log-probability of every decoded text `(decoded,)` float32; NaN for other parts."""
        wanted = np.isin(batch["part"], parts)
        values = torch.full((len(wanted),), float("nan"), device=memory.device)
        positions: list[int] = []
        sums = []
        for group, states, student in self._decode(lm, memory, batch, wanted):
            target = student.host.where(Segment.TARGET)
            labels = at(student.input_ids, target)
            scores = token_log_probs(at(states, student.host.predicting(Segment.TARGET)), labels, *lm.head)
            rows = upload(target.nonzero()[:, 0], memory.device)
            positions += group
            sums.append(torch.zeros(len(group), device=memory.device).index_add(0, rows, scores))
        return values.index_copy(0, upload(torch.tensor(positions), memory.device), torch.cat(sums))

    def _divergences(self, lm: FrozenLM, memory: Tensor, batch: dict[str, Any]) -> Tensor:
        """Return the mean divergence between own and query's memory, of every positive, then of every negative."""
        part = batch["part"]
        pairs = [[i for a in side for i in np.flatnonzero(part == a).tolist()] for side in ((1, 3), (0, 2))]
        kind: Literal["kl", "js"] = "js" if self.variant == "js" else "kl"
        states: dict[int, Tensor] = {}
        for group, hidden, student in self._decode(lm, memory, batch, np.ones(len(part), dtype=bool)):
            scored = student.host.predicting(Segment.TARGET)
            states |= zip(group, at(hidden, scored).split(scored.sum(1).tolist()), strict=True)
        own, query = ([states[row] for row in side] for side in pairs)
        rows = token_divergences(torch.cat(own), torch.cat(query), *lm.head, kind=kind)
        return torch.stack([text.mean() for text in rows.split([len(text) for text in own])])

    def _decode(
        self, lm: FrozenLM, memory: Tensor, batch: dict[str, Any], wanted: np.ndarray
    ) -> Iterator[tuple[list[int], Tensor, Tokens]]:
        """Yield rows, states and tokens of decoded texts, in groups of similar length."""
        positions = np.flatnonzero(wanted)
        tokens: Tokens = batch["decoded"].select(positions)
        dummies: list[Tensor] = []  # added to states, so that their backward passes run too
        for rows, counts in sorted(passes_by_length(tokens, lm.cost), key=lambda one: one.counts):
            group = positions[rows]
            student = tokens.select(rows).with_soft(take(memory, batch["source"][group]))
            states = lm.hidden_states(student)
            if counts:
                yield group.tolist(), sum(dummies, states), student
            else:
                dummies.append(0.0 * states.sum())


class RowKey(NamedTuple):
    """The texts on which reference scores depend."""

    query: str
    positive: str
    negatives: tuple[str, ...]
    instruction: str | None


def row_key(row: dict[str, Any]) -> str:
    """Return a hash of the texts of a row."""
    key = RowKey(row["query"], row["positive"], tuple(row["negatives"]), row.get("instruction"))
    return blake2b(repr(key).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def keyed_scores(
    keys: Sequence[str],
    compute: Callable[[range], list[Scores]],
    *,
    folder: Path | None,
    origin: str,
    unit: int = UNIT,
) -> list[Scores]:
    """Return the scores of every row: read if a file has them under the row's key, else computed and written.

    Files are written atomically, one per unit; several processes share the work. A unit is always computed as a whole,
    so that a resumed run gets the same numbers.

    Args:
        keys: key of each row, hexadecimal digits of one length; rows with equal keys have equal scores.
        compute: function from row indices to scores.
        folder: folder of the files; None: nothing is written.
        origin: identifies the model and the settings; files of another origin are not read.
        unit: rows per file.
    """
    units = [range(start, min(start + unit, len(keys))) for start in range(0, len(keys), unit)]

    def scores_of(number: int) -> list[Scores]:
        rows = units[number]
        if folder is None:
            return compute(rows)
        path, own = folder / f"{number:06d}.safetensors", keys[rows.start : rows.stop]
        stored = read_scores(path, origin)
        if not all(key in stored for key in own):
            write_scores(path, dict(zip(own, compute(rows), strict=True)), origin)
            stored = read_scores(path, origin)
        return [stored[key] for key in own]

    if folder is not None and world_size() > 1:
        for number in range(rank(), len(units), world_size()):
            scores_of(number)
        distributed.barrier()
    scores: list[Scores] = []
    for number in range(len(units)):
        scores += scores_of(number)
        if len(scores) % (16 * unit) == 0 or len(scores) == len(keys):
            logger.info("reference scores  %d/%d rows", len(scores), len(keys))
    return scores


def write_scores(path: Path, scores: dict[str, Scores], origin: str) -> None:
    """Write scores by key, atomically."""
    tensors = {
        "key": torch.tensor([list(bytes.fromhex(key)) for key in scores], dtype=torch.uint8),
        "count": torch.tensor([len(values) for values in scores.values()]),
        "score": torch.tensor([value for values in scores.values() for value in values], dtype=torch.float32),
    }
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={"origin": origin})


def read_scores(path: Path, origin: str) -> dict[str, Scores]:
    """Return the scores of a file by key; none if there is no file, it is damaged, or it has another origin."""
    if not path.is_file():
        return {}
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("origin") != origin:
                return {}
            keys, counts, values = (file.get_tensor(name) for name in ("key", "count", "score"))
    except (OSError, SafetensorError, ValueError):
        logger.warning("%s is damaged; its scores are computed again", path)
        return {}
    rows = values.split(counts.tolist())
    return {bytes(key).hex(): row.tolist() for key, row in zip(keys.tolist(), rows, strict=True)}
