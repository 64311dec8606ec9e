"""Conditional distribution alignment: an LM predicts a document equally from its memory and its query's memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from embrew.distributed import rank, wait, world_size
from embrew.encoder import Encoder
from embrew.files.reading import BrokenFile
from embrew.identity import vectors_hash
from embrew.losses.vocabulary import conditional_alignment_loss, token_divergences, token_log_probs
from embrew.methods.base import (
    Positive,
    RowsKind,
    Temperature,
    check_target_fits,
    end_ids,
    instructions_of,
    text_ids,
    usable,
)
from embrew.methods.frozen_decoder import FrozenDecoder, PrecomputedGradient, memory_states
from embrew.model.batching import passes_by_length
from embrew.model.frozen import FrozenLM
from embrew.storage.parts import read_tensors, write_tensors
from embrew.text.texts import target_ids
from embrew.text.tokens import Row, Segment, Tokens, select_masked, select_rows, upload

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)
ROWS = 64  # rows per forward pass of reference scores
UNIT = 1024  # rows per file of reference scores: a killed run computes at most these again
Scores = list[float]


@dataclass(kw_only=True)
class Alignment(FrozenDecoder):
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
        decoder_bos: put BOS before the memory states in the decoder; where the tokenizer adds none, EOS.
    """

    rows_kind: ClassVar[RowsKind] = "pairs"
    name = "alignment"
    doing = "conditional distribution alignment"
    variant: Literal["sigmoid", "log_sigmoid", "kl", "js"] = "sigmoid"
    beta: Positive = 0.1
    temperature: Temperature = 0.1
    detach_self: bool = False
    decoder_bos: bool = False

    def check_lengths(self, encoder: Encoder) -> None:
        """Raise if the decoder's longest row exceeds the model's positions."""
        before = len(self.before_target(encoder).ids)
        check_target_fits(encoder, before, encoder.max_length["document"], read="BOS and memory tokens in the decoder")

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Leave out rows without negatives.

        Raises:
            ValueError: no row has a negative.
        """
        keep = [i for i, negatives in enumerate(dataset["negatives"]) if negatives]
        none = f"none of {len(dataset)} rows has negatives; alignment contrasts with one or more"
        return usable(dataset, keep, otherwise=none, left_out="alignment leaves out {} of {} rows without negatives")

    def precompute(self, dataset: Dataset, encoder: Encoder, folder: Path | None = None) -> Dataset:
        """Add `reference`, the scores of the encoder at this moment: [a, c_1, …].

        A file in `folder` holds the scores of `UNIT` rows; its name is a hash of these rows' texts, the encoder and the
        settings. Several processes share the work, and a resumed run computes only what is missing. A unit is always
        computed as a whole, so that it gets the same numbers.
        """
        if not self.has_references:
            return dataset
        layout = f"end={'of whole texts' if self.end else None} before={self.before_target(encoder).ids}"
        origin = "" if folder is None else f"{vectors_hash(encoder)} {encoder.backbone.dtype} {layout}"

        def scores_of(start: int) -> list[Scores]:
            rows = dataset.select(range(start, min(start + UNIT, len(dataset)))).to_list()
            if folder is None:
                return self._references(rows, encoder)
            texts = [(row["query"], row["positive"], row["negatives"], row.get("instruction")) for row in rows]
            key = blake2b(repr((origin, texts)).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
            return stored_scores(folder / f"{key}.safetensors", lambda: self._references(rows, encoder))

        units = range(0, len(dataset), UNIT)
        was_training = encoder.training
        encoder.eval()
        if folder is not None and world_size() > 1:
            for start in units[rank() :: world_size()]:
                scores_of(start)
            wait()
        scores: list[Scores] = []
        for number, start in enumerate(units, start=1):
            scores += scores_of(start)
            if number % 16 == 0 or number == len(units):
                logger.info("reference scores  %d/%d rows", len(scores), len(dataset))
        encoder.train(was_training)
        return dataset.add_column("reference", scores)

    @property
    def has_references(self) -> bool:
        """Whether the variant compares with reference scores."""
        return self.variant in ("sigmoid", "log_sigmoid")

    @torch.no_grad()
    def _references(self, rows: Sequence[dict[str, Any]], encoder: Encoder) -> list[Scores]:
        """Return [a, c_1, …] of each row, with the encoder at this moment."""
        scores: list[Scores] = [[] for _ in rows]
        for start in range(0, len(rows), ROWS):
            laid_out = self._lay_out(rows[start : start + ROWS], encoder)
            batch = {**laid_out, **{name: laid_out[name].to(encoder.device) for name in ("text", "decoded")}}
            memory = memory_states(encoder, batch["text"])
            with encoder.backbone.frozen_lm() as lm:
                values = self._log_probs(lm, memory, batch, (0, 2))
            for owner, value in zip(batch["owner"].tolist(), values.tolist(), strict=True):
                if value == value:  # parts that were not computed are NaN
                    scores[start + owner].append(value)
        return scores

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        """Return the texts to encode, those to decode from their memories, and the references."""
        batch = self._lay_out(rows, encoder)
        if self.has_references:
            batch["near_reference"] = torch.tensor([row["reference"][0] for row in rows])
            batch["far_reference"] = torch.tensor([value for row in rows for value in row["reference"][1:]])
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
        before = self.before_target(encoder)
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
            a, b, c = (select_rows(values, np.flatnonzero(part == number)) for number in range(3))
            margin = (a[negatives] - batch["near_reference"][negatives]) - (c - batch["far_reference"])
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

    def _log_probs(self, lm: FrozenLM, memory: Tensor, batch: dict[str, Any], parts: tuple[int, ...]) -> Tensor:
        """Return the log-probability of every decoded text `(decoded,)` float32; NaN for other parts."""
        wanted = np.isin(batch["part"], parts)
        values = torch.full((len(wanted),), float("nan"), device=memory.device)
        positions: list[int] = []
        sums = []
        for group, states, student in self._decode(lm, memory, batch, wanted):
            target = student.host.where(Segment.TARGET)
            labels = select_masked(student.input_ids, target)
            scores = token_log_probs(select_masked(states, student.host.predicting(Segment.TARGET)), labels, *lm.head)
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
            states |= zip(group, select_masked(hidden, scored).split(scored.sum(1).tolist()), strict=True)
        own, query = ([states[row] for row in side] for side in pairs)
        rows = token_divergences(torch.cat(own), torch.cat(query), *lm.head, kind=kind)
        # a text without tokens diverges by 0, as its log-probability is 0
        return torch.stack([text.sum() / max(len(text), 1) for text in rows.split([len(text) for text in own])])

    def _decode(
        self, lm: FrozenLM, memory: Tensor, batch: dict[str, Any], wanted: np.ndarray
    ) -> Iterator[tuple[list[int], Tensor, Tokens]]:
        """Yield rows, states and tokens of decoded texts, in groups of similar length."""
        positions = np.flatnonzero(wanted)
        tokens: Tokens = batch["decoded"].select(positions)
        dummies: list[Tensor] = []  # added to states, so that their backward passes run too
        for rows, counts in sorted(passes_by_length(tokens, lm.cost), key=lambda one: one.counts):
            group = positions[rows]
            student = tokens.select(rows).with_soft(select_rows(memory, batch["source"][group]))
            states = lm.hidden_states(student)
            if counts:
                yield group.tolist(), sum(dummies, states), student
            else:
                dummies.append(0.0 * states.sum())


def stored_scores(path: Path, compute: Callable[[], list[Scores]]) -> list[Scores]:
    """Return the scores of rows from a file; where there is none, or it is damaged, compute and write them."""
    tensors: dict[str, Tensor] = {}
    if path.is_file():
        try:
            tensors = read_tensors(path, keys=("count", "score"), sealed=True)
        except (OSError, BrokenFile) as error:
            logger.warning("%s is damaged; its scores are computed again (%s)", path, error)
    if not tensors:
        scores = compute()
        tensors = {
            "count": torch.tensor([len(values) for values in scores]),
            "score": torch.tensor([value for values in scores for value in values], dtype=torch.float32),
        }
        write_tensors(path, tensors)
    return [values.tolist() for values in tensors["score"].split(tensors["count"].tolist())]
