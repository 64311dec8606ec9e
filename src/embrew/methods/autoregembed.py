"""AutoRegEmbed's two stages: what pairs give to compression, and conditional distribution alignment.

*Following the Autoregressive Nature of LLM Embeddings via Compression and Alignment*, with e the memory states of a
text under an instruction, D the frozen original LM, and log D(d | e) = Σ_t log D(d_t | e, d_<t):

    section 3.2  L_IC  = −log D(d | e)                         information compression: `PairedTexts` in `compression`
    Eq. 2        L_CDA = −log [ e^{S1/τ} / (e^{S1/τ} + Σ_i e^{S2_i/τ}) ]                       alignment: `Alignment`
                 S1 = −σ(β |a − b|),   S2_i = −σ(β [(a − a_ref) − (c_i − c_ref,i)])
                 a = log D(d+ | e_q),  b = log D(d+ | e_+),  c_i = log D(d−_i | e_q)

e_q is the memory of a query under its prompt (I_next: predict the document), e_+ that of its document under the
documents' prompt (I_self: predict this text). The references a_ref and c_ref are the scores of the encoder at the start
of the stage. Eq. 1 is InfoNCE, with which the paper compares.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from embrew.distributed import rank, wait, world_size
from embrew.encoder import Encoder
from embrew.files.reading import BrokenFile
from embrew.identity import vectors_hash
from embrew.losses.vocabulary import conditional_alignment_loss, token_divergences, token_log_probs
from embrew.methods.base import (
    Batch,
    DataRow,
    Positive,
    RowsKind,
    Temperature,
    blocks_of,
    check_target_fits,
    end_ids,
    instructions_of,
    rows_with_negatives,
    text_ids,
    usable,
)
from embrew.methods.frozen_decoder import CompressionRows, FrozenDecoder, memory_states
from embrew.model.attention import evaluating
from embrew.model.batching import passes_by_length
from embrew.model.frozen import FrozenLM
from embrew.storage.parts import read_tensors, write_tensors
from embrew.text.texts import target_ids
from embrew.text.tokens import Row, Segment, Tokens, select_masked, select_rows, upload

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)
REFERENCE_ROWS = 64  # rows per forward pass of reference scores
SHARD_SIZE = 1024  # rows per file of reference scores: a killed run computes at most these again
Scores = list[float]


@dataclass(frozen=True, kw_only=True)
class PairedTexts:
    """Contexts and targets of information compression: queries and their positives; attributes as of `Compression`.

    A query's instruction (the row's, by default the encoder's for queries) fills the template.
    """

    end: bool
    skip_rows: int

    @property
    def targets(self) -> dict[str, str]:
        """What is predicted, with the suffix of the names of its parts in a batch."""
        return {"positive": ""}

    def check_lengths(self, encoder: Encoder) -> None:
        """Any limit has room for a context and for a target; each is truncated by itself."""

    def longest_target(self, encoder: Encoder) -> int:
        """Return the maximum number of tokens of a target."""
        return encoder.max_length["document"] - len(encoder.template.bos_ids)

    def longest_teacher(self, encoder: Encoder) -> tuple[int, int]:
        """Return the maximum numbers of tokens that a teacher reads before a target, and of the target."""
        template = encoder.template
        context = encoder.max_length["document"] - len(template.first_ids) - len(template.memory_ids)
        return len(template.bos_ids) + context, self.longest_target(encoder)

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Leave out pairs whose target has no token with a loss."""
        if not self.skip_rows:
            return dataset
        blocks = blocks_of(dataset, "positive")
        targets = (target for texts in blocks for target in self._target_ids(texts, encoder))
        keep = [i for i, target in enumerate(targets) if len(target) > self.skip_rows]
        none = f"no target of {len(dataset)} pairs has more tokens than skip_rows={self.skip_rows}; lower it"
        shorter = f"compression leaves out {{}} of {{}} pairs: no token of theirs after skip_rows={self.skip_rows}"
        return usable(dataset, keep, otherwise=none, left_out=shorter)

    def parts(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int) -> CompressionRows:
        """Return what the encoder, the original LM and the decoder read of each pair.

        What the original LM reads in place of the memory has no memory tokens, EOS and SEP at its end: after an EOS it
        would predict the target as another text.
        """
        template = encoder.template
        queries, instructions = [row["query"] for row in rows], instructions_of(rows, encoder)
        contexts = template.rows(queries, instruction=instructions, max_length=encoder.max_length["document"])
        first, last = len(template.first_ids), len(template.tail_row.ids)
        return CompressionRows.labelled(
            contexts,
            [row.ids[first : len(row.ids) - last] for row in contexts],
            {"": self._target_ids([row["positive"] for row in rows], encoder)},
            bos=template.bos_ids,
        )

    def _target_ids(self, texts: Sequence[str], encoder: Encoder) -> list[list[int]]:
        end, limit = end_ids(encoder, end=self.end), self.longest_target(encoder)
        return [target_ids(ids, end=end, limit=limit) for ids in text_ids(texts, encoder)]


@dataclass(kw_only=True)
class Alignment(FrozenDecoder):
    """Conditional distribution alignment, Eq. 2: a document is predicted equally from its query's memory and its own.

    Log-probabilities are summed in float32, EOS included. The references are computed once. (The authors' released code
    adds the reference margin; the paper, and their earlier code, subtract it.)

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
    needs_negatives = True
    name = "alignment"
    learning = "conditional distribution alignment"
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
        keep = rows_with_negatives(dataset)
        none = f"none of {len(dataset)} rows has negatives; alignment contrasts with one or more"
        return usable(dataset, keep, otherwise=none, left_out="alignment leaves out {} of {} rows without negatives")

    def precompute(self, dataset: Dataset, encoder: Encoder, folder: Path | None = None) -> Dataset:
        """Add `reference`, the scores of the encoder at this moment: [a, c_1, …].

        A file in `folder` holds the scores of `SHARD_SIZE` rows; its name is a hash of these rows' texts, the encoder
        and the settings. Several processes share the work, and a resumed run computes only what is missing. A file is
        always computed as a whole, so that it gets the same numbers.
        """
        if not self.has_references:
            return dataset
        layout = f"end={'of whole texts' if self.end else None} before={self.before_target(encoder).ids}"
        origin = "" if folder is None else f"{vectors_hash(encoder)} {encoder.backbone.dtype} {layout}"

        def scores_of(start: int) -> list[Scores]:
            rows = dataset.select(range(start, min(start + SHARD_SIZE, len(dataset)))).to_list()
            if folder is None:
                return self._references(rows, encoder)
            texts = [(row["query"], row["positive"], row["negatives"], row.get("instruction")) for row in rows]
            key = blake2b(repr((origin, texts)).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
            return stored_scores(folder / f"{key}.safetensors", lambda: self._references(rows, encoder))

        starts = range(0, len(dataset), SHARD_SIZE)
        scores: list[Scores] = []
        with evaluating(encoder):
            if folder is not None and world_size() > 1:
                for start in starts[rank() :: world_size()]:
                    scores_of(start)
                wait()
            for number, start in enumerate(starts, start=1):
                scores += scores_of(start)
                if number % 16 == 0 or number == len(starts):
                    logger.info("reference scores  %d/%d rows", len(scores), len(dataset))
        return dataset.add_column("reference", scores)

    @property
    def single_instruction(self) -> str | None:
        """With references, which are computed once."""
        if not self.has_references:
            return None
        return (
            f"objective.variant={self.variant!r}: its reference scores are computed once, with one instruction; set "
            "instruction, or objective.variant: kl or js"
        )

    @property
    def has_references(self) -> bool:
        """Whether the variant compares with reference scores."""
        return self.variant in ("sigmoid", "log_sigmoid")

    @torch.no_grad()
    def _references(self, rows: Sequence[DataRow], encoder: Encoder) -> list[Scores]:
        """Return [a, c_1, …] of each row, with the encoder at this moment."""
        scores: list[Scores] = [[] for _ in rows]
        for start in range(0, len(rows), REFERENCE_ROWS):
            laid_out = self._lay_out(rows[start : start + REFERENCE_ROWS], encoder)
            batch = {**laid_out, **{name: laid_out[name].to(encoder.device) for name in ("text", "decoded")}}
            memory = memory_states(encoder, batch["text"])
            with encoder.backbone.frozen_lm() as lm:
                values = self._log_probs(lm, memory, batch, (0, 2))
            for pair, value in zip(batch["pair_indices"].tolist(), values.tolist(), strict=True):
                if not math.isnan(value):  # parts that were not computed
                    scores[start + pair].append(value)
        return scores

    def collate(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int = 0) -> Batch:
        """Return the texts to encode, those to decode from their memories, and the references."""
        batch = self._lay_out(rows, encoder)
        if self.has_references:
            batch["near_reference"] = torch.tensor([row["reference"][0] for row in rows])
            batch["far_reference"] = torch.tensor([value for row in rows for value in row["reference"][1:]])
        return batch

    def _lay_out(self, rows: Sequence[DataRow], encoder: Encoder) -> Batch:
        """Return `text`: queries, positives, and with `kl` and `js` negatives too, as they are encoded.

        Also `decoded`: texts to predict; `source`: the row of `text` whose memory each follows; `part`: 0 a positive
        after its query, 1 after itself, 2 a negative after its query, 3 after itself; `pair_indices`: the pair.
        """
        size, lengths, prompts = len(rows), encoder.max_length, encoder.prompts
        queries = encoder.template.rows(
            [row["query"] for row in rows],
            instruction=instructions_of(rows, encoder),
            max_length=lengths["query"],
        )
        negatives = [(i, text) for i, row in enumerate(rows) for text in row["negatives"]]
        texts = [row["positive"] for row in rows] + ([] if self.has_references else [text for _, text in negatives])
        documents = encoder.template.rows(texts, instruction=prompts["document"], max_length=lengths["document"])
        decoded = [(i, i, 0, rows[i]["positive"]) for i in range(size)]
        decoded += [(i, size + i, 1, rows[i]["positive"]) for i in range(size)]
        decoded += [(i, i, 2, text) for i, text in negatives]
        if not self.has_references:
            decoded += [(i, 2 * size + n, 3, text) for n, (i, text) in enumerate(negatives)]
        end = end_ids(encoder, end=self.end)
        before = self.before_target(encoder)
        decoded_ids = text_ids([text for *_, text in decoded], encoder)
        targets = [target_ids(ids, end=end, limit=lengths["document"]) for ids in decoded_ids]
        return {
            "text": Tokens.pad([*queries, *documents]),
            "decoded": Tokens.pad([before + Row.labelled(target, Segment.TARGET) for target in targets]),
            "pair_indices": np.array([pair for pair, *_ in decoded]),
            "source": np.array([source for _, source, _, _ in decoded]),
            "part": np.array([part for _, _, part, _ in decoded]),
        }

    def num_items(self, batch: Batch) -> dict[str, int]:
        """Return the number of pairs."""
        return {"pairs": int((batch["part"] == 0).sum())}

    def __call__(self, encoder: Encoder, batch: Batch) -> dict[str, Tensor]:
        """Return the loss of the texts' memory states, each encoded once, and parts for the log."""
        parts: dict[str, Tensor] = {}

        def losses(lm: FrozenLM, memory: Tensor) -> list[Tensor]:
            loss, logged = self._loss(lm, memory, batch)
            parts.update(logged)
            return [loss]

        return {"loss": self.total_loss(encoder, batch["text"], losses), **parts}

    def _loss(self, lm: FrozenLM, memory: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, and parts for the log."""
        part, pair_indices = batch["part"], batch["pair_indices"]
        pairs = self.num_items(batch)["pairs"]
        if self.detach_self:
            memory = torch.cat([memory[:pairs], memory[pairs:].detach()])
        negatives = upload(torch.from_numpy(pair_indices[part == 2]), memory.device)
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
        return loss * (pairs * self.item_weights(batch, memory.device)["pairs"]), parts

    def _log_probs(self, lm: FrozenLM, memory: Tensor, batch: Batch, parts: tuple[int, ...]) -> Tensor:
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

    def _divergences(self, lm: FrozenLM, memory: Tensor, batch: Batch) -> Tensor:
        """Return the mean divergence between own and query's memory, of every positive, then of every negative."""
        part = batch["part"]
        pairs = [[i for a in side for i in np.flatnonzero(part == a).tolist()] for side in ((1, 3), (0, 2))]
        kind: Literal["kl", "js"] = "js" if self.variant == "js" else "kl"
        states: dict[int, Tensor] = {}
        for group, hidden, student in self._decode(lm, memory, batch, np.ones(len(part), dtype=bool)):
            scored = student.host.predicting(Segment.TARGET)
            states |= zip(group, select_masked(hidden, scored).split(scored.sum(1).tolist()), strict=True)
        from_self, from_query = ([states[row] for row in side] for side in pairs)
        rows = token_divergences(torch.cat(from_self), torch.cat(from_query), *lm.head, kind=kind)
        # a text without tokens diverges by 0, as its log-probability is 0
        return torch.stack([text.sum() / max(len(text), 1) for text in rows.split([len(text) for text in from_self])])

    def _decode(
        self, lm: FrozenLM, memory: Tensor, batch: Batch, wanted: np.ndarray
    ) -> Iterator[tuple[list[int], Tensor, Tokens]]:
        """Yield rows, states and tokens of decoded texts, in groups of similar length."""
        positions = np.flatnonzero(wanted)
        tokens: Tokens = batch["decoded"].select(positions)
        dummies: list[Tensor] = []  # added to states, so that their backward passes run too
        for rows, is_real in sorted(passes_by_length(tokens, lm.cost), key=lambda group: group.is_real):
            group = positions[rows]
            student = tokens.select(rows).with_soft(select_rows(memory, batch["source"][group]))
            states = lm.hidden_states(student)
            if is_real:
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
